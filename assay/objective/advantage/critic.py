"""Estimators that need a critic: generalised advantage estimation."""

from __future__ import annotations

from torch import Tensor

from assay.objective.advantage.estimator import Advantage, Signals, estimator
from assay.objective.advantage.returns import discounted_sums, next_values
from assay.objective.advantage.whitened import whiten
from assay.objective.layout import Layout, only
from assay.recipe.schema import ObjectiveRecipe


def gae(
    token_rewards: Tensor, values: Tensor, layout: Layout, where: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016) -> advantages (N,), returns (N,).

    delta_t = r_t + gamma V_next - V_t,  A_t = delta_t + gamma lam A_next,  return_t = A_t + V_t

    ``where`` (N,) bool: the tokens that are the policy's steps. A token outside it (a tool's words) is passed
    over, and the value after the last one is 0. Both results are 0 outside. Nothing is whitened here.
    """
    values = only(values, where)
    deltas = only(token_rewards, where) + gamma * next_values(values, layout, where) - values
    advantages = discounted_sums(deltas, gamma * lam, layout, where)
    return advantages, advantages + values


@estimator(
    "gae",
    formula="delta_t = r_t + {gamma} V_(t+1) - V_t; a_t = delta_t + {gamma} {lam} a_(t+1); "
    "A_t = (a_t - mean) / std over all tokens of the step",
    zero_sum="batch_tokens",
    needs="values",
    keys=("kl.reward", "gamma", "lam"),
)
def whitened_gae(token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe) -> Advantage:
    """:func:`gae` over the critic's values, whitened over the step's tokens (Schulman et al. 2017, PPO)."""
    assert signals.values is not None
    tokens = signals.tokens(layout)
    values = signals.values.to(token_rewards.dtype)
    advantages, _ = gae(token_rewards, values, layout, tokens, settings.gamma, settings.lam)
    return Advantage(whiten(advantages, tokens))
