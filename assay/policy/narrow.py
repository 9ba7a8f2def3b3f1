"""Weights in the precision of the products, cast once and not once a micro-batch, and their gradients in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class NarrowWeights:
    """float32 weights as ``dtype``; a weight that has it already is taken as it is."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._asked: dict[Tensor, None] = {}
        self._copies: dict[Tensor, Tensor] | None = None

    def __call__(self, weight: Tensor) -> Tensor:
        """``weight`` in ``dtype``, without a gradient: within `kept` the same copy each time, elsewhere a new one."""
        if weight.dtype == self.dtype:
            return weight.detach()
        self._asked[weight] = None
        if self._copies is None:
            return weight.detach().to(self.dtype)
        if weight not in self._copies:
            self._copies[weight] = weight.detach().to(self.dtype)
        return self._copies[weight]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Cast each weight once, for as long as none of them changes: to be left before an optimizer's step.

        Torch's count of writes to a tensor would not tell: its fused AdamW does not add to it. All that were ever asked
        for are cast at once: among the activations of a first micro-batch the copies would leave holes in the heap.
        """
        self._copies = {weight: weight.detach().to(self.dtype) for weight in self._asked}
        try:
            yield
        finally:
            self._copies = None


ROWS = 4096
"""Rows of a gradient that are made at a time: they stay in the processor's cache until they are added."""


def add_product(weight: Tensor, left: Tensor, right: Tensor) -> Tensor | None:
    """Add left^T right, (n, N) and (n, K), to the gradient that the leaf ``weight`` has and return None.

    Where it has none, return the product. For a backward pass to return: autograd would want the whole of a matrix that
    has a row for each token of the vocabulary, and a copy of it in float32, and touching new memory costs more than the
    product does.
    """
    if weight.grad is None:
        return left.t() @ right
    for rows, some in zip(weight.grad.split(ROWS), left.split(ROWS, 1), strict=True):
        rows += some.t() @ right
    return None
