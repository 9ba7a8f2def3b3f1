"""Regime, sync and drift: bounds that leave room for a batch, actions that do something."""

from __future__ import annotations

from collections.abc import Iterator

from assay.recipe.checks.refusal import Refusal, check
from assay.recipe.schema import Recipe


@check
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


@check
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


@check
def enough_groups(recipe: Recipe) -> Iterator[Refusal]:
    """What bounds the groups in the making must leave room for a batch."""
    prompts, groups = recipe.rollout.prompts_per_step, recipe.regime.max_groups
    if groups is not None and groups < prompts:
        reason = f"{groups} groups can never fill a batch of rollout.prompts_per_step = {prompts}: use more"
        yield Refusal("regime.max_groups", reason)


@check
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


def _some_groups(recipe: Recipe) -> int:
    return 4 * recipe.rollout.prompts_per_step
