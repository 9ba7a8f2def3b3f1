"""Combinations that cannot work, refused with the reason when the recipe is read.

Each check is a small function from the recipe to its refusals. To add one, write it and list it in
``CHECKS``. What is set and never read is refused by the table in :mod:`assay.recipe.ignored`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from assay.errors import UserError, nearest
from assay.recipe.derived import (
    WATCH,
    anchor_needs,
    corrects,
    generation_dtype,
    has_held_out,
    native_process,
    part_names,
    rejects_sequences,
    watch_names,
)
from assay.recipe.names import ESTIMATORS
from assay.recipe.schema import Recipe


class Refusal(NamedTuple):
    """Why a recipe cannot work."""

    key: str
    """The key to change."""
    reason: str
    """Reads on after the key: why, and the mend."""


Check = Callable[[Recipe], Iterator[Refusal]]


def unbuilt_estimator(recipe: Recipe) -> Iterator[Refusal]:
    """``gae`` and ``remax`` are functions without the machinery that feeds them."""
    name = recipe.objective.estimator
    if name in ESTIMATORS and ESTIMATORS[name].lacks:
        lacks = ESTIMATORS[name].lacks
        yield Refusal("objective.estimator", f"{name!r} needs {lacks}: not built yet; grpo or rloo needs none")


def lone_rollouts(recipe: Recipe) -> Iterator[Refusal]:
    """A group of one has no siblings to be compared with."""
    if recipe.rollout.group_size > 1:
        return
    name = recipe.objective.estimator
    if name in ESTIMATORS and ESTIMATORS[name].group_baseline:
        alone = ", ".join(n for n, facts in ESTIMATORS.items() if not facts.group_baseline and not facts.lacks)
        reason = (
            f"1 gives every rollout advantage 0, because {name!r} compares rollouts within their group: "
            f"use 2 or more, or the estimator {alone}"
        )
        yield Refusal("rollout.group_size", reason)
    if recipe.rollout.dynamic_sampling:
        yield Refusal(
            "rollout.dynamic_sampling",
            "replaces groups whose rewards are equal: with group_size 1 that is every group",
        )


def cut_distribution(recipe: Recipe) -> Iterator[Refusal]:
    """Sampling from a cut distribution while training the full one is a permanent mismatch."""
    rollout = recipe.rollout
    if not recipe.data.train:
        return
    for key, off, value, cut in (
        ("top_p", 1, rollout.top_p, rollout.top_p < 1),
        ("top_k", 0, rollout.top_k, rollout.top_k > 0),
        ("min_p", 0, rollout.min_p, rollout.min_p > 0),
    ):
        if cut:
            reason = f"{value:g} samples from a cut distribution but trains the full one: use {off} in training"
            yield Refusal(f"rollout.{key}", reason)


def live_anchor(recipe: Recipe) -> Iterator[Refusal]:
    """A live anchor makes the ratio 1, which is wrong wherever log-probs are needed earlier."""
    needs = anchor_needs(recipe)
    if recipe.objective.anchor == "live" and needs:
        yield Refusal("objective.anchor", f"'live' is not exact here, because {' and '.join(needs)}: use auto")


def rollout_anchor(recipe: Recipe) -> Iterator[Refusal]:
    """With the sampler as anchor there is no mismatch left to correct."""
    if recipe.objective.anchor == "rollout" and corrects(recipe.objective.correction):
        reason = "'rollout' leaves nothing to correct, as its weight would be 1: use auto, or drop the correction"
        yield Refusal("objective.anchor", reason)


def deterministic_precision(recipe: Recipe) -> Iterator[Refusal]:
    """Bit-for-bit runs are made in float32."""
    if not recipe.run.deterministic:
        return
    found = {
        "model.dtype": recipe.model.dtype,
        "model.compute_dtype": recipe.model.compute_dtype,
        "rollout.dtype": generation_dtype(recipe),
    }
    for key, dtype in found.items():
        follows = key == "rollout.dtype" and recipe.rollout.dtype == "auto"
        if dtype not in ("float32", "auto") and not follows:
            yield Refusal(key, f"{dtype} does not go with run.deterministic: use float32")


def bfloat16_masters(recipe: Recipe) -> Iterator[Refusal]:
    """Products of bfloat16 weights are bfloat16, whatever ``compute_dtype`` asks for."""
    if recipe.model.dtype == "bfloat16" and recipe.model.compute_dtype == "float32":
        reason = "float32 cannot be had from weights in bfloat16: use model.dtype=float32, or bfloat16 here too"
        yield Refusal("model.compute_dtype", reason)


def clip_range(recipe: Recipe) -> Iterator[Refusal]:
    """A ratio is above 0, so a lower clip beyond 1 clips nothing; the loss in log space has no such limit."""
    objective = recipe.objective
    if objective.clip_low > 1 and objective.loss != "geo_mean":
        reason = f"{objective.clip_low:g} is above 1, and no ratio is below 0: use at most 1 (1: no lower clip)"
        yield Refusal("objective.clip_low", reason)
    if objective.dual_clip is not None and objective.dual_clip <= 1 + objective.clip_high:
        reason = f"{objective.dual_clip:g} must be above 1 + clip_high = {1 + objective.clip_high:g}"
        yield Refusal("objective.dual_clip", reason)


def correction_bands(recipe: Recipe) -> Iterator[Refusal]:
    """Empty bands reject everything."""
    correction = recipe.objective.correction
    if correction.kind == "mask" and correction.low >= correction.high:
        reason = f"{correction.low:g} is not below correction.high = {correction.high:g}: no token would be left"
        yield Refusal("objective.correction.low", reason)
    low, high = correction.reject_low, correction.reject_high
    if low is not None and high is not None and low >= high:
        reason = f"{low:g} is not below correction.reject_high = {high:g}: every sequence would be rejected"
        yield Refusal("objective.correction.reject_low", reason)
    if rejects_sequences(correction) and ((low or 0) > 1 or (high is not None and high < 1)):
        yield Refusal(
            f"objective.correction.reject_{'low' if (low or 0) > 1 else 'high'}",
            "leaves out 1, the weight of a sampler without mismatch: such sequences would all be rejected",
        )


def kl_term(recipe: Recipe) -> Iterator[Refusal]:
    """The KL's keys that contradict each other."""
    kl = recipe.objective.kl
    name = recipe.objective.estimator
    if kl.controller == "adaptive" and kl.coefficient == 0:
        reason = "'adaptive' multiplies the coefficient, and 0 stays 0: give kl.coefficient a start above 0"
        yield Refusal("objective.kl.controller", reason)
    if kl.coefficient > 0 and kl.where == "reward":
        if kl.estimator.endswith("+"):
            plain = kl.estimator.rstrip("+")
            reason = f"{kl.estimator!r} changes only a gradient, and a KL in the reward has none: use {plain!r}"
            yield Refusal("objective.kl.estimator", reason)
        if name in ESTIMATORS and not ESTIMATORS[name].token_rewards:
            reason = f"'reward' never reaches {name!r}, which reads the reward's parts: use 'loss'"
            yield Refusal("objective.kl.where", reason)


