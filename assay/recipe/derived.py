"""What follows from a recipe: sizes, precisions, the anchor. Each decision is made here, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from assay.recipe.schema import CorrectionRecipe, Recipe, RewardPart, RewardRecipe, WatchPart

AnchorKind = Literal["live", "recompute", "rollout"]


@dataclass(frozen=True)
class Anchor:
    """Whose log-probs the ratio divides by, and why."""

    kind: AnchorKind
    reason: str


def optimizer_steps(recipe: Recipe) -> int:
    """Optimizer steps taken from one batch: epochs times mini-batches.

    >>> optimizer_steps(Recipe())
    1
    """
    return recipe.update.epochs * recipe.update.minibatches


def corrects(correction: CorrectionRecipe) -> bool:
    """Do these settings weigh or reject anything?"""
    return correction.kind != "none" or rejects_sequences(correction)


def rejects_sequences(correction: CorrectionRecipe) -> bool:
    """Is there a band outside which whole sequences are rejected?"""
    return correction.reject_low is not None or correction.reject_high is not None


def anchor_needs(recipe: Recipe) -> list[str]:
    """Why log-probs are needed before the first backward pass; empty where a live anchor is exact."""
    objective, needs = recipe.objective, []
    if optimizer_steps(recipe) > 1:
        needs.append(f"the batch is used for {optimizer_steps(recipe)} optimizer steps")
    if corrects(objective.correction):
        needs.append("the correction weighs the anchor against the sampler")
    if objective.kl.coefficient > 0 and objective.kl.where == "reward":
        needs.append("the KL is subtracted from the rewards before advantages")
    return needs


def choose_anchor(recipe: Recipe) -> Anchor:
    """Resolve ``objective.anchor``; ``auto`` is live where that is exact, else recompute, whatever sampled.

    >>> choose_anchor(Recipe()).kind
    'live'
    """
    kind = recipe.objective.anchor
    if kind == "rollout":
        return Anchor("rollout", "the sampler's own log-probs, so the ratio carries the sampler's mismatch")
    needs = anchor_needs(recipe)
    if kind == "live" or (kind == "auto" and not needs):
        return Anchor("live", "one optimizer step per batch, and nothing needs log-probs before it: the ratio is 1")
    if kind == "recompute" and not needs:
        return Anchor("recompute", "the recipe asks for it (a live anchor would be exact and save a forward pass)")
    return Anchor("recompute", " and ".join(needs))


def ratio_moves(recipe: Recipe) -> bool:
    """Can the ratio leave 1, so that a clip acts? Not with one step per batch and the trainer as anchor."""
    return optimizer_steps(recipe) > 1 or choose_anchor(recipe).kind == "rollout"


def generation_dtype(recipe: Recipe) -> Literal["auto", "float32", "bfloat16", "int8"]:
    """The precision in which answers are generated; ``auto`` where the recipe leaves it to the machine.

    >>> generation_dtype(Recipe())
    'auto'
    """
    return recipe.model.compute_dtype if recipe.rollout.dtype == "auto" else recipe.rollout.dtype


def sampler_precision(recipe: Recipe) -> str:
    """The precision of the weights that answers are sampled from, as the engine's users call it.

    >>> from assay.recipe.schema import RolloutRecipe
    >>> sampler_precision(Recipe(rollout=RolloutRecipe(engine="llama_server")))
    'f16'
    """
    named = {"llama_server": recipe.sync.gguf, "openai": "a precision of its own"}
    return named.get(recipe.rollout.engine) or generation_dtype(recipe)


def native_process(recipe: Recipe) -> Literal["trainer", "own"]:
    """Where the native engine runs: what ``rollout.process: auto`` means.

    In a process of its own where it may run ahead of the trainer, or where there are several. Deterministic runs stay
    in one process: neither waits for the other there.

    >>> native_process(Recipe())
    'trainer'
    """
    if recipe.rollout.process != "auto":
        return recipe.rollout.process
    ahead = recipe.regime.max_staleness != 0 and not recipe.run.deterministic
    return "own" if ahead or recipe.rollout.replicas > 1 else "trainer"


def generation_place(recipe: Recipe) -> str:
    """Where answers are generated, in words.

    >>> generation_place(Recipe())
    "native, in the trainer's process"
    """
    rollout = recipe.rollout
    if rollout.engine != "native":
        return rollout.engine
    if native_process(recipe) == "trainer":
        return "native, in the trainer's process"
    if rollout.replicas == 1:
        return "native, in a process of its own"
    return f"native, in {rollout.replicas} processes of their own"


def extra_groups(recipe: Recipe) -> int:
    """Most groups that dynamic sampling may add to a step; 0 without it."""
    rollout = recipe.rollout
    if not rollout.dynamic_sampling:
        return 0
    return 2 * rollout.prompts_per_step if rollout.max_extra_groups is None else rollout.max_extra_groups


def has_held_out(recipe: Recipe) -> bool:
    """Is there anything to evaluate on?"""
    return bool(recipe.data.eval) or recipe.data.holdout > 0


OVERLONG = "overlong"
"""Name of the reward part that ``reward.overlong_buffer`` adds."""
WATCH = "watch/"
"""Before the names of the verifiers of ``reward.watch``."""


def part_names(reward: RewardRecipe) -> tuple[str, ...]:
    """The name of each reward part in metrics and verdicts; a function's own where its file is named too.

    >>> from assay.recipe.schema import RewardPart
    >>> part_names(RewardRecipe(parts=[RewardPart(verifier="math"), RewardPart(verifier="my/rewards.py:brevity")]))
    ('math', 'brevity')
    """
    names = [_part_name(part) for part in reward.parts]
    return (*names, *([OVERLONG] if reward.overlong_buffer > 0 else []))


def watch_names(reward: RewardRecipe) -> tuple[str, ...]:
    """The name of each watched verifier in metrics and verdicts: no part of the reward has such a one.

    >>> from assay.recipe.schema import WatchPart
    >>> watch_names(RewardRecipe(watch=[WatchPart(verifier="math"), WatchPart(verifier="number", name="last")]))
    ('watch/math', 'watch/last')
    """
    return tuple(WATCH + _part_name(part) for part in reward.watch)


def _part_name(part: RewardPart | WatchPart) -> str:
    return part.name or part.verifier.rpartition(":")[2]
