"""Assembly: a recipe becomes a policy, an engine, a source, verifiers and a run, wired to each other."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from assay.data.prompts import PromptSet, load_prompts, shared_problems
from assay.data.sampler import PromptSampler
from assay.errors import UserError
from assay.hardware import prepare_torch, with_precision
from assay.loop.checkpoint import CheckpointStore, RunState
from assay.loop.drift import DriftMonitor, DriftState
from assay.loop.drift_probe import make_monitor
from assay.loop.evaluate import Evaluation, evaluate
from assay.loop.folder import RunFolder, find_run, model_place, new_run
from assay.loop.harvest import Source
from assay.loop.in_flight import InFlight, read_in_flight
from assay.loop.limit import measure_limit
from assay.loop.making import Asking
from assay.loop.memory import memory
from assay.loop.recorder import Recorder
from assay.loop.run import Describe, Run
from assay.loop.schedule import Schedule
from assay.loop.source import GroupSource
from assay.objective.kl import KlState
from assay.policy.batch import pack
from assay.policy.model import adapter_base, add_lora, check_model, load_model, load_tokenizer, pick_device
from assay.policy.policy import Policy
from assay.recipe import doubts
from assay.recipe.checks import refuse_training
from assay.recipe.derived import extra_groups, has_held_out, sampler_precision
from assay.recipe.load import Resolved, check_recipe, check_resume, difference, load_recipe, save_resolved
from assay.recipe.schema import Recipe
from assay.records import Group
from assay.reward.scorer import Scorer
from assay.reward.selection import check_rows
from assay.rollout.dispatch import Dispatcher
from assay.rollout.engine import Engine, sampling_of
from assay.rollout.engines import make_engine
from assay.rollout.seeds import stream_seed
from assay.rollout.thinking import ThinkingBudget, encoder, thinking_budget
from assay.sync.weights import Weights
from assay.track.console import Console, make_console
from assay.track.log import logged_on
from assay.track.phases import Phases, unprofiled
from assay.track.profile import Profiler

PROBE_TOLERANCE = {"float32": 1e-3, "f16": 0.03, "bfloat16": 0.25, "bf16": 0.25, "q8_0": 0.5, "int8": 1.0}
"""Mean |engine - trainer| log-prob per token that rounding explains, by the narrower precision of the two."""


@dataclass(frozen=True)
class Parts:
    """What the loop drives."""

    run: Run
    source: Source
    policy: Policy
    weights: Weights
    tokenizer: Any


@dataclass(frozen=True)
class Ingredients:
    """What a source may be made of."""

    recipe: Recipe
    dispatcher: Dispatcher
    scorer: Scorer
    prompts: PromptSet
    policy: Policy
    tokenizer: Any
    phases: Phases
    console: Console


@asynccontextmanager
async def assemble(
    recipe: Recipe | Resolved,
    resume: bool | Path,
    console: Console | None,
    make_source: Callable[[Ingredients], Source],
    describe: Describe,
) -> AsyncIterator[Parts]:
    """Build everything a run needs, in the order in which a mistake is cheapest to find: recipe, data, rewards, model.

    Leaves nothing behind: worker processes and engine are closed on the way out, also by an error.
    """
    resolved = checked(recipe)
    settings = with_precision(resolved.recipe, pick_device(resolved.recipe.model.device).type)
    refuse_training(settings)
    folder, changes = _folder(resolved, settings, resume)
    prepare_torch(settings.run)
    async with AsyncExitStack() as stack:
        stack.enter_context(folder.opened())
        place, tokenizer = find_model(settings)
        prompts, held_out = load_data(settings, tokenizer)
        scorer = stack.enter_context(Scorer(settings.reward, settings.rollout.max_tokens))
        kept, again = settings.checkpoint, folder.resuming(resolved.command)
        store = CheckpointStore(folder.checkpoints, kept.keep_last, kept.keep_best, again)
        with memory("load", settings):
            policy, engine = load_policy(settings, place, tokenizer, folder.path)
            stack.push_async_callback(engine.close)
            state, in_flight = _beginning(settings, store, policy, prompts, bool(resume))
        dispatcher = Dispatcher(engine)
        weights, drift = await _connected(settings, folder, policy, dispatcher, prompts, state)
        limit = measure_limit(settings, policy.model, policy.device)
        shown = console or make_console("auto", settings.track.samples_every, settings.reward.gold)
        stack.callback(shown.stop)
        stack.enter_context(logged_on(shown))
        profiler = _profiler(settings, folder, state, shown)
        phases = Phases(on_enter=shown.phase, around=profiler or unprofiled)
        source = make_source(Ingredients(settings, dispatcher, scorer, prompts, policy, tokenizer, phases, shown))
        source.cursor, source.admissions = state.cursor, state.admissions
        stack.push_async_callback(source.close)
        with store.disk("the run folder"):
            save_resolved(settings, folder.path)  # from here on it can be resumed
            recorder = Recorder(folder, settings, shown, state.step, profiler)
        stack.callback(recorder.close)
        evaluator = None
        if held_out is not None:
            held = partial(evaluate, dispatcher, scorer, held_out, settings, thinking=thinking_of(settings, tokenizer))
            drained = None if settings.regime.in_flight else source.drained
            evaluator = _evaluator(held, weights, policy, shown, drained)
        worker = stack.enter_context(ThreadPoolExecutor(1, "update")) if _overlaps(settings) else None
        run = Run(
            settings, folder, store, recorder, phases, evaluator, policy, source, state, limit, describe, worker, drift
        )
        info = {"engine": f"{engine.path}, in {sampler_precision(settings)}", "machine": limit.describe()}
        shown.start(settings.run.steps, state.step, _info(settings, folder, prompts, held_out, state) | info)
        for warning in (*doubts.warnings(settings), *changes, *_leaks(prompts, held_out)):
            shown.message(warning, "warning")
        if drift.state.synchronous:
            source.drop_to_sync()
        source.restore(in_flight, state.version)
        yield Parts(run, source, policy, weights, tokenizer)


def find_model(recipe: Recipe) -> tuple[str, Any]:
    """Where the model lies, and its tokenizer. Raises UserError for a model that cannot be used."""
    place = model_place(recipe.model.path)
    check_model(place, recipe.model)
    return place, load_tokenizer(place, recipe.model)


def _beginning(
    recipe: Recipe, store: CheckpointStore, policy: Policy, prompts: PromptSet, resume: bool
) -> tuple[RunState, InFlight]:
    """The state that the run goes on from, its tensors read into ``policy``, and what was in flight then."""
    in_flight = InFlight()

    def read(folder: Path) -> None:
        nonlocal in_flight
        policy.load(folder)
        in_flight = read_in_flight(folder, prompts)

    begun = store.load(read) if resume else None
    return begun or RunState(kl=asdict(KlState(recipe.objective.kl.coefficient))), in_flight


async def _connected(
    recipe: Recipe, folder: RunFolder, policy: Policy, dispatcher: Dispatcher, prompts: PromptSet, state: RunState
) -> tuple[Weights, DriftMonitor]:
    """The way of the weights to the engine, which has them and was probed, and the monitor of how far they move."""
    temperature = recipe.rollout.temperature
    weights = Weights(dispatcher, prompts.prompts[0], _tolerance(recipe), temperature, version=state.version)
    with memory("generate", recipe):
        await weights.start(policy)
        drift = await make_monitor(recipe, folder, dispatcher, prompts, DriftState.of(state.drift))
        drift.published(policy)
    weights.published = drift.published
    return weights, drift


def checked(recipe: Recipe | Resolved) -> Resolved:
    """The recipe as resolved; one built in Python is first held to the rules of a recipe file. Raises UserError."""
    if isinstance(recipe, Resolved):
        return recipe
    check_recipe(recipe)
    return Resolved(recipe, {})


def load_data(recipe: Recipe, tokenizer: Any) -> tuple[PromptSet, PromptSet | None]:
    """The prompts to train on, and those held out (``None`` without any)."""
    gold = recipe.reward.gold
    prompts = load_prompts(recipe.data, tokenizer, "train", gold)
    held_out = None
    if has_held_out(recipe):
        held_out = load_prompts(recipe.data, tokenizer, "eval", gold)
    check_rows(recipe.reward, (*prompts.prompts, *(held_out.prompts if held_out else ())))
    return prompts, held_out


def load_policy(recipe: Recipe, place: str, tokenizer: Any, folder: Path) -> tuple[Policy, Engine]:
    """The policy at its starting weights, and the engine that samples from it; servers log into the run ``folder``."""
    device = pick_device(recipe.model.device)
    model = load_model(place, recipe.model, device)
    needs_reference = recipe.objective.kl.coefficient > 0
    reference = None
    if recipe.model.lora is not None:
        if recipe.model.lora.export == "adapter" and adapter_base(place) is not None:
            raise UserError("model.lora.export: adapter has no base to name, as model.path is adapters too: use merged")
        model = add_lora(model, recipe.model.lora, recipe.run.seed)  # without its adapters it is its own reference
    elif needs_reference:
        reference = load_model(place, recipe.model, device).requires_grad_(False)
    policy = Policy(recipe, model, device, recipe.run.steps, reference)
    return policy, make_engine(recipe, model, tokenizer, folder)


def _folder(resolved: Resolved, settings: Recipe, resume: bool | Path) -> tuple[RunFolder, list[str]]:
    """The run's folder, and what to warn of; a resumed run must have the recipe that it began with.

    ``settings`` is the resolved recipe with what the machine decides.
    """
    stem, run = resolved.path.stem if resolved.path is not None else "run", settings.run
    if resume is False:
        return new_run(run.folder, run.name, stem), []
    folder = RunFolder(resume) if isinstance(resume, Path) else find_run(run.folder, run.name, stem)
    if not folder.recipe.exists():
        raise UserError(f"nothing to resume: {folder.path} holds no recipe.yaml")
    before = load_recipe(folder.recipe, check=False).recipe
    check_resume(before, settings, [key for key, _, _ in difference(resolved.recipe, settings)])
    return folder, doubts.of_resuming(before, settings)


def sampled_groups(ingredients: Ingredients) -> GroupSource:
    """The source of reinforcement learning: the policy's own answers, judged."""
    recipe, policy = ingredients.recipe, ingredients.policy
    rollout = recipe.rollout

    def has_signal(group: Group) -> bool:
        return policy.has_signal(pack([group], recipe.reward))[0]

    regime, order = recipe.regime, recipe.run.deterministic
    schedule = Schedule(
        prompts_per_step=rollout.prompts_per_step,
        max_staleness=regime.max_staleness,
        max_groups=regime.max_groups,
        max_extra=extra_groups(recipe) if rollout.dynamic_sampling else None,
        last_version=recipe.run.steps,
        in_order=order,
    )
    seed, thinking = stream_seed(recipe.run.seed, "train"), thinking_of(recipe, ingredients.tokenizer)
    return GroupSource(
        dispatcher=ingredients.dispatcher,
        scorer=ingredients.scorer,
        prompts=ingredients.prompts,
        sampler=PromptSampler(len(ingredients.prompts), recipe.run.seed, recipe.data.shuffle),
        asking=Asking(sampling_of(rollout), seed, rollout.max_retries, thinking),
        schedule=schedule,
        group_size=rollout.group_size,
        oversample=rollout.oversample,
        max_invalid=recipe.reward.max_invalid,
        has_signal=has_signal,
        phases=ingredients.phases,
        progress=partial(ingredients.console.phase, "generate"),
    )


