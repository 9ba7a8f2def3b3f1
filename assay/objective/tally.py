"""Metrics that stay exact over micro-batches, steps and ranks: sums with denominators, and maxima."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from assay.objective.layout import wide


@dataclass(frozen=True)
class Tally:
    """Numerators with denominators, and maxima, by metric name: no mean is ever averaged.

    >>> one, other = Tally({"update/entropy": (6.0, 3.0)}), Tally({"update/entropy": (2.0, 1.0)})
    >>> (one + other + Tally(maxima={"update/ratio_max": 2.0})).values()
    {'update/entropy': 2.0, 'update/ratio_max': 2.0}
    """

    sums: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(numerator, denominator)."""
    maxima: Mapping[str, float] = field(default_factory=dict)
    """Largest values seen."""

    @classmethod
    def of(cls, sums: Mapping[str, tuple[Tensor, Tensor]], maxima: Mapping[str, Tensor] | None = None) -> Tally:
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
