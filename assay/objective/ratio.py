"""Importance ratios of the policy to the anchor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from assay.objective.layout import Layout, only
from assay.registry import Registry

LOG_LIMIT = 20.0
"""Log-ratios are clamped to ±this before exp: e^20 is 5e8, and beyond it a gradient is noise."""

RatioFunction = Callable[[Tensor, Tensor, Tensor, Layout], Tensor]


@dataclass(frozen=True)
class Ratio:
    """A registered ratio: ``compute(logprobs, log_ratio, counts, layout)`` -> (N,)."""

    compute: RatioFunction
    formula: str


RATIOS: Registry[Ratio] = Registry("ratio")
"""Ratios by the name that ``objective.ratio`` takes."""


def ratio(name: str, *, formula: str) -> Callable[[RatioFunction], RatioFunction]:
    """Return a decorator that registers a ratio under ``name``."""

    def file(compute: RatioFunction) -> RatioFunction:
        RATIOS.register(name)(Ratio(compute, formula))
        return compute

    return file


def log_ratio(policy_logprobs: Tensor, anchor_logprobs: Tensor, counts: Tensor) -> Tensor:
    """d = policy - anchor, clamped to ±20; 0 outside ``counts``, whatever stands there (N,) -> (N,)."""
    return (only(policy_logprobs, counts) - only(anchor_logprobs, counts)).clamp(-LOG_LIMIT, LOG_LIMIT)


@ratio("token", formula="r_t = exp(policy_t - anchor_t)")
def token_ratio(logprobs: Tensor, log_ratio: Tensor, counts: Tensor, layout: Layout) -> Tensor:
    """r_t = exp(d_t) (Schulman et al. 2017, PPO)."""
    return log_ratio.exp()


@ratio("sequence", formula="r_t = s, s = exp(mean over the rollout's tokens of policy_t - anchor_t)")
def sequence_ratio(logprobs: Tensor, log_ratio: Tensor, counts: Tensor, layout: Layout) -> Tensor:
    """s_t = sg[s] exp(logp_t - sg[logp_t]), s = exp(mean of d over what counts) (Zheng et al. 2025, GSPO).

    The value is the sequence's, the gradient the token's own, so that a token's advantage stays its own.
    """
    sequence = layout.mean_by_sequence(log_ratio.detach(), counts).exp()
    return only(sequence[layout.sequence] * (logprobs - logprobs.detach()).exp(), counts)
