"""What an update does beside matrix products in the layers, in one pass each: sublayers.c, with tensors on the CPU."""

from __future__ import annotations

from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from assay.kernels.build import DTYPES, Unavailable, addresses, build


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
        self._pull_norm.argtypes = [c_void_p] * 6 + [c_int64] * 2 + [c_int]
        self._gate.argtypes = [c_void_p] * 3 + [c_int64]
        self._pull_gate.argtypes = [c_void_p] * 6 + [c_int64]
        for function in (self._normalise, self._pull_norm, self._gate, self._pull_gate):
            function.restype = None

    def normalise(self, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x (..., H) and weight (H,), float32, to x r w (..., H) and r = (mean(x^2) + eps)^-1/2 (...)."""
        y, r = torch.empty_like(x, dtype=self._dtype), x.new_empty(x.shape[:-1])
        self._normalise(*addresses(torch.float32, x, weight), y.data_ptr(), r.data_ptr(), r.numel(), len(weight), eps)
        return y, r

    def pull_norm(self, x: Tensor, weight: Tensor, r: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        """dx (..., H) and dw (H,), from what `normalise` was given and gave."""
        threads, dx = torch.get_num_threads(), torch.empty_like(x)
        shares = x.new_zeros(threads, len(weight))
        read = *addresses(torch.float32, x, weight, r), *addresses(self._dtype, dy)
        self._pull_norm(*read, dx.data_ptr(), shares.data_ptr(), r.numel(), len(weight), threads)
        return dx, shares.sum(0)

    def gate(self, g: Tensor, u: Tensor) -> Tensor:
        """silu(g) u."""
        h = torch.empty_like(g)
        self._gate(*addresses(self._dtype, g, u, h), h.numel())
        return h

    def pull_gate(self, g: Tensor, u: Tensor, dh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h = silu(g) u once more, dg and du; the last takes the place of ``dh``."""
        h, dg = torch.empty_like(g), torch.empty_like(g)
        self._pull_gate(*addresses(self._dtype, g, u, dh, h, dg, dh), h.numel())
        return h, dg, dh


@cache
def sublayer_kernels(dtype: torch.dtype) -> SublayerKernels | None:
    """Those for products in ``dtype``; ``None`` where there are none."""
    try:
        return SublayerKernels(dtype)
    except Unavailable:
        return None
