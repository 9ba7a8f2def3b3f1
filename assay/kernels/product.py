"""Matrix products with arranged weights, in bfloat16: product.c, called with tensors on the CPU."""

from __future__ import annotations

from ctypes import c_int, c_int64, c_void_p

import torch
from torch import Tensor

from assay.kernels.build import addresses, build

COLUMNS = 48
"""Outputs of a panel (product.c)."""


class ProductKernel:
    """x W^T + b, sums in float32, on processors that multiply bfloat16 (AVX512-BF16)."""

    def __init__(self) -> None:
        """Raises Unavailable."""
        library = build("product", BFLOAT16=1)
        self._product, self._arrange = library.product, library.arrange
        self._product.argtypes, self._product.restype = [c_void_p] * 4 + [c_int64] * 3 + [c_int], None
        self._arrange.argtypes, self._arrange.restype = [c_void_p] * 2 + [c_int64] * 2 + [c_int], None

    def arranged(self, weight: Tensor) -> Tensor:
        """A weight (N, K) in the order in which a product reads it: (ceil(N / 48), ceil(K / 2), 48, 2)."""
        width, depth = weight.shape
        panels = weight.new_empty(-(-width // COLUMNS), -(-depth // 2), COLUMNS, 2)
        self._arrange(*addresses(torch.bfloat16, weight, panels), depth, width, torch.get_num_threads())
        return panels

    def __call__(self, x: Tensor, panels: Tensor, width: int, bias: Tensor | None) -> Tensor:
        """(R, K) and an arranged weight of N = ``width`` outputs to (R, N)."""
        rows, depth = x.shape
        if panels.shape[:2] != (-(-width // COLUMNS), -(-depth // 2)):
            raise ValueError(f"a weight of {width} x {depth} is not arranged like {tuple(panels.shape)}")
        out = x.new_empty(rows, width)
        (bias_at,) = (None,) if bias is None else addresses(torch.bfloat16, bias)
        x_at, panels_at, out_at = addresses(torch.bfloat16, x, panels, out)
        self._product(x_at, panels_at, bias_at, out_at, rows, depth, width, torch.get_num_threads())
        return out