def thinking_of(recipe: Recipe, tokenizer: Any) -> ThinkingBudget | None:
    """The thinking budget that the recipe sets, in the tokenizer's tokens. Raises UserError for one without room."""
    settings = recipe.rollout.thinking
    if settings is None:
        return None
    thinking = thinking_budget(settings.budget, settings.close, encoder(tokenizer))
    forced, cap = len(thinking.forced), recipe.rollout.max_tokens
    if settings.budget + forced >= cap:
        raise UserError(
            f"rollout.thinking.budget: {settings.budget} and the {forced} tokens of rollout.thinking.close leave no "
            f"answer within rollout.max_tokens = {cap}: use at most {max(1, cap - forced - 1)}"
        )
    return thinking


def _overlaps(recipe: Recipe) -> bool:
    """Does generation go on while the policy is updated? In deterministic mode it waits: there all is one round."""
    return recipe.regime.max_staleness != 0 and not recipe.run.deterministic


def _evaluator(
    held: Callable[..., Awaitable[Evaluation]],
    weights: Weights,
    policy: Policy,
    console: Console,
    drained: Callable[[], Awaitable[None]] | None,
) -> Callable[[], Awaitable[Evaluation]]:
    """Evaluates the policy as it is: what was not published yet is published first, once ``drained`` of answers."""

    async def evaluated() -> Evaluation:
        if drained is not None and weights.dispatcher.engine.version != weights.version:
            await drained()
        await weights.catch_up(policy)
        return await held(progress=partial(console.phase, "evaluate"))

    return evaluated


