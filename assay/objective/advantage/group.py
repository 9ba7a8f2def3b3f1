"""Estimators that compare a rollout with its siblings: grpo, dr_grpo, rloo, opo, passk."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.objective.advantage.estimator import Advantage, Signals, estimator, outcomes, spread
from assay.objective.layout import Layout, only
from assay.recipe.schema import ObjectiveRecipe


@dataclass(frozen=True)
class GroupStatistics:
    """Rewards of each group's valid rollouts, measured from the group's lowest.

    Measured from there, equal rewards give advantages of exactly 0 and not a rounding error (three times 0.1
    does not have the mean 0.1), and a large common offset costs no precision.
    """

    relative: Tensor
    """(S,): reward minus the lowest valid one of its group; 0 where invalid."""
    centred: Tensor
    """(S,): reward minus the mean of its group's valid ones; 0 where invalid or alone."""
    size: Tensor
    """(G,): valid rollouts."""
    std: Tensor
    """(G,): unbiased standard deviation; 0 for fewer than two."""
    enough: Tensor
    """(G,) bool: at least two valid rollouts. A lone reward is not an advantage."""
    lone: int
    """Groups present with fewer than two valid rollouts."""

    @classmethod
    def of(cls, rewards: Tensor, layout: Layout, valid: Tensor) -> GroupStatistics:
        """Measure ``rewards`` (S,) over the rollouts in ``valid`` (S,)."""
        lowest = -layout.max_by_group(-rewards, valid)
        relative = only(rewards - lowest[layout.group], valid)
        size = layout.count_by_group(valid)
        enough = size >= 2
        mean = layout.mean_by_group(relative, valid)
        centred = only(relative - mean[layout.group], valid & enough[layout.group])
        std = (layout.sum_by_group(centred.square(), valid) / (size - 1).clamp(min=1)).sqrt()
        present = layout.count_by_group(torch.ones_like(valid)) > 0
        return cls(relative, centred, size, std, enough, int((present & ~enough).sum()))


def batch_std(rewards: Tensor, valid: Tensor) -> Tensor:
    """Unbiased standard deviation of the valid rewards of the whole batch; 0 for fewer than two -> ()."""
    kept = rewards[valid]
    return (kept - kept.min()).std() if len(kept) > 1 else rewards.new_zeros(())


def divided(
    values: Tensor,
    rewards: Tensor,
    stats: GroupStatistics,
    layout: Layout,
    valid: Tensor,
    settings: ObjectiveRecipe,
) -> tuple[Tensor, dict[str, int]]:
    """Divide ``values`` (S,) by the (std + eps) of ``scale``; a std below ``min_std`` gives 0, counted."""
    counts = {"lone_groups": stats.lone}
    if settings.scale == "none":
        return values, counts
    std = stats.std if settings.scale == "group" else batch_std(rewards, valid).expand_as(stats.std)
    flat = (std < settings.min_std) | (std == 0)
    counts["flat_groups"] = int((flat & stats.enough).sum())
    return only(values / (std + settings.eps)[layout.group], ~flat[layout.group]), counts


@estimator(
    "grpo",
    formula="A_i = (r_i - mean of group r){divisor}, on every token of rollout i",
    zero_sum="group",
    shift_invariant=True,
    scale="invariant",
    group_baseline=True,
    keys=("kl.reward", "scale", "eps", "min_std"),
)
def grpo(token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe) -> Advantage:
    """A_i = (r_i - mean) / (std + eps), std of group, batch or none (Shao et al. 2024, DeepSeekMath)."""
    rewards = outcomes(token_rewards, layout, signals)
    stats = GroupStatistics.of(rewards, layout, signals.valid)
    values, counts = divided(stats.centred, rewards, stats, layout, signals.valid, settings)
    return Advantage(spread(values, layout, signals), counts)


@estimator(
    "dr_grpo",
    formula="A_i = r_i - mean of group r, on every token of rollout i",
    zero_sum="group",
    shift_invariant=True,
    scale="equivariant",
    group_baseline=True,
)
def dr_grpo(token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe) -> Advantage:
    """A_i = r_i - mean: no std, which would weigh easy and hard prompts up (Liu et al. 2025, Dr. GRPO)."""
    stats = GroupStatistics.of(outcomes(token_rewards, layout, signals), layout, signals.valid)
    return Advantage(spread(stats.centred, layout, signals), {"lone_groups": stats.lone})


@estimator(
    "rloo",
    formula="A_i = r_i - mean of the others' r in the group, on every token of rollout i",
    zero_sum="group",
    shift_invariant=True,
    scale="equivariant",
    group_baseline=True,
)
def rloo(token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe) -> Advantage:
    """A_i = r_i - mean of the others = (r_i - mean) n / (n - 1) (Kool et al. 2019; Ahmadian et al. 2024)."""
    stats = GroupStatistics.of(outcomes(token_rewards, layout, signals), layout, signals.valid)
    others = (stats.size - 1).clamp(min=1)
    values = stats.centred * stats.size[layout.group] / others[layout.group]
    return Advantage(spread(values, layout, signals), {"lone_groups": stats.lone})


@estimator(
    "opo",
    formula="A_i = r_i - sum(len r) / sum(len) over the group, on every token of rollout i",
    zero_sum="group_tokens",
    shift_invariant=True,
    scale="equivariant",
    group_baseline=True,
)
def opo(token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe) -> Advantage:
    """A_i = r_i - (sum of len_j r_j) / (sum of len_j), len in trainable tokens (Hao et al. 2025, OPO)."""
    stats = GroupStatistics.of(outcomes(token_rewards, layout, signals), layout, signals.valid)
    lengths = layout.count_by_sequence(signals.trainable).to(token_rewards.dtype)
    total = layout.sum_by_group(lengths, signals.valid).clamp(min=1)
    baseline = layout.sum_by_group(lengths * stats.relative, signals.valid) / total
    values = only(stats.relative - baseline[layout.group], stats.enough[layout.group])
    return Advantage(spread(values, layout, signals), {"lone_groups": stats.lone})


@estimator(
    "passk",
    formula="A_best = (r_best - r_second){divisor}, A_i = 0 for every other rollout of the group",
    shift_invariant=True,
    scale="invariant",
    group_baseline=True,
    keys=("kl.reward", "scale", "eps", "min_std"),
)
def passk(token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe) -> Advantage:
    """Only the best rollout counts, by its lead over the second: the best of k (Tang et al. 2025)."""
    rewards = outcomes(token_rewards, layout, signals)
    stats = GroupStatistics.of(rewards, layout, signals.valid)
    top = layout.max_by_group(stats.relative, signals.valid)
    tied = signals.valid & (stats.relative == top[layout.group])
    index = torch.arange(layout.n_sequences, device=rewards.device)
    first = -layout.max_by_group(-index.to(rewards.dtype), tied)
    best = tied & (index == first[layout.group])
    second = layout.max_by_group(stats.relative, signals.valid & ~best)
    lead = only((top - second)[layout.group], best & stats.enough[layout.group])
    values, counts = divided(lead, rewards, stats, layout, signals.valid, settings)
    return Advantage(spread(values, layout, signals), counts)
