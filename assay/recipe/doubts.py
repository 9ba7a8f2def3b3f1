"""What runs but is probably a mistake: said before a run, never refused."""

from __future__ import annotations

from collections.abc import Iterator

from assay.recipe.derived import corrects, optimizer_steps
from assay.recipe.schema import Recipe


def warnings(recipe: Recipe) -> list[str]:
    """One sentence for each doubt, beginning with the key and its value.

    >>> warnings(Recipe())
    []
    """
    doubts = (*_objective_doubts(recipe), *_update_doubts(recipe), *_run_doubts(recipe))
    return [f"{key} {reason}" for key, reason in doubts]


def of_resuming(old: Recipe, new: Recipe) -> list[str]:
    """What a run of ``old`` that goes on with ``new`` does otherwise than either recipe alone."""
    before, after, schedule = old.run.steps, new.run.steps, new.update.schedule
    if before == after or schedule == "constant":
        return []
    return [
        f"run.steps was {before} and is now {after}, and update.schedule = {schedule} falls over all of them: "
        f"from here on the learning rate is that of a run of {after} steps"
    ]


def _objective_doubts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    objective, reward = recipe.objective, recipe.reward
    if objective.mask_truncated and reward.overlong_buffer:
        reason = "punishes most at the cap, and objective.mask_truncated keeps those answers out of the loss"
        yield f"reward.overlong_buffer = {reward.overlong_buffer:g}", reason
    first = reward.parts[0].verifier
    if first in ("length", "format") and len(reward.parts) > 1:
        reason = "is the first part, which says what counts as correct: put it later"
        yield f"reward.parts[0].verifier = {first}", reason
    if objective.kl.coefficient > 1:
        yield f"objective.kl.coefficient = {objective.kl.coefficient:g}", "holds the policy at the reference"
    if objective.entropy < 0:
        yield f"objective.entropy = {objective.entropy:g}", "rewards certainty, and entropy collapses alone"
    if objective.loss in ("clip", "cispo") and objective.clip_high == 0:
        yield "objective.clip_high = 0", "clips every ratio that rises at all"


def _update_doubts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    update, total = recipe.update, recipe.run.steps * optimizer_steps(recipe)
    if update.warmup_steps >= total:
        reason = f"outlasts the run, which has {total} optimizer steps"
        yield f"update.warmup_steps = {update.warmup_steps}", reason
    if recipe.model.dtype == "bfloat16" and recipe.data.train:
        reason = "rounds away updates below 0.4 % of a weight: use float32"
        yield "model.dtype = bfloat16", reason
    if recipe.model.lora is None and update.learning_rate > 1e-4:
        yield f"update.learning_rate = {update.learning_rate:g}", "is high for training the full weights"
    if recipe.model.lora is not None and update.learning_rate < 5e-6:
        reason = "is low for adapters: they take about ten times the rate of full weights"
        yield f"update.learning_rate = {update.learning_rate:g}", reason


def _run_doubts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.rollout.dtype == "int8" and recipe.data.train and not corrects(recipe.objective.correction):
        reason = "may be tenths of a nat a token away from the trainer: weigh it, objective.correction.kind=truncate"
        yield "rollout.dtype = int8", reason
    if recipe.rollout.max_tokens < 8:
        yield f"rollout.max_tokens = {recipe.rollout.max_tokens}", "cuts most answers before they end"
    for source in sorted(set(recipe.data.train) & set(recipe.data.eval)):
        yield "data.eval", f"holds {source}, which is trained on: it is not held out"
    if recipe.checkpoint.every == 0 and recipe.run.steps > 50:
        yield "checkpoint.every = 0", "keeps nothing on the way: a run that is killed starts again"
