"""Estimators with a baseline from outside the group: remax."""

from __future__ import annotations

from torch import Tensor

from assay.objective.advantage.estimator import Advantage, Signals, estimator, outcomes, spread
from assay.objective.layout import Layout
from assay.recipe.schema import ObjectiveRecipe


@estimator(
    "remax",
    formula="A_i = r_i - r of the greedy answer, on every token of rollout i",
    shift_invariant=True,
    scale="equivariant",
    needs="greedy",
)
def remax(token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe) -> Advantage:
    """A_i = r_i - reward of the greedy rollout of the same prompt (Li et al. 2023, ReMax).

    Without a greedy reward (NaN: its verifier failed) there is no baseline, and the advantage is 0, counted.
    """
    assert signals.greedy is not None
    rewards = outcomes(token_rewards, layout, signals)
    known = ~signals.greedy.isnan()
    values = (rewards - signals.greedy.to(rewards.dtype)).where(known, rewards.new_zeros(()))
    counts = {"no_greedy_rollouts": int((signals.valid & ~known).sum())}
    return Advantage(spread(values, layout, signals), counts)
