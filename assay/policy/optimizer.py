"""AdamW, its learning-rate schedule, and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from assay.recipe.schema import UpdateRecipe


def make_optimizer(parameters: Iterable[nn.Parameter], update: UpdateRecipe) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) over the trainable parameters; only matrices are decayed."""
    trained = [p for p in parameters if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": update.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]],
        lr=update.learning_rate,
        betas=(update.beta1, update.beta2),
        eps=update.adam_eps,
        fused=True,
    )


def learning_rate_factor(update: UpdateRecipe, total: int) -> Callable[[int], float]:
    """The factor on the peak learning rate at optimizer step k (0-based) of ``total``.

    Linear warm-up over w steps, (k + 1) / w, then constant, linear or cosine decay to ``min_ratio``.
    """
    shapes: dict[str, Callable[[float], float]] = {
        "constant": lambda _: 1.0,
        "linear": lambda x: 1.0 - x,
        "cosine": lambda x: 0.5 * (1.0 + math.cos(math.pi * x)),
    }
    shape, warmup, floor = shapes[update.schedule], update.warmup_steps, update.min_ratio

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if update.schedule == "constant":
            return 1.0
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return floor + (1.0 - floor) * shape(progress)

    return factor


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale the gradients so that their global norm is at most ``max_norm``; returns the norm before, a 0-d tensor."""
    return nn.utils.clip_grad_norm_(parameters, math.inf if max_norm is None else max_norm)
