"""Policy losses per token. A new one registers by name and gets everything else unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.objective.layout import Layout, only
from assay.recipe.schema import ObjectiveRecipe
from assay.registry import Registry


@dataclass(frozen=True)
class LossInputs:
    """What a policy loss may look at; all (N,), and never NaN at tokens that do not count."""

    logprobs: Tensor
    """Policy log-probs, with gradient."""
    log_ratio: Tensor
    """d = policy - anchor, clamped to ±20, with gradient."""
    ratio: Tensor
    """r, of the kind that the recipe names, with gradient."""
    advantages: Tensor
    """A, a constant."""
    counts: Tensor
    """bool: the tokens that count."""
    layout: Layout
    """Whole sequences."""


@dataclass(frozen=True)
class TokenLoss:
    """A policy loss per token, and where its clips took effect; all (N,)."""

    values: Tensor
    low: Tensor
    """bool: the lower clip changed the gradient. Never where the advantage is 0."""
    high: Tensor
    """bool: the upper clip did."""
    dual: Tensor
    """bool: the dual clip did."""


LossFunction = Callable[[LossInputs, ObjectiveRecipe], TokenLoss]


@dataclass(frozen=True)
class PolicyLoss:
    """A registered loss."""

    compute: LossFunction
    formula: str
    """Plain text; ``{clip_low}`` and the like stand for settings, ``{dual}`` for a dual clip."""
    keys: frozenset[str]
    """Which of the objective's keys it reads."""


LOSSES: Registry[PolicyLoss] = Registry("policy loss")
"""Policy losses by the name that ``objective.loss`` takes."""


def policy_loss(name: str, *, formula: str, keys: Iterable[str] = ()) -> Callable[[LossFunction], LossFunction]:
    """Return a decorator that registers a policy loss under ``name``."""

    def file(compute: LossFunction) -> LossFunction:
        LOSSES.register(name)(PolicyLoss(compute, formula, frozenset(keys)))
        return compute

    return file


@policy_loss(
    "clip",
    formula="-min(r A, clip(r, 1 - {clip_low}, 1 + {clip_high}) A){dual}",
    keys=("ratio", "clip_low", "clip_high", "dual_clip"),
)
def clip(inputs: LossInputs, settings: ObjectiveRecipe) -> TokenLoss:
    """-min(r A, clip(r, 1 - lo, 1 + hi) A); with dual clip c, for A < 0: -max(min(r A, clip A), c A).

    PPO (Schulman et al. 2017) with an upper clip of its own (Yu et al. 2025, DAPO) and dual clip (Ye et al.
    2020).
    """
    r, a = inputs.ratio, inputs.advantages
    lower, upper = 1 - settings.clip_low, 1 + settings.clip_high
    gain = torch.minimum(r * a, r.clamp(lower, upper) * a)
    dual = torch.zeros_like(inputs.counts)
    if settings.dual_clip is not None:
        dual = (a < 0) & (gain < settings.dual_clip * a)
        gain = torch.where(dual, settings.dual_clip * a, gain)
    return TokenLoss(-gain, (a < 0) & (r < lower), (a > 0) & (r > upper), dual)


@policy_loss(
    "cispo",
    formula="-const[clip(r, 1 - {clip_low}, 1 + {clip_high})] A logp",
    keys=("ratio", "clip_low", "clip_high"),
)
def cispo(inputs: LossInputs, settings: ObjectiveRecipe) -> TokenLoss:
    """-sg[clip(r, 1 - lo, 1 + hi)] A logp: every token keeps a gradient (MiniMax 2025, CISPO)."""
    r, a = inputs.ratio.detach(), inputs.advantages
    lower, upper = 1 - settings.clip_low, 1 + settings.clip_high
    low, high = (r < lower) & (a != 0), (r > upper) & (a != 0)
    return TokenLoss(-r.clamp(lower, upper) * a * inputs.logprobs, low, high, torch.zeros_like(low))


@policy_loss(
    "sapo",
    formula="-(4 / tau) sigmoid(tau (r - 1)) A, tau = {tau_pos} where A > 0, else {tau_neg}",
    keys=("ratio", "tau_pos", "tau_neg"),
)
def sapo(inputs: LossInputs, settings: ObjectiveRecipe) -> TokenLoss:
    """-(4 / tau) sigmoid(tau (r - 1)) A, a soft gate in place of a clip (Gao et al. 2025, SAPO)."""
    r, a = inputs.ratio, inputs.advantages
    tau = torch.full_like(r, settings.tau_neg).masked_fill(a > 0, settings.tau_pos)
    none = torch.zeros_like(inputs.counts)
    return TokenLoss(-4 / tau * torch.sigmoid(tau * (r - 1)) * a, none, none, none)


@policy_loss(
    "geo_mean",
    formula="-A exp(mean over the rollout's tokens of d'), d' = d clipped to [-{clip_low}, {clip_high}] "
    "on the side where A gains",
    keys=("clip_low", "clip_high"),
)
def geo_mean(inputs: LossInputs, settings: ObjectiveRecipe) -> TokenLoss:
    """-A exp(mean_t d'_t), d' = sign(A) min(sign(A) d, sign(A) clip(d, -lo, hi)) (Zhao et al. 2025, GMPO).

    Every token of a sequence carries the sequence's value, with A the mean over its counting tokens.
    """
    d, a, layout = inputs.log_ratio, inputs.advantages, inputs.layout
    sign = a.sign()
    bounded = sign * torch.minimum(sign * d, sign * d.clamp(-settings.clip_low, settings.clip_high))
    ratio = layout.mean_by_sequence(bounded, inputs.counts).exp()
    values = -layout.mean_by_sequence(a, inputs.counts) * ratio
    low, high = (a < 0) & (d < -settings.clip_low), (a > 0) & (d > settings.clip_high)
    return TokenLoss(only(values[layout.sequence], inputs.counts), low, high, torch.zeros_like(low))


@policy_loss("reinforce", formula="-A logp")
def reinforce(inputs: LossInputs, settings: ObjectiveRecipe) -> TokenLoss:
    """-A logp (Williams 1992)."""
    none = torch.zeros_like(inputs.counts)
    return TokenLoss(-inputs.advantages * inputs.logprobs, none, none, none)
