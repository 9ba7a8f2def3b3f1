"""What a decoding step does beside its matrix products, in one pass each: decode.c, called with tensors on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.kernels.build import DTYPES, LANES, Unavailable, addresses, build


@dataclass(frozen=True)
class CachedRows:
    """Who reads what of the cache in one decoding step of A rows, row i in slot i."""

    keys: Sequence[Tensor]
    """Per layer (slots, KV, capacity, D)."""
    values: Sequence[Tensor]
    order: Tensor
    """(A,) int64: the rows, those that share a prompt next to each other."""
    positions: Tensor
    """(A,) int64: of each row's new token."""
    source: Tensor
    """(A,) int64: the slot in which each row reads its prompt, its own or that of another answer to it."""
    shared: Tensor
    """(A,) int64: how many positions it reads there."""
    longest: int
    """Tokens of the longest row."""


class DecodeKernels:
    """The kernels for heads of ``width`` numbers, ``group`` query heads to a KV head, stored as ``dtype``."""

    def __init__(self, dtype: torch.dtype, width: int, group: int) -> None:
        """Raises Unavailable."""
        if dtype not in DTYPES or width % LANES:
            raise Unavailable(f"no kernels for {dtype} and heads of {width}")
        library = build("decode", BFLOAT16=DTYPES[dtype], WIDTH=width, GROUP=group)
        self._attend, self._normalise, self._gate = library.attend, library.normalise, library.gate
        self._attend.argtypes = [c_void_p] * 12 + [c_int64] * 4 + [c_float, c_int]
        self._normalise.argtypes = [c_void_p] * 4 + [c_int64] * 2 + [c_float]
        self._gate.argtypes = [c_void_p] * 2 + [c_int64] * 2
        for function in (self._attend, self._normalise, self._gate):
            function.restype = None
        self._dtype, self._width, self._group = dtype, width, group

    def attend(
        self, qkv: Tensor, cosine: Tensor, sine: Tensor, rows: CachedRows, layer: int, first: Tensor, scaling: float
    ) -> Tensor:
        """Attention of one new position a row, (A, H * D): rotates queries and keys, and stores keys and values.

        ``qkv`` (A, (H + 2 KV) * D), before rotation; ``cosine``, ``sine`` (A, D), the sine's first half negative;
        ``first`` (A,) int64: the first position that each row sees.
        """
        keys, values = rows.keys[layer], rows.values[layer]
        kv_heads, capacity = keys.shape[1:3]
        count, heads = len(qkv), kv_heads * self._group
        if cosine.shape[-1] != self._width or qkv[0].numel() != (heads + 2 * kv_heads) * self._width:
            raise ValueError(f"heads of {self._width}, {heads} and twice {kv_heads}, not {tuple(qkv.shape)}")
        mixed = qkv.new_empty(count, heads * self._width)
        threads, stride = torch.get_num_threads(), rows.longest + LANES
        scratch = torch.empty(threads, self._group, stride, dtype=torch.float32)
        self._attend(
            *addresses(self._dtype, qkv, cosine, sine, keys, values),
            *addresses(torch.int64, rows.order, rows.positions, first, rows.source, rows.shared),
            scratch.data_ptr(), mixed.data_ptr(), count, kv_heads, capacity, stride, scaling, threads,
        )  # fmt: skip
        return mixed

    def normalise(self, x: Tensor, weight: Tensor, eps: float, added: Tensor | None = None) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis, after ``added`` has been added to x in place."""
        normal, size = torch.empty_like(x), len(weight)
        x_at, weight_at = addresses(self._dtype, x, weight)
        (added_at,) = (None,) if added is None else addresses(self._dtype, added)
        self._normalise(x_at, added_at, weight_at, normal.data_ptr(), x.numel() // size, size, eps)
        return normal

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of (..., 2 F), gate and up side by side: (..., F)."""
        size = gate_up.shape[-1] // 2
        gated = gate_up.new_empty(*gate_up.shape[:-1], size)
        self._gate(*addresses(self._dtype, gate_up), gated.data_ptr(), gated.numel() // size, size)
        return gated
