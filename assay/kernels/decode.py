"""What a decoding step does beside its matrix products, in one pass each: decode.c, called with tensors on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, byref, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar

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


class RowsStruct(Structure):
    """``struct rows`` of decode.c."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_void_p) for name in ("order", "positions", "source", "shared", "scratch")),
        *((name, c_int64) for name in ("n", "kv_heads", "capacity", "stride")),
        ("scaling", c_float),
    ]

    @classmethod
    def of(cls, rows: CachedRows, group: int, scaling: float) -> tuple[RowsStruct, Tensor]:
        """The structure, and what it lies in beside ``rows``: to be held as long."""
        kv_heads, capacity = rows.keys[0].shape[1:3]
        stride = rows.longest + LANES
        scratch = torch.empty(torch.get_num_threads(), group, stride, dtype=torch.float32)
        places = addresses(torch.int64, rows.order, rows.positions, rows.source, rows.shared)
        return cls(*places, scratch.data_ptr(), len(rows.order), kv_heads, capacity, stride, scaling), scratch


class DecodeKernels:
    """The kernels for heads of ``width`` numbers, ``group`` query heads to a KV head, stored as ``dtype``."""

    def __init__(self, dtype: torch.dtype, width: int, group: int) -> None:
        """Raises Unavailable."""
        if dtype not in DTYPES or width % LANES:
            raise Unavailable(f"no kernels for {dtype} and heads of {width}")
        library = build("decode", BFLOAT16=DTYPES[dtype], WIDTH=width, GROUP=group)
        self._attend, self._normalise, self._gate = library.attend, library.normalise, library.gate
        self._attend.argtypes = [c_void_p] * 8 + [c_int]
        self._normalise.argtypes = [c_void_p] * 4 + [c_int64] * 2 + [c_float]
        self._gate.argtypes = [c_void_p] * 2 + [c_int64] * 2
        for function in (self._attend, self._normalise, self._gate):
            function.restype = None
        self._dtype, self._group = dtype, group
        self.width = width
        """Numbers of a head."""

    def attend(
        self, qkv: Tensor, cosine: Tensor, sine: Tensor, rows: CachedRows, layer: int, first: Tensor, scaling: float
    ) -> Tensor:
        """Attention of one new position a row, (A, H * D): rotates queries and keys, and stores keys and values.

        ``qkv`` (A, (H + 2 KV) * D), before rotation; ``cosine``, ``sine`` (A, D), the sine's first half negative;
        ``first`` (A,) int64: the first position that each row sees.
        """
        keys, values = rows.keys[layer], rows.values[layer]
        count, kv_heads = len(qkv), keys.shape[1]
        heads = kv_heads * self._group
        if cosine.shape[-1] != self.width or qkv[0].numel() != (heads + 2 * kv_heads) * self.width:
            raise ValueError(f"heads of {self.width}, {heads} and twice {kv_heads}, not {tuple(qkv.shape)}")
        mixed = qkv.new_empty(count, heads * self.width)
        told, _held = RowsStruct.of(rows, self._group, scaling)
        qkv_at, *turn, keys_at, values_at = addresses(self._dtype, qkv, cosine, sine, keys, values)
        (first_at,) = addresses(torch.int64, first)
        threads = torch.get_num_threads()
        self._attend(byref(told), qkv_at, *turn, first_at, keys_at, values_at, mixed.data_ptr(), threads)
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