def reward_parts(recipe: Recipe) -> Iterator[Refusal]:
    """Parts must be told apart, weigh something, and be several where the estimator normalises each."""
    parts = recipe.reward.parts
    for name, times in Counter(part_names(recipe.reward)).items():
        if times > 1:
            yield Refusal("reward.parts", f"{times} parts are called {name!r}: give each its own name")
    for name, times in Counter(watch_names(recipe.reward)).items():
        if times > 1:
            yield Refusal("reward.watch", f"{times} verifiers are called {name!r}: give each its own name")
    for name in part_names(recipe.reward):
        if name.startswith(WATCH):
            yield Refusal("reward.parts", f"{name!r} begins as the names of reward.watch do: use another name")
    if all(part.weight == 0 for part in parts):
        yield Refusal("reward.parts", "all weights are 0: every reward would be 0")
    if recipe.objective.estimator == "gdpo" and len(parts) == 1:
        reason = "'gdpo' normalises several reward parts apart, and there is one: use grpo, or add a part"
        yield Refusal("objective.estimator", reason)


def reward_gates(recipe: Recipe) -> Iterator[Refusal]:
    """A gate looks back at a part that is there; sums and products are read by estimators of the one reward."""
    reward = recipe.reward
    names = part_names(reward)
    for place, part in enumerate(reward.parts):
        if part.when is not None and part.when.part not in names[:place]:
            known = ", ".join(names[:place]) or "none: the first part has no gate"
            reason = f"{part.when.part!r} is no earlier part (earlier: {known})"
            yield Refusal(f"reward.parts[{place}].when.part", reason)
    gated = any(part.when for part in reward.parts)
    if recipe.objective.estimator == "gdpo" and (gated or reward.combine == "product"):
        reason = "'gdpo' adds up the parts itself and reads neither gates nor products: use grpo, or a plain sum"
        yield Refusal("objective.estimator", reason)
    if reward.combine == "product":
        for place, part in enumerate(reward.parts):
            if part.weight != 1:
                reason = f"{part.weight:g} only scales a product (reward.combine): leave it out"
                yield Refusal(f"reward.parts[{place}].weight", reason)


