"""KL to the reference: per-token estimates from samples, and the controllers of their coefficient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from assay.objective.ratio import LOG_LIMIT
from assay.recipe.schema import KlRecipe
from assay.registry import Registry

KlFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class KlEstimate:
    """A registered estimate: ``compute(x)`` of x = ref - policy, per token."""

    compute: KlFunction
    formula: str


ESTIMATES: Registry[KlEstimate] = Registry("KL estimate")
"""Estimates by name; every one also exists with a trailing ``+`` (see :func:`kl`)."""


def estimate(name: str, *, formula: str) -> Callable[[KlFunction], KlFunction]:
    """Return a decorator that registers a KL estimate under ``name``."""

    def file(compute: KlFunction) -> KlFunction:
        ESTIMATES.register(name)(KlEstimate(compute, formula))
        return compute

    return file


@estimate("k1", formula="-x")
def k1(x: Tensor) -> Tensor:
    """-x: unbiased, of either sign, with a gradient of mean 0 (Schulman 2020)."""
    return -x


@estimate("k2", formula="x^2 / 2")
def k2(x: Tensor) -> Tensor:
    """x^2 / 2: biased, but its gradient is that of the KL in expectation (Schulman 2020)."""
    return x.square() / 2


@estimate("k3", formula="exp(x) - x - 1")
def k3(x: Tensor) -> Tensor:
    """exp(x) - x - 1: unbiased and never negative; x clamped to ±20 (Schulman 2020)."""
    x = x.clamp(-LOG_LIMIT, LOG_LIMIT)
    return x.expm1() - x


@estimate("abs", formula="|x|")
def absolute(x: Tensor) -> Tensor:
    """|x|."""
    return x.abs()


def kl(name: str, policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Per-token KL(policy, reference) of tokens that the policy sampled, x = ref - policy -> (N,).

    A trailing ``+`` keeps the value and takes k2's gradient: k3's expectation is the KL, its gradient is not.
    Both inputs must be finite; exclude tokens before.
    """
    x = ref_logprobs - policy_logprobs
    if not name.endswith("+"):
        return ESTIMATES[name].compute(x)
    value, gradient = ESTIMATES[name[:-1]].compute(x.detach()), k2(x)
    return value + (gradient - gradient.detach())


@dataclass(frozen=True)
class KlState:
    """What a controller carries from step to step; part of a checkpoint (``dataclasses.asdict`` is JSON)."""

    coefficient: float


Controller = Callable[[KlState, KlRecipe, float, int], KlState]

CONTROLLERS: Registry[Controller] = Registry("KL controller")
"""Controllers by name: ``(state, settings, measured KL per token, rollouts) -> state``."""


@CONTROLLERS.register("fixed")
def fixed(state: KlState, settings: KlRecipe, measured: float, rollouts: int) -> KlState:
    """The coefficient stays."""
    return state


@CONTROLLERS.register("adaptive")
def adaptive(state: KlState, settings: KlRecipe, measured: float, rollouts: int) -> KlState:
    """coefficient *= 1 + clip(measured / target - 1, ±0.2) * rollouts / horizon (Ziegler et al. 2019).

    A measurement that is no finite number (nothing was measured) leaves it as it is.
    """
    if not math.isfinite(measured):
        return state
    error = min(max(measured / settings.target - 1, -0.2), 0.2)
    return replace(state, coefficient=state.coefficient * (1 + error * rollouts / settings.horizon))
