"""Recurrences that run backwards along a sequence's tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.objective.layout import Layout


def discounted_sums(values: Tensor, factor: float, layout: Layout, where: Tensor) -> Tensor:
    """y_t = x_t + factor * y_next, next being the sequence's next token in ``where``; 0 elsewhere (N,)."""
    out = torch.zeros_like(values)
    carry = values.new_zeros(layout.n_sequences)
    for places in layout.from_the_end(where):
        sequences = layout.sequence[places]
        out[places] = values[places] + factor * carry[sequences]
        carry[sequences] = out[places]
    return out


def next_values(values: Tensor, layout: Layout, where: Tensor) -> Tensor:
    """x of the sequence's next token in ``where``; 0 after the last one and outside ``where`` (N,)."""
    out = torch.zeros_like(values)
    carry = values.new_zeros(layout.n_sequences)
    for places in layout.from_the_end(where):
        sequences = layout.sequence[places]
        out[places] = carry[sequences]
        carry[sequences] = values[places]
    return out
