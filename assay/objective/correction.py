"""Importance weights for a sampler that is not the anchor, and what they reject: constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.objective.layout import Layout, only
from assay.objective.ratio import LOG_LIMIT
from assay.recipe.schema import CorrectionRecipe
from assay.registry import Registry


@dataclass(frozen=True)
class Correction:
    """Weights and rejections; (N,) both."""

    weights: Tensor
    """w, to multiply the policy loss; 1 without correction."""
    rejected: Tensor
    """bool: tokens that leave numerator and denominator. Their rollout stays in its group's baseline."""


WeightKind = Callable[[Tensor, CorrectionRecipe], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class CorrectionKind:
    """``compute(w, settings)`` of the raw weights (N,) -> weights (N,), rejected (N,) bool."""

    compute: WeightKind
    formula: str
    keys: frozenset[str]


CORRECTIONS: Registry[CorrectionKind] = Registry("correction")
"""Corrections by the name that ``objective.correction.kind`` takes."""


def correction(name: str, *, formula: str, keys: tuple[str, ...] = ()) -> Callable[[WeightKind], WeightKind]:
    """Return a decorator that registers a correction under ``name``."""

    def file(compute: WeightKind) -> WeightKind:
        CORRECTIONS.register(name)(CorrectionKind(compute, formula, frozenset(keys)))
        return compute

    return file


@correction("none", formula="1")
def uncorrected(weights: Tensor, settings: CorrectionRecipe) -> tuple[Tensor, Tensor]:
    """w = 1."""
    return torch.ones_like(weights), torch.zeros_like(weights, dtype=torch.bool)


@correction("truncate", formula="min(w, {high})", keys=("level", "high"))
def truncate(weights: Tensor, settings: CorrectionRecipe) -> tuple[Tensor, Tensor]:
    """min(w, high): truncated importance sampling (Yao et al. 2025, TIS)."""
    return weights.clamp(max=settings.high), torch.zeros_like(weights, dtype=torch.bool)


@correction("mask", formula="w within [{low}, {high}], else rejected", keys=("level", "low", "high"))
def mask(weights: Tensor, settings: CorrectionRecipe) -> tuple[Tensor, Tensor]:
    """w within [low, high]; outside it the token is rejected (Ling Team 2025, IcePop)."""
    rejected = (weights < settings.low) | (weights > settings.high)
    return only(weights, ~rejected), rejected


def log_weights(anchor_logprobs: Tensor, sampler_logprobs: Tensor, tokens: Tensor) -> Tensor:
    """anchor - sampler at ``tokens`` (N,) bool, 0 elsewhere (N,)."""
    return only(anchor_logprobs, tokens) - only(sampler_logprobs, tokens)


def correct(logs: Tensor, tokens: Tensor, layout: Layout, settings: CorrectionRecipe) -> Correction:
    """Weigh and reject by ``logs`` (N,), the log-weights of the ``tokens`` (N,) bool that have one.

    A token's weight is exp(log-weight), a sequence's exp of their sum, clamped to ±20 before exp. A sequence
    whose geometric mean, exp of the mean, leaves [reject_low, reject_high] is rejected whole.
    """
    by_sequence = settings.level == "sequence"
    raw = layout.sum_by_sequence(logs, tokens)[layout.sequence] if by_sequence else logs
    kind = CORRECTIONS[settings.kind]
    weights, rejected = kind.compute(raw.clamp(-LOG_LIMIT, LOG_LIMIT).exp(), settings)
    mean = layout.mean_by_sequence(logs, tokens).exp()
    outside = torch.zeros_like(mean, dtype=torch.bool)
    if settings.reject_low is not None:
        outside |= mean < settings.reject_low
    if settings.reject_high is not None:
        outside |= mean > settings.reject_high
    rejected = tokens & (rejected | outside[layout.sequence])
    return Correction(torch.where(tokens & ~rejected, weights, torch.zeros_like(weights)), rejected)
