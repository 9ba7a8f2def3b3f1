"""Estimators that are whitened over the batch's tokens: reinforce++, reinforce++-baseline, gdpo."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.objective.advantage.estimator import Advantage, Signals, estimator, outcomes, spread
from assay.objective.advantage.group import GroupStatistics
from assay.objective.advantage.returns import discounted_sums
from assay.objective.layout import Layout, only
from assay.recipe.schema import ObjectiveRecipe


def whiten(values: Tensor, where: Tensor) -> Tensor:
    """(x - mean) / sqrt(unbiased var + 1e-8) over ``where``; 0 elsewhere, and of fewer than two (N,)."""
    kept = values[where]
    if len(kept) < 2:
        return torch.zeros_like(values)
    # From the lowest, so that equal values give exactly 0: over 1e-4, a rounding error is an advantage. One that is the
    # mean but for rounding gives 0 too: a group without a signal must not seem to have one.
    kept = kept - kept.min()
    centred = kept - kept.mean()
    centred = centred.masked_fill(centred.abs() <= 8 * torch.finfo(kept.dtype).eps * kept.max(), 0.0)
    white = centred / (kept.var() + 1e-8).sqrt()
    return torch.zeros_like(values).masked_scatter(where, white)


@estimator(
    "reinforce++",
    formula="R_t = sum of {gamma}^k r_(t+k); A_t = (R_t - mean) / std over all tokens of the step",
    zero_sum="batch_tokens",
    scale="invariant",
    keys=("kl.reward", "gamma"),
)
def reinforce_plus_plus(
    token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe
) -> Advantage:
    """Discounted return from each token on, whitened over the step's tokens (Hu et al. 2025, REINFORCE++)."""
    tokens = signals.tokens(layout)
    return Advantage(whiten(discounted_sums(token_rewards, settings.gamma, layout, tokens), tokens))


@estimator(
    "reinforce++-baseline",
    formula="a_i = r_i - mean of group r; A_t = (a - mean) / std over all tokens of the step",
    zero_sum="batch_tokens",
    shift_invariant=True,
    scale="invariant",
    group_baseline=True,
)
def reinforce_plus_plus_baseline(
    token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe
) -> Advantage:
    """r_i minus its group's mean, whitened over the step's tokens (Hu et al. 2025, REINFORCE++-baseline).

    A group whose rewards are equal enters the whitening with 0 and leaves it with -mean/std, rarely exactly
    0.
    """
    stats = GroupStatistics.of(outcomes(token_rewards, layout, signals), layout, signals.valid)
    values = whiten(spread(stats.centred, layout, signals), signals.tokens(layout))
    return Advantage(values, {"lone_groups": stats.lone})


@estimator(
    "gdpo",
    formula="a_i = sum over parts of weight (p_i - mean of group p) / (std of group p + {eps}); "
    "A_t = (a - mean) / std over all tokens of the step",
    zero_sum="batch_tokens",
    shift_invariant=True,
    scale="invariant",
    needs="parts",
    group_baseline=True,
    keys=("eps", "min_std"),
)
def gdpo(token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe) -> Advantage:
    """Each part normalised in its group, weighted, summed, whitened over tokens (Liu et al. 2026, GDPO).

    It reads ``signals.parts`` and not the token rewards. A part without a score (NaN) is missing for that
    rollout alone.
    """
    assert signals.parts is not None
    assert signals.part_weights is not None
    total = token_rewards.new_zeros(layout.n_sequences)
    flat_parts = 0
    for scores, weight in zip(signals.parts.unbind(1), signals.part_weights.tolist(), strict=True):
        stats = GroupStatistics.of(scores.to(total.dtype), layout, signals.valid & ~scores.isnan())
        flat = (stats.std < settings.min_std) | (stats.std == 0)
        normal = stats.centred / (stats.std + settings.eps)[layout.group]
        total = total + weight * only(normal, ~flat[layout.group])
        flat_parts += int((flat & stats.enough).sum())
    lone = GroupStatistics.of(torch.zeros_like(total), layout, signals.valid).lone
    values = whiten(spread(total, layout, signals), signals.tokens(layout))
    return Advantage(values, {"lone_groups": lone, "flat_parts": flat_parts})