def reward_rows(recipe: Recipe) -> Iterator[Refusal]:
    """Parts for some rows need the column that tells the rows apart, and the reverse."""
    reward = recipe.reward
    chosen = [place for place, part in enumerate(reward.parts) if part.rows]
    if reward.verifier_column is None and chosen:
        yield Refusal(f"reward.parts[{chosen[0]}].rows", "needs reward.verifier_column, whose values it lists")
    if reward.verifier_column is not None and not chosen:
        reason = f"{reward.verifier_column!r} chooses nothing: no part of reward.parts has rows (say rows: [math])"
        yield Refusal("reward.verifier_column", reason)
    for place, part in enumerate(reward.parts):
        taken = {value for earlier in reward.parts[:place] for value in earlier.rows}
        if part.rows and set(part.rows) <= taken:
            reason = f"{', '.join(part.rows)} are all judged by earlier parts: the first part with a name is taken"
            yield Refusal(f"reward.parts[{place}].rows", reason)


def overlong_share(recipe: Recipe) -> Iterator[Refusal]:
    """A punished share of less than a token punishes nothing."""
    share, cap = recipe.reward.overlong_buffer, recipe.rollout.max_tokens
    if 0 < share * cap < 1:
        reason = f"{share:g} of rollout.max_tokens = {cap} is less than a token: use {1 / cap:.3g} or more, or 0"
        yield Refusal("reward.overlong_buffer", reason)


def batch_division(recipe: Recipe) -> Iterator[Refusal]:
    """A batch of so many groups cannot be divided further."""
    minibatches, prompts = recipe.update.minibatches, recipe.rollout.prompts_per_step
    if minibatches > prompts:
        reason = f"{minibatches} are more than rollout.prompts_per_step = {prompts} groups: use at most {prompts}"
        yield Refusal("update.minibatches", reason)


def token_budget(recipe: Recipe) -> Iterator[Refusal]:
    """A micro-batch must hold the longest prompt with its answer."""
    budget = recipe.update.tokens_per_microbatch
    prompt, answer = recipe.data.max_prompt_tokens, recipe.rollout.max_tokens
    if recipe.data.train and budget < prompt + answer:
        reason = (
            f"{budget} may not hold one rollout of data.max_prompt_tokens + rollout.max_tokens = "
            f"{prompt} + {answer} tokens: use at least {prompt + answer}"
        )
        yield Refusal("update.tokens_per_microbatch", reason)


def some_data(recipe: Recipe) -> Iterator[Refusal]:
    """There must be prompts."""
    data = recipe.data
    if not data.train and not data.eval:
        yield Refusal("data.train", "is empty: name prompts to train on, such as [prompts.jsonl] (or data.eval)")


def held_out(recipe: Recipe) -> Iterator[Refusal]:
    """Held-out problems come from one place, and evaluation during training needs them."""
    data = recipe.data
    if data.holdout and data.eval:
        yield Refusal("data.holdout", "and data.eval both name held-out prompts: keep one")
    if data.holdout and not data.train:
        yield Refusal("data.holdout", "splits problems off data.train, which is empty")
    if recipe.eval.every and not has_held_out(recipe):
        reason = f"{recipe.eval.every} has nothing to evaluate on: set data.holdout or data.eval, or use 0"
        yield Refusal("eval.every", reason)


def no_replacements(recipe: Recipe) -> Iterator[Refusal]:
    """Dynamic sampling without replacements would only shrink the batch."""
    if recipe.rollout.dynamic_sampling and recipe.rollout.max_extra_groups == 0:
        yield Refusal("rollout.max_extra_groups", "0 leaves rollout.dynamic_sampling nothing to replace groups with")


def lora_targets(recipe: Recipe) -> Iterator[Refusal]:
    """Adapters must sit somewhere."""
    if recipe.model.lora is not None and not recipe.model.lora.targets:
        yield Refusal("model.lora.targets", "is empty: nothing would be trained; use all-linear")


def demo_revision(recipe: Recipe) -> Iterator[Refusal]:
    """The demo model has one revision."""
    if recipe.model.path == "demo" and recipe.model.revision is not None:
        yield Refusal("model.revision", "belongs to a model of the hub, and model.path is 'demo'")


