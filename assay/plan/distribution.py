"""Distributions of lengths and times, written in a costs file or taken from a run."""

from __future__ import annotations

import math
import random
from functools import cached_property
from statistics import NormalDist, fmean
from typing import Annotated, Literal

from pydantic import Field

from assay.recipe.schema import Section


class Constant(Section):
    """Always the same."""

    kind: Literal["constant"] = "constant"
    """The name of the distribution."""
    value: float = Field(ge=0)
    """The number."""

    @property
    def mean(self) -> float:
        """The mean."""
        return self.value

    def draw(self, rng: random.Random) -> float:
        """One number."""
        return self.value


class Exponential(Section):
    """P(x > t) = exp(-t / mean): answers that may end at every token with the same chance."""

    kind: Literal["exponential"] = "exponential"
    """The name of the distribution."""
    mean: float = Field(gt=0)
    """The mean, before any cap."""

    def draw(self, rng: random.Random) -> float:
        """One number."""
        return rng.expovariate(1 / self.mean)


class LogNormal(Section):
    """exp of a normal: a body and a long tail, by its mean and the number that 95 of 100 stay below."""

    kind: Literal["lognormal"] = "lognormal"
    """The name of the distribution."""
    mean: float = Field(gt=0)
    """The mean, before any cap."""
    p95: float = Field(gt=0)
    """The 95th percentile; at most 3.8 means, which is the widest that a log-normal can be."""

    @cached_property
    def parameters(self) -> tuple[float, float]:
        """(mu, sigma) of the normal: mean = exp(mu + sigma^2 / 2), p95 = exp(mu + z sigma), the narrower solution."""
        z = NormalDist().inv_cdf(0.95)
        sigma = z - math.sqrt(max(0.0, z * z - 2 * math.log(self.p95 / self.mean)))
        return math.log(self.mean) - sigma * sigma / 2, sigma

    def model_post_init(self, context: object) -> None:
        """Refuse a 95th percentile that no log-normal of this mean has, when it is read."""
        widest = math.exp(NormalDist().inv_cdf(0.95) ** 2 / 2)
        if not 1 <= self.p95 / self.mean <= widest:
            raise ValueError(f"p95 must be between 1 and {widest:.2f} means, not {self.p95 / self.mean:g}")

    def draw(self, rng: random.Random) -> float:
        """One number."""
        return rng.lognormvariate(*self.parameters)


class Observed(Section):
    """Numbers that were seen, each as likely as the others."""

    kind: Literal["observed"] = "observed"
    """The name of the distribution."""
    values: list[float] = Field(min_length=1)
    """The numbers."""

    @property
    def mean(self) -> float:
        """The mean."""
        return fmean(self.values)

    def draw(self, rng: random.Random) -> float:
        """One number."""
        return rng.choice(self.values)


Distribution = Annotated[Constant | Exponential | LogNormal | Observed, Field(discriminator="kind")]
"""Any of them; ``kind`` says which."""
