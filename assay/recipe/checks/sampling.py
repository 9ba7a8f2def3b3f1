"""Sampling: groups that can be compared, from the distribution that is trained."""

from __future__ import annotations

from collections.abc import Iterator

from assay.recipe.checks.refusal import Refusal, check
from assay.recipe.names import ESTIMATORS
from assay.recipe.schema import Recipe


@check
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


@check
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


@check
def no_replacements(recipe: Recipe) -> Iterator[Refusal]:
    """Dynamic sampling without replacements would only shrink the batch."""
    if recipe.rollout.dynamic_sampling and recipe.rollout.max_extra_groups == 0:
        yield Refusal("rollout.max_extra_groups", "0 leaves rollout.dynamic_sampling nothing to replace groups with")


@check
def stragglers(recipe: Recipe) -> Iterator[Refusal]:
    """The clock may not cancel what goes in a fixed order, and thinking must leave room for an answer."""
    rollout = recipe.rollout
    if rollout.oversample and recipe.run.deterministic:
        reason = "cancels by the clock which rollouts are slowest, and run.deterministic goes by indices alone: use 0"
        yield Refusal("rollout.oversample", reason)
    if rollout.thinking is not None and rollout.thinking.budget >= rollout.max_tokens:
        reason = (
            f"{rollout.thinking.budget} leaves no answer within rollout.max_tokens = {rollout.max_tokens}: use less"
        )
        yield Refusal("rollout.thinking.budget", reason)
