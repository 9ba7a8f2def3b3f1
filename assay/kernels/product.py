"""Matrix products with arranged weights, in bfloat16: product.c, called with tensors on the CPU."""

from __future__ import annotations

from ctypes import Structure, byref, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from assay.kernels.build import addresses, build
from assay.kernels.memory import untouched

COLUMNS = 48
"""Outputs of a panel (product.c)."""


@dataclass(frozen=True)
class ProductWeights:
    """A matrix as `ProductKernel.arranged` has it."""

    panels: Tensor
    bias: Tensor | None
    depth: int
    width: int


class MapStruct(Structure):
    """``struct map`` of product.c."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("depth", c_int64),
        ("width", c_int64),
    ]

    @classmethod
    def of(cls, weights: ProductWeights) -> MapStruct:
        """Raises ValueError for panels of another shape."""
        panels, bias, depth, width = weights.panels, weights.bias, weights.depth, weights.width
        if panels.shape[:2] != (-(-width // COLUMNS), -(-depth // 2)):
            raise ValueError(f"a weight of {width} x {depth} is not arranged like {tuple(panels.shape)}")
        (bias_at,) = (None,) if bias is None else addresses(torch.bfloat16, bias)
        return cls(*addresses(torch.bfloat16, panels), bias_at, depth, width)


class ProductKernel:
    """x W^T + b, sums in float32, on processors that multiply bfloat16 (AVX512-BF16)."""

    def __init__(self) -> None:
        """Raises Unavailable."""
        library = build("product", BFLOAT16=1)
        self._product, self._arrange = library.product, library.arrange
        self._product.argtypes, self._product.restype = [c_void_p] * 3 + [c_int64, c_int], None
        self._arrange.argtypes, self._arrange.restype = [c_void_p] * 2 + [c_int64] * 2 + [c_int], None

    def arranged(self, weight: Tensor, into: Tensor | None = None) -> Tensor:
        """A weight (N, K) in the order in which a product reads it: (ceil(N / 48), ceil(K / 2), 48, 2).

        ``into``: one that was arranged before, of the same shape, which is written over.
        """
        width, depth = weight.shape
        shape = -(-width // COLUMNS), -(-depth // 2), COLUMNS, 2
        panels = untouched(*shape, dtype=torch.bfloat16) if into is None else into.view(shape)
        self._arrange(*addresses(torch.bfloat16, weight, panels), depth, width, torch.get_num_threads())
        return panels

    def __call__(self, x: Tensor, panels: Tensor, width: int, bias: Tensor | None) -> Tensor:
        """(R, K) and an arranged weight of N = ``width`` outputs to (R, N)."""
        rows, depth = x.shape
        out = x.new_empty(rows, width)
        told = MapStruct.of(ProductWeights(panels, bias, depth, width))
        self._product(byref(told), *addresses(torch.bfloat16, x, out), rows, torch.get_num_threads())
        return out
