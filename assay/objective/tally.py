"""Metrics that stay exact over micro-batches, optimizer steps and ranks: sums with their denominators, and
maxima."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from assay.objective.layout import wide

METRICS: Mapping[str, str] = {
    "update/loss": (
        "Loss of an optimizer step, every term in it. Near 0 by construction with centred advantages at "
        "ratio 1: its gradient is what learns, not its value."
    ),
    "update/policy_loss": "The policy term of update/loss alone, importance correction included.",
    "update/ratio_mean": (
        "Mean ratio of policy to anchor over the counting tokens that were forwarded; 1 with a live anchor."
    ),
    "update/ratio_max": "Largest ratio of policy to anchor among the counting tokens that were forwarded.",
    "update/clip_low_share": (
        "Share of counting tokens where the lower clip takes effect. 0 by construction when a batch gets "
        "one optimizer step."
    ),
    "update/clip_high_share": (
        "Share of counting tokens where the upper clip takes effect. 0 by construction when a batch gets "
        "one optimizer step."
    ),
    "update/dual_clip_share": (
        "Share of counting tokens where the dual clip bounds the loss of a negative advantage."
    ),
    "update/kl_anchor": (
        "KL(anchor, policy) per token by k3, over the counting tokens that were forwarded: how far the "
        "weights moved within the step."
    ),
    "update/kl_reference": (
        "KL to the reference per token, by the recipe's estimator: in the loss over the counting tokens "
        "that were forwarded, in the reward over all trainable tokens of valid rollouts."
    ),
    "update/entropy": "Entropy of the policy per counting token that was forwarded, in nats.",
    "update/rejected_share": "Share of tokens taken out of the loss and its denominator by the correction.",
    "update/ess_sequence": (
        "Effective sample size of the sequence weights anchor / sampler, as a share of the valid "
        "rollouts: 1 when sampler and anchor agree."
    ),
    "update/ess_token": (
        "Effective sample size of the token weights anchor / sampler, as a share of their number."
    ),
    "update/advantage_abs_mean": (
        "Mean absolute advantage over counting tokens, those with advantage 0 included."
    ),
    "mismatch/logprob_abs_mean": (
        "Mean |anchor - sampler| log-prob per token: engine and trainer on the same tokens."
    ),
    "mismatch/logprob_abs_max": "Largest |anchor - sampler| log-prob of a token.",
    "mismatch/kl": "KL(sampler, anchor) per token by k3.",
}
"""Every metric that this layer names, and what it means."""


@dataclass(frozen=True)
class Tally:
    """Numerators with denominators, and maxima, by metric name. Merging is addition, so that no mean is ever
    averaged.

    >>> one, other = Tally({"update/entropy": (6.0, 3.0)}), Tally({"update/entropy": (2.0, 1.0)})
    >>> (one + other + Tally(maxima={"update/ratio_max": 2.0})).values()
    {'update/entropy': 2.0, 'update/ratio_max': 2.0}
    """

    sums: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(numerator, denominator)."""
    maxima: Mapping[str, float] = field(default_factory=dict)
    """Largest values seen."""

    @classmethod
    def of(
        cls, sums: Mapping[str, tuple[Tensor, Tensor]], maxima: Mapping[str, Tensor] | None = None
    ) -> Tally:
        """Read scalar tensors off their device in one transfer."""
        maxima = maxima or {}
        scalars = [scalar for pair in sums.values() for scalar in pair] + list(maxima.values())
        numbers = torch.stack([wide(scalar.detach()) for scalar in scalars]).tolist() if scalars else []
        pairs = {name: (numbers[2 * i], numbers[2 * i + 1]) for i, name in enumerate(sums)}
        return cls(pairs, dict(zip(maxima, numbers[2 * len(sums) :], strict=True)))

    def __add__(self, other: Tally) -> Tally:
        sums, maxima = dict(self.sums), dict(self.maxima)
        for name, (numerator, denominator) in other.sums.items():
            n, d = sums.get(name, (0.0, 0.0))
            sums[name] = (n + numerator, d + denominator)
        for name, value in other.maxima.items():
            maxima[name] = max(value, maxima.get(name, value))
        return Tally(sums, maxima)

    def values(self) -> dict[str, float]:
        """Return each metric as a number; a mean of nothing is left out."""
        means = {name: n / d for name, (n, d) in self.sums.items() if d != 0}
        return means | dict(self.maxima)
