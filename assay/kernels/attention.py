"""Attention of packed trees and its gradients, one call a layer: attention.c, called with tensors on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.kernels.build import DTYPES, LANES, Unavailable, addresses, build

_ARRAYS = ("query", "key", "value", "mixed_in", "grad", "cosine", "sine", "mixed", "query_grad", "key_grad")
_OTHERS = ("value_grad", "normaliser", "parts", "spans")
_SIZES = ("tokens", "n_parts", "kv_heads", "stem", "longest")


class _Task(ctypes.Structure):
    """As attention.c has it."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*_ARRAYS, *_OTHERS)),
        *((name, ctypes.c_int64) for name in _SIZES),
        ("scaling", ctypes.c_float),
    ]


Bounds = tuple[int, int]
"""Begin and end."""


@dataclass(frozen=True)
class Spans:
    """Where the trees of N tokens lie: first the stem, which all tokens see, then each tree's prompt and answers."""

    parts: Tensor
    """(P, 4) int64: begin and end of a tree's prompt, first and last + 1 of some of its answers in ``answers``. A tree
    is one part or several, one after the other; a stem is the first part's prompt."""
    answers: Tensor
    """(S, 2) int64: begin and end of each."""
    stem: int
    """Tokens of the stem, 0 where there is none."""
    longest: int
    """At least the tokens of the longest prompt with its stem, and of the longest answer."""

    @classmethod
    def of(cls, prompts: Sequence[Bounds], answers: Sequence[Sequence[Bounds]], stem: int, pieces: int = 1) -> Spans:
        """From where each tree's prompt and answers begin and end; the stem is before all of them.

        ``pieces``: parts that are wanted in all, to keep as many threads busy.
        """
        parts = [[0, stem, 0, 0]] if stem else []
        first, each = 0, -(-pieces // len(prompts))
        for (begin, end), mine in zip(prompts, answers, strict=True):
            for some in range(0, len(mine), max(1, -(-len(mine) // each))):
                last = min(some + max(1, -(-len(mine) // each)), len(mine))
                parts.append([begin, end, first + some, first + last])
            first += len(mine)
        flat = [bounds for mine in answers for bounds in mine]
        longest = max(*(stem + end - begin for begin, end in prompts), *(end - begin for begin, end in flat))
        return cls(torch.tensor(parts), torch.tensor(flat), stem, longest)


@dataclass(frozen=True)
class Turn:
    """Rotary positions: x cos + (-x_2, x_1) sin, both (N, D) float32."""

    cosine: Tensor
    sine: Tensor


class AttentionKernels:
    """The kernels for heads of ``width`` numbers, ``group`` query heads to a KV head, given as ``dtype``.

    Everything is computed in float32, and rounded when it is stored.
    """

    def __init__(self, dtype: torch.dtype, width: int, group: int) -> None:
        """Raises Unavailable."""
        if dtype not in DTYPES or width % LANES:
            raise Unavailable(f"no kernels for {dtype} and heads of {width}")
        library = build("attention", BFLOAT16=DTYPES[dtype], WIDTH=width, GROUP=group)
        self._dtype, self._width = dtype, width
        self._attend, self._pull = library.attend_forest, library.pull_forest
        self._attend.argtypes, self._pull.argtypes = [ctypes.c_void_p], [ctypes.c_void_p] * 2

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float, turn: Turn | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries (N, H, D), keys and values (N, KV, D) to results (N, H, D) and logsumexps (N, H) in float32.

        With ``turn`` queries and keys are as they were before their positions turned them. Raises MemoryError.
        """
        mixed = torch.empty_like(query)
        normaliser = torch.empty(query.shape[:2], dtype=torch.float32)
        arrays = {"query": query, "key": key, "value": value, "mixed": mixed}
        _called(self._attend, self._task(arrays, normaliser, spans, scaling, turn))
        return mixed, normaliser

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mixed: Tensor,
        normaliser: Tensor,
        spans: Spans,
        scaling: float,
        turn: Turn | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of queries, keys and values from that of the results (N, H, D). Raises MemoryError."""
        made = {"query_grad": query, "key_grad": key, "value_grad": value}
        made = {name: torch.empty_like(like) for name, like in made.items()}
        read = {"query": query, "key": key, "value": value, "mixed_in": mixed, "grad": grad}
        shares = torch.empty(len(spans.parts), key.shape[1], 2, spans.longest, key.shape[2], dtype=torch.float32)
        _called(self._pull, self._task(read | made, normaliser, spans, scaling, turn), shares.data_ptr())
        return made["query_grad"], made["key_grad"], made["value_grad"]

    def _task(
        self, arrays: dict[str, Tensor], normaliser: Tensor, spans: Spans, scaling: float, turn: Turn | None
    ) -> _Task:
        key = arrays["key"]
        numbers = {"normaliser": normaliser}
        if turn is not None:
            if turn.cosine.shape != (len(key), self._width) or turn.sine.shape != turn.cosine.shape:
                raise ValueError(f"positions turn heads of {self._width}, not {tuple(turn.cosine.shape)}")
            numbers |= {"cosine": turn.cosine, "sine": turn.sine}
        places = {"parts": spans.parts, "spans": spans.answers}
        sizes = (len(key), len(spans.parts), key.shape[1], spans.stem, spans.longest)
        return _Task(
            **dict(zip(arrays, addresses(self._dtype, *arrays.values()), strict=True)),
            **dict(zip(numbers, addresses(torch.float32, *numbers.values()), strict=True)),
            **dict(zip(places, addresses(torch.int64, *places.values()), strict=True)),
            **dict(zip(_SIZES, sizes, strict=True)),
            scaling=scaling,
        )


def _called(function: Any, task: _Task, *more: int) -> None:
    if function(ctypes.addressof(task), *more):
        raise MemoryError("no memory for attention: fewer tokens in a micro-batch (update.tokens_per_microbatch)")