def deterministic_engine(recipe: Recipe) -> Iterator[Refusal]:
    """Bit-for-bit runs are made by the engine whose batches are a function of indices."""
    if recipe.run.deterministic and recipe.rollout.engine != "native":
        yield Refusal("rollout.engine", f"{recipe.rollout.engine} does not go with run.deterministic: use native")


def engine_addresses(recipe: Recipe) -> Iterator[Refusal]:
    """``openai`` needs servers that run; ``llama_server`` starts its own, since it must load new weights."""
    engine, servers = recipe.rollout.engine, recipe.rollout.servers
    if engine == "openai" and not servers:
        yield Refusal("rollout.servers", "is empty: name the server that openai asks, such as http://127.0.0.1:8000")
    if engine == "llama_server" and servers:
        reason = (
            "would keep the weights that they were started with: leave it empty, and llama_server starts servers on "
            "each new version (for servers as they are, in evaluation: rollout.engine=openai)"
        )
        yield Refusal("rollout.servers", reason)


NATIVE_OPTIONS = ("threads",)
"""What ``rollout.options`` may hold for the native engine in a process of its own."""


def native_processes(recipe: Recipe) -> Iterator[Refusal]:
    """How many processes, and what each may be told."""
    rollout = recipe.rollout
    if rollout.engine != "native":
        return
    if rollout.replicas > 1 and rollout.process == "trainer":
        yield Refusal("rollout.replicas", f"{rollout.replicas} engines do not fit into the trainer's process: use 1")
    if rollout.replicas > 1 and recipe.run.deterministic:
        reason = f"{rollout.replicas}: which replica gets an answer depends on the clock; run.deterministic has 1"
        yield Refusal("rollout.replicas", reason)
    if native_process(recipe) == "trainer":
        return
    for name, value in rollout.options.items():
        if name not in NATIVE_OPTIONS:
            known = ", ".join(NATIVE_OPTIONS)
            yield Refusal(
                "rollout.options", f"{name} is nothing that native knows{nearest(name, NATIVE_OPTIONS)}: {known}"
            )
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            yield Refusal("rollout.options", f"{name} must be a whole number of at least 1, not {value!r}")


def llama_slots(recipe: Recipe) -> Iterator[Refusal]:
    """llama.cpp has 256 sequences at most, and the probe takes one."""
    if recipe.rollout.engine == "llama_server" and recipe.rollout.max_running > 255 * recipe.rollout.replicas:
        reason = f"{recipe.rollout.max_running} are more slots than llama.cpp has: use at most 255 for each server"
        yield Refusal("rollout.max_running", reason)


def kept_keys(recipe: Recipe) -> Iterator[Refusal]:
    """Engines that go on from tokens have no old keys and values to keep."""
    engine = recipe.rollout.engine
    if recipe.regime.kv == "keep" and engine in ("transformers", "llama_server", "openai"):
        yield Refusal("regime.kv", f"'keep' is not possible with {engine}, which computes them anew: use recompute")


def plain_precision(recipe: Recipe) -> Iterator[Refusal]:
    """Only the native engine has 8-bit products."""
    engine = recipe.rollout.engine
    if engine == "transformers" and recipe.rollout.dtype == "int8":
        yield Refusal("rollout.dtype", "int8 is the native engine's: use float32 or bfloat16 with transformers")
    if engine in ("vllm", "vllm_server") and recipe.rollout.dtype == "int8":
        reason = f"int8 is the native engine's: use bfloat16 with {engine}, and rollout.options={{quantization: fp8}}"
        yield Refusal("rollout.dtype", reason)


def fixed_weights(recipe: Recipe) -> Iterator[Refusal]:
    """Training on the answers of a model that never changes is training on somebody else's. (Not for evaluation.)"""
    if recipe.rollout.engine == "openai" and not recipe.rollout.allow_stale:
        reason = (
            "openai cannot be given new weights, so every answer is that of the weights as they are there: use "
            "vllm_server or llama_server, or rollout.allow_stale=true if that is meant"
        )
        yield Refusal("rollout.engine", reason)


