"""A decoding step of a whole network in one call: layers.c, called with tensors on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import Structure, addressof, byref, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from assay.kernels.build import LANES, Unavailable, addresses, build
from assay.kernels.decode import CachedRows, RowsStruct
from assay.kernels.product import MapStruct, ProductWeights

DTYPE = torch.bfloat16


@dataclass(frozen=True)
class RmsWeights:
    """A normalisation."""

    weight: Tensor
    eps: float


@dataclass(frozen=True)
class LayerWeights:
    """A decoder layer. Norms that it does not have are ``None``."""

    norms: Sequence[RmsWeights | None]
    """Before and after attention, before and after the feed-forward part, of queries, of keys."""
    maps: Sequence[ProductWeights]
    """To queries, keys and values; from the heads; to gate and up; back."""
    kind: str
    """Of its rotation and of what it sees."""


class NormStruct(Structure):
    """``struct norm`` of layers.c."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [("weight", c_void_p), ("size", c_int64), ("eps", c_float)]

    @classmethod
    def of(cls, norm: RmsWeights | None) -> NormStruct:
        """The structure."""
        return cls() if norm is None else cls(*addresses(DTYPE, norm.weight), len(norm.weight), norm.eps)


class LayerStruct(Structure):
    """``struct layer`` of layers.c."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((n, NormStruct) for n in ("before", "after", "before_mlp", "after_mlp", "of_queries", "of_keys")),
        *((n, MapStruct) for n in ("qkv", "out", "gate_up", "down")),
        *((n, c_void_p) for n in ("kind", "keys", "values")),
    ]


class KindStruct(Structure):
    """``struct kind`` of layers.c."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [(name, c_void_p) for name in ("cosine", "sine", "first")]


class StepKernel:
    """Layers, a last normalisation and a head, in bfloat16, compiled for heads of ``width`` numbers.

    The weights are held, and read where they lie: one that is made anew elsewhere wants another kernel.
    """

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        last: RmsWeights,
        head: ProductWeights,
        *,
        width: int,
        group: int,
        scaling: float,
    ) -> None:
        """``group``: query heads to a KV head; ``scaling``: of scores. Raises Unavailable."""
        if width % LANES:
            raise Unavailable(f"no kernels for heads of {width}")
        self._step = build("layers", BFLOAT16=1, WIDTH=width, GROUP=group).step
        self._step.argtypes, self._step.restype = [c_void_p, c_int64] + [c_void_p] * 5 + [c_int], None
        self._weights = layers, last, head
        self._width, self._group, self._scaling, self._vocabulary = width, group, scaling, head.width
        self._layers = (LayerStruct * len(layers))(*map(_struct, layers))
        self._kinds = {layer.kind: KindStruct() for layer in layers}
        for struct, layer in zip(self._layers, layers, strict=True):
            struct.kind = addressof(self._kinds[layer.kind])
        self._last, self._head = NormStruct.of(last), MapStruct.of(head)
        if len({tuple((m.depth, m.width) for m in layer.maps) for layer in layers}) > 1:
            raise Unavailable("layers differ in size")
        qkv, out, gate_up, down = layers[0].maps
        hidden = qkv.depth
        self._widths = hidden, hidden, qkv.width, out.depth, gate_up.width, down.depth
        """Of the buffers behind the embeddings: see layers.c."""
        self._work = self._logits = torch.empty(0, dtype=DTYPE)
        """Kept from step to step, else the system would have it back and zero it anew each time."""

    def __call__(
        self,
        embedded: Tensor,
        turns: Mapping[str, tuple[Tensor, Tensor]],
        firsts: Mapping[str, Tensor],
        rows: CachedRows,
    ) -> Tensor:
        """Logits (A, V), which hold until the next call, after the tokens whose embeddings (A, H) are given, and spent.

        By kind of layer: ``turns``, the cosines and signed sines (A, D), and ``firsts``, the first position that each
        row sees (A,).
        """
        count = len(embedded)
        if any(part.numel() != count * self._width for turn in turns.values() for part in turn):
            raise ValueError(f"rotations of heads of {self._width} are wanted")
        if count * self._vocabulary > self._logits.numel():
            self._work = torch.empty(count * sum(self._widths), dtype=DTYPE)
            self._logits = torch.empty(count * self._vocabulary, dtype=DTYPE)
        places = accumulate(self._widths[:-1], initial=0)
        (begin,) = addresses(DTYPE, embedded)
        buffers = (c_void_p * (1 + len(self._widths)))(
            begin, *(self._work.data_ptr() + DTYPE.itemsize * count * place for place in places)
        )
        logits = self._logits[: count * self._vocabulary].view(count, -1)
        for kind, struct in self._kinds.items():
            struct.cosine, struct.sine = addresses(DTYPE, *turns[kind])
            (struct.first,) = addresses(torch.int64, firsts[kind])
        for struct, keys, values in zip(self._layers, rows.keys, rows.values, strict=True):
            struct.keys, struct.values = keys.data_ptr(), values.data_ptr()
        told, _scratch = RowsStruct.of(rows, self._group, self._scaling)
        self._step(
            self._layers, len(self._layers), byref(self._last), byref(self._head), byref(told), buffers,
            logits.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return logits


def _struct(layer: LayerWeights) -> LayerStruct:
    return LayerStruct(*map(NormStruct.of, layer.norms), *map(MapStruct.of, layer.maps))
