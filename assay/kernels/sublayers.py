"""What an update does beside matrix products in the layers, in one pass each: sublayers.c, with tensors on the CPU."""

from __future__ import annotations

from ctypes import c_float, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from assay.kernels.build import DTYPES, Unavailable, build


class SublayerKernels:
    """The kernels; what products take and give is ``dtype``, everything else float32. See :mod:`policy.sublayers`."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Raises Unavailable."""
        if dtype not in DTYPES:
            raise Unavailable(f"no kernels for {dtype}")
        library = build("sublayers", BFLOAT16=DTYPES[dtype])
        self._dtype = dtype
        self._normalise, self._pull_norm = library.normalise, library.pull_norm
        self._gate, self._pull_gate = library.gate, library.pull_gate
        self._normalise.argtypes = [c_void_p] * 4 + [c_int64] * 2 + [c_float]
        self._pull_norm.argtypes = [c_void_p] * 6 + [c_int64] * 2
        self._gate.argtypes = [c_void_p] * 3 + [c_int64]
        self._pull_gate.argtypes = [c_void_p] * 6 + [c_int64]
        for function in (self._normalise, self._pull_norm, self._gate, self._pull_gate):
            function.restype = None

    def normalise(self, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x (..., H) and weight (H,), float32, to x r w (..., H) and r = (mean(x^2) + eps)^-1/2 (...)."""
        y, r = torch.empty_like(x, dtype=self._dtype), x.new_empty(x.shape[:-1])
        self._normalise(*_addresses(x, weight, y, r), r.numel(), len(weight), eps)
        return y, r

    def pull_norm(self, x: Tensor, weight: Tensor, r: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        """dx (..., H) and dw (H,), from what `normalise` was given and gave."""
        dx, shares = torch.empty_like(x), torch.zeros(torch.get_num_threads(), len(weight))
        self._pull_norm(*_addresses(x, weight, r, dy, dx, shares), r.numel(), len(weight))
        return dx, shares.sum(0)

    def gate(self, g: Tensor, u: Tensor) -> Tensor:
        """silu(g) u."""
        h = torch.empty_like(g)
        self._gate(*_addresses(g, u, h), h.numel())
        return h

    def pull_gate(self, g: Tensor, u: Tensor, dh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h = silu(g) u once more, dg and du; the last takes the place of ``dh``."""
        h, dg = torch.empty_like(g), torch.empty_like(g)
        self._pull_gate(*_addresses(g, u, dh, h, dg, dh), h.numel())
        return h, dg, dh


@cache
def sublayer_kernels(dtype: torch.dtype) -> SublayerKernels | None:
    """Those for products in ``dtype``; ``None`` where there are none."""
    try:
        return SublayerKernels(dtype)
    except Unavailable:
        return None


def _addresses(*tensors: Tensor) -> tuple[int, ...]:
    for tensor in tensors:
        assert tensor.is_contiguous(), tensor.shape
    return tuple(tensor.data_ptr() for tensor in tensors)