def publish_rhythm(recipe: Recipe) -> Iterator[Refusal]:
    """The engine may be as many versions behind as staleness allows, and no more."""
    every, bound = recipe.sync.every, recipe.regime.max_staleness
    if every == "drift" and bound == 0:
        yield Refusal("sync.every", "'drift' has no choice at regime.max_staleness = 0, which publishes every version")
    elif every != "drift" and bound is not None and every > bound + 1:
        reason = f"{every} leaves the engine further behind than regime.max_staleness = {bound}: at most {bound + 1}"
        yield Refusal("sync.every", reason)
    if every == "drift" and (recipe.drift.kl is None or recipe.drift.kl_action == "warn"):
        reason = "'drift' publishes when the KL asks for it: set drift.kl (.05) and drift.kl_action=publish"
        yield Refusal("sync.every", reason)


def unbounded_staleness(recipe: Recipe) -> Iterator[Refusal]:
    """Without a bound on staleness something else must bound it."""
    regime, drift = recipe.regime, recipe.drift
    if regime.max_staleness is not None:
        return
    if regime.max_groups is None:
        reason = f"null needs a bound on what is in the making: set regime.max_groups, {_some_groups(recipe)} or so"
        yield Refusal("regime.max_staleness", reason)
    if drift.kl is None and drift.ess is None and drift.surprise is None:
        reason = (
            "null leaves staleness to the drift monitor, which has no threshold: set drift.ess (.3) or drift.kl (.1)"
        )
        yield Refusal("regime.max_staleness", reason)


def _some_groups(recipe: Recipe) -> int:
    return 4 * recipe.rollout.prompts_per_step


def drift_actions(recipe: Recipe) -> Iterator[Refusal]:
    """Each action of the drift monitor must be able to do something."""
    drift = recipe.drift
    for measure in ("kl", "ess", "surprise"):
        if getattr(drift, measure) is None:
            continue
        key, action = f"drift.{measure}_action", getattr(drift, f"{measure}_action")
        if action == "publish" and recipe.sync.every == 1:
            yield Refusal(
                key, "'publish' is what sync.every = 1 does at every version: use warn, or publish more rarely"
            )
        if action == "sync" and recipe.regime.max_staleness == 0:
            yield Refusal(key, "'sync' drops to staleness 0, where regime.max_staleness is: use warn or rollback")
        if action == "rollback" and recipe.checkpoint.every == 0:
            yield Refusal(key, "'rollback' needs checkpoints on the way: checkpoint.every = 0 keeps none, use 10")


def running_ahead(recipe: Recipe) -> Iterator[Refusal]:
    """What bounds the groups in the making must leave room for a batch; the clock may not cancel a fixed order."""
    rollout, groups = recipe.rollout, recipe.regime.max_groups
    if groups is not None and groups < rollout.prompts_per_step:
        reason = f"{groups} groups can never fill a batch of rollout.prompts_per_step = {rollout.prompts_per_step}"
        yield Refusal("regime.max_groups", f"{reason}: use more")
    if rollout.oversample and recipe.run.deterministic:
        reason = "cancels by the clock which rollouts are slowest, and run.deterministic goes by indices alone: use 0"
        yield Refusal("rollout.oversample", reason)
    if rollout.thinking is not None and rollout.thinking.budget >= rollout.max_tokens:
        reason = (
            f"{rollout.thinking.budget} leaves no answer within rollout.max_tokens = {rollout.max_tokens}: use less"
        )
        yield Refusal("rollout.thinking.budget", reason)


CHECKS: tuple[Check, ...] = (
    some_data,
    held_out,
    demo_revision,
    lora_targets,
    bfloat16_masters,
    deterministic_precision,
    lone_rollouts,
    cut_distribution,
    no_replacements,
    reward_parts,
    reward_gates,
    reward_rows,
    overlong_share,
    unbuilt_estimator,
    live_anchor,
    rollout_anchor,
    clip_range,
    kl_term,
    correction_bands,
    publish_rhythm,
    unbounded_staleness,
    drift_actions,
    batch_division,
    token_budget,
    deterministic_engine,
    engine_addresses,
    native_processes,
    llama_slots,
    kept_keys,
    plain_precision,
    running_ahead,
)
"""All checks, in the order of the recipe's sections."""

CHECKS_OF_TRAINING: tuple[Check, ...] = (fixed_weights,)
"""What only a run that trains is refused for."""


def refusals(recipe: Recipe) -> list[Refusal]:
    """Everything about the recipe that cannot work."""
    return [refusal for check in CHECKS for refusal in check(recipe)]


def refuse_training(recipe: Recipe) -> None:
    """Raise UserError for a recipe that can be evaluated with, and not trained."""
    for check in CHECKS_OF_TRAINING:
        for refusal in check(recipe):
            raise UserError(f"{refusal.key}: {refusal.reason}")
