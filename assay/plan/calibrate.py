"""Costs and workload as a run folder shows them: its metrics say what a step took, its rollout log what it did.

An engine's time in a step is fitted as  a * decoding steps + b * (their rows + prompt tokens)  over the run's steps: a
prompt token in a prefill needs the arithmetic of a row in a decoding step. How many steps and rows there were follows
from the lengths and the slots. An update's time is fitted as  fixed + c * forwarded tokens.  The first step, which
warms up, is left out where there are others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from assay.errors import UserError
from assay.plan.basis import Basis, Note
from assay.plan.costs import Costs, DecodeCost, PrefillCost, UpdateCost
from assay.plan.distribution import Constant
from assay.plan.engine_model import Answer, EngineModel
from assay.plan.least_squares import nonnegative
from assay.plan.presets import DOUBLING
from assay.plan.terms import Terms, terms_of
from assay.plan.workload import SeenGroup, SeenWork
from assay.recipe.derived import native_process
from assay.recipe.load import load_recipe
from assay.recipe.schema import Recipe
from assay.rollout.process.factory import Threads, threads_of
from assay.sync.weights import Weights
from assay.track.rollouts import LoggedRollout, read
from assay.view.run_record import RunRecord, open_run

PROBE_TOKENS = Weights.tokens
"""Of the probe after a publish: the engine is idle then in a synchronous run, and busy in another."""


@dataclass(frozen=True)
class Effort:
    """What an engine did for a step, counted from the lengths."""

    steps: float
    """Decoding steps."""
    rows: float
    """Rows of all of them."""
    prompt_tokens: int
    """Prefilled."""


def calibrate(folder: Path) -> Basis:
    """Costs and workload of a run folder. Raises UserError where it holds too little."""
    record = open_run(folder)
    recipe = _recipe_of(record)
    if recipe.regime.max_staleness != 0:
        raise UserError(
            f"{folder}: an asynchronous run, whose phases overlap: take costs from one with regime.max_staleness=0 "
            "(--measure 5 makes one), or say --device to use this one's lengths alone"
        )
    groups = logged_groups(folder, recipe)
    timed, terms = _timed(record, groups), terms_of(recipe)
    costs = _costs(timed, groups, terms)
    work = SeenWork(groups=[g for step in groups.values() for g in step])
    where = f"{len(timed)} step{'s' * (len(timed) != 1)} of {record.name}"
    notes = (*_work_notes(work, record.name), *_cost_notes(costs, where, recipe))
    return Basis(costs, work, notes, threads=threads_measured(recipe))


def seen(folder: Path) -> tuple[SeenWork, list[Note]]:
    """The workload alone, of any run. Raises UserError for one without a rollout log."""
    record = open_run(folder)
    groups = logged_groups(folder, _recipe_of(record))
    work = SeenWork(groups=[g for step in groups.values() for g in step])
    return work, _work_notes(work, record.name)


def _recipe_of(record: RunRecord) -> Recipe:
    return load_recipe(dict(record.recipe), check=False).recipe


def _costs(timed: Sequence[Mapping[str, float]], groups: Mapping[int, Sequence[SeenGroup]], terms: Terms) -> Costs:
    decode, prefill = _engine(timed, groups, terms)
    prompt = round(fmean(g.prompt_tokens for step in groups.values() for g in step))
    probe_s = prefill.seconds(prompt) + decode.seconds(1, PROBE_TOKENS - 1, prompt)
    return Costs(
        prefill=prefill,
        decode=decode,
        update=_update(timed, terms),
        publish_s=max(0.0, median(row["time/publish"] for row in timed) - probe_s),
        probe_tokens=PROBE_TOKENS,
        probe_prompt_tokens=prompt,
        overhead_s=median(_rest(row) for row in timed),
        verifier=Constant(value=median(row.get("time/score", 0.0) for row in timed)),
    )


def logged_groups(folder: Path, recipe: Recipe) -> dict[int, list[SeenGroup]]:
    """By step, the groups that the rollout log holds, those without signal that were replaced included.

    Raises UserError for a run without a rollout log.
    """
    rows = [*read(folder, phase="train"), *read(folder, phase="unused")]
    if not rows:
        raise UserError(f"{folder}: no rollouts are logged; run it with track.rollouts=true")
    lengths = _prompt_lengths(recipe, {r.prompt for r in rows})
    groups: dict[tuple[int, int], list[LoggedRollout]] = {}
    for row in rows:
        groups.setdefault((row.step, row.admission), []).append(row)
    found: dict[int, list[SeenGroup]] = {}
    for (step, _), members in sorted(groups.items()):
        signal = any(r.advantage for r in members)
        tokens = [max(1, r.tokens) for r in members]
        seen = SeenGroup(prompt_tokens=lengths[members[0].prompt], lengths=tokens, signal=signal)
        found.setdefault(step, []).append(seen)
    return found


def _prompt_lengths(recipe: Recipe, prompts: set[str]) -> Mapping[str, int]:
    """Tokens of each prompt; the log keeps their text, which holds the chat template already."""
    from assay.loop.folder import model_place
    from assay.policy.model import load_tokenizer

    tokenizer = load_tokenizer(model_place(recipe.model.path), recipe.model)
    return {p: max(1, len(tokenizer(p, add_special_tokens=False)["input_ids"])) for p in prompts}


def _timed(record: RunRecord, groups: Mapping[int, Sequence[SeenGroup]]) -> list[Mapping[str, float]]:
    """The metrics of the steps that are whole and logged, the first left out where there are three or more."""
    needed = ("time/generate", "time/update", "time/publish", "time/step", "update/tokens_forwarded")
    rows = [r for r in record.metrics if int(r["step"]) in groups and all(r.get(n) is not None for n in needed)]
    if not rows:
        raise UserError(f"{record.folder}: no step with its times and rollouts is logged; let it run for a few steps")
    return list(rows[1:] if len(rows) > 2 else rows)


def effort(groups: Sequence[SeenGroup], slots: int) -> Effort:
    """What an engine of so many slots does for these groups, when all are there from the start."""
    costs = Costs(decode=DecodeCost(steps={1: 1.0}), update=UpdateCost())
    engine, now = EngineModel(costs, slots), 0.0
    answers = [
        Answer(number, i, group.prompt_tokens, n)
        for number, group in enumerate(groups)
        for i, n in enumerate(group.lengths)
    ]
    engine.submit(answers, now)
    while engine.next != float("inf"):
        now = engine.next
        engine.advance(now)
    return Effort(engine.busy["decode"], engine.row_seconds, sum(g.prompt_tokens for g in groups))


def _engine(
    timed: Sequence[Mapping[str, float]], groups: Mapping[int, Sequence[SeenGroup]], terms: Terms
) -> tuple[DecodeCost, PrefillCost]:
    did = [effort(groups[int(row["step"])], terms.slots) for row in timed]
    features = [[e.steps, e.rows + e.prompt_tokens] for e in did]
    a, b = nonnegative(features, [row["time/generate"] for row in timed])
    rows = (1, max(2, terms.slots))
    return DecodeCost(steps={r: max(1e-9, a + b * r) for r in rows}), PrefillCost(per_token_s=b)


def _update(timed: Sequence[Mapping[str, float]], terms: Terms) -> UpdateCost:
    """A forward pass alone is taken to cost a third of a pass forward and backward."""
    weight = terms.epochs + terms.scored_passes / 3
    features = [[1.0, row["update/tokens_forwarded"] * weight] for row in timed]
    fixed, each = nonnegative(features, [row["time/update"] for row in timed])
    return UpdateCost(fixed_s=fixed, per_token_s=each, scored_token_s=each / 3, scaling=DOUBLING)


def _rest(row: Mapping[str, float]) -> float:
    named = sum(
        row.get(f"time/{phase}") or 0.0
        for phase in ("generate", "score", "update", "publish", "evaluate", "checkpoint")
    )
    return max(0.0, row["time/step"] - named)


def threads_measured(recipe: Recipe) -> Threads | None:
    """CPU threads of each side in a run of the recipe on a machine like this one; ``None`` on an accelerator."""
    import torch

    device = recipe.model.device
    if not (device.startswith("cpu") or (device == "auto" and not torch.cuda.is_available())):
        return None
    if native_process(recipe) == "own":
        return threads_of(recipe, torch.get_num_threads())
    return all_threads(1 if recipe.run.deterministic else recipe.run.threads)


def all_threads(count: int | None = None) -> Threads:
    """So many threads for each side, which take turns; absent, as many as torch uses."""
    import torch

    many = count or torch.get_num_threads()
    return Threads(trainer=many, replica=many)


def _work_notes(work: SeenWork, where: str) -> list[Note]:
    lengths = sorted(n for g in work.groups for n in g.lengths)
    p95 = lengths[min(len(lengths) - 1, int(0.95 * len(lengths)))]
    signal = fmean(g.signal for g in work.groups)
    return [
        Note("lengths", f"{len(lengths):,} answers, mean {fmean(lengths):,.0f}, p95 {p95:,} tokens", "measured", where),
        Note("groups with signal", f"{signal:.0%}", "measured", where),
    ]


def _cost_notes(costs: Costs, where: str, recipe: Recipe) -> list[Note]:
    points = ", ".join(f"{1000 * s:.3g} ms for {r}" for r, s in sorted(costs.decode.steps.items()))
    update = f"{costs.update.fixed_s:.2g} s and {1e3 * costs.update.per_token_s:.3g} ms a token"
    more = f"of {recipe.model.path}; more GPUs: {DOUBLING:.0%} of each doubling, a guess"
    return [
        Note("a decoding step", f"{points} rows", "measured", "fitted to the seconds of generation"),
        Note("update", update, "measured", more),
        Note("publish", f"{costs.publish_s:.2g} s, then {PROBE_TOKENS} tokens of a probe", "measured", where),
        Note("a verdict", f"{1000 * costs.verifier.mean:.2g} ms", "measured", "the wait for a step's last verdicts"),
        Note("beside the phases", f"{costs.overhead_s:.2g} s a step", "measured", where),
    ]
