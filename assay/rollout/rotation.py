"""Rotary positions of the fused network: the model's own cosines and sines, from a table where they do not change."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

CHANGING = ("dynamic", "longrope")
"""Kinds of rotation, as transformers names them, whose frequencies depend on the longest row of a forward."""
TABLE = 1024
"""Positions that a table has at least."""


class Rotations:
    """What queries and keys are turned by, for each kind of layer that a model has."""

    def __init__(self, rotary: Any, kinds: Sequence[str], dtype: torch.dtype, device: torch.device) -> None:
        """``rotary``: the model's module, of which a copy is kept; ``kinds``: of layers; ``dtype``: of the heads."""
        self._rotary = copy.deepcopy(rotary)
        self._by_kind = "layer_type" in inspect.signature(rotary.forward).parameters
        self._like = torch.empty(0, dtype=dtype, device=device)
        named = getattr(rotary, "rope_type", CHANGING[0])
        known = [named[kind] for kind in kinds] if isinstance(named, dict) else [named]
        fixed = not any(word in name for name in known for word in CHANGING)
        self._tables: dict[str, tuple[Tensor, Tensor]] | None = {} if fixed else None
        self._kinds = tuple(kinds)

    def at(self, positions: Tensor, *, known: bool = False) -> dict[str, tuple[Tensor, Tensor]]:
        """By kind of layer: cosines and sines (B, T, 1, D) at positions (B, T), the sine's first half negative.

        ``known``: the positions may be looked at, which on a GPU would wait for it, and in a recorded step not happen
        again: then from a table, where there is one.
        """
        if not known or self._tables is None:
            turns = {kind: self._computed(positions, kind) for kind in self._kinds}
        else:
            turns = {kind: self._looked_up(positions, table) for kind, table in self._reaching(positions).items()}
        return {kind: (cos[:, :, None], sin[:, :, None]) for kind, (cos, sin) in turns.items()}

    def _computed(self, positions: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        cos, sin = self._rotary(self._like, positions, *([kind] if self._by_kind else []))
        half = sin.shape[-1] // 2
        return cos, torch.cat((-sin[..., :half], sin[..., half:]), -1)

    def _looked_up(self, positions: Tensor, table: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        cos, sin = (part.index_select(0, positions.flatten()).view(*positions.shape, -1) for part in table)
        return cos, sin

    def _reaching(self, positions: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Tables (N, D) that hold all of the positions."""
        assert self._tables is not None
        last = int(positions.max())
        held = len(next(iter(self._tables.values()))[0]) if self._tables else 0
        if last >= held:
            every = torch.arange(max(TABLE, 2 * held, 1 << last.bit_length()))[None]
            turns = {kind: self._computed(every, kind) for kind in self._kinds}
            self._tables = {kind: (cos[0], sin[0]) for kind, (cos, sin) in turns.items()}
        return self._tables