def _profiler(recipe: Recipe, folder: RunFolder, state: RunState, console: Console) -> Profiler | None:
    if not recipe.profile:
        return None
    return Profiler(folder.profile, state.step, recipe.run.steps, partial(console.message, style="warning"))


def _tolerance(recipe: Recipe) -> float:
    if recipe.rollout.engine == "openai":
        return math.inf  # its weights are fixed, which the recipe allows: the gap is logged
    precisions = {recipe.model.dtype, recipe.model.compute_dtype, sampler_precision(recipe)}
    return max(PROBE_TOLERANCE[p] for p in precisions)


def _info(
    recipe: Recipe, folder: RunFolder, prompts: PromptSet, held_out: PromptSet | None, state: RunState
) -> dict[str, Any]:
    data = prompts.describe() + (f"; {held_out.problems} problems held out" if held_out else "")
    info = {"name": folder.path.name, "model": recipe.model.path, "data": data}
    return info | ({"resumed": f"after step {state.step}"} if state.step else {})


def _leaks(prompts: PromptSet, held_out: PromptSet | None) -> list[str]:
    if held_out is None:
        return []
    both = shared_problems(prompts, held_out)
    if not both:
        return []
    return [f"{len(both)} held-out problems are also trained on, such as {both[0]!r}: the held-out score flatters"]
