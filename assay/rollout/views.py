"""What a forward sees of the cache; a transformers model takes them for ``past_key_values``.

A prefill writes prompts, once for all slots that share one, behind what all of them begin with; a decoding step writes
one position per slot and attends to slices, never to copies.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from assay.kernels.decode import CachedRows
from assay.rollout.cache import SlotCache
from assay.rollout.shared import SharedPrompts
from assay.rollout.stem import Stem


class CacheView(Protocol):
    """What a forward sees of the memory: it hands in new keys and values and gets those to attend to."""

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store one layer's keys and values (B, H, T, D); return what its queries attend to, (B, H, L, D)."""
        ...

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens cached before this call."""
        ...

    @property
    def shared(self) -> SharedPrompts | None:
        """What attends to the prompts that rows share, where ``update`` leaves them out."""
        ...

    @property
    def rows(self) -> CachedRows | None:
        """What a kernel is to read and write in the cache, in the place of ``update`` and all attention."""
        ...


class PrefillView:
    """Stores left-padded prompts (P, H, T, D): row ``rows[i]``, less its padding, goes to ``slots[i]``.

    ``stem``: what all of them begin with; the rows then hold the rest.
    """

    def __init__(
        self, cache: SlotCache, slots: Tensor, rows: Tensor, padding: Tensor, width: int, stem: Stem | None
    ) -> None:
        """``slots`` on the CPU; all else where the cache is."""
        self.cache = cache
        cache.filled += 1
        slots, order = slots.sort()
        first, last = int(slots[0]), int(slots[-1])
        together = last - first + 1 == len(slots)  # a slice is written to far faster
        self.slots = slice(first, last + 1) if together else slots.to(rows.device)
        rows = rows[order.to(rows.device)]
        self.distinct = rows
        self.stem = stem
        self.start = stem.length if stem else 0
        # Where padding was, the last position is repeated behind the prompt's end: finite, and masked.
        self.places = (padding[rows][:, None] + torch.arange(width, device=rows.device)).clamp(max=width - 1)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store one layer's keys and values (P, H, T, D) and return them to attend to, behind those of the stem."""
        keys, values = self.cache.layer(layer_idx, key, value)
        for memory, new in ((keys, key), (values, value)):
            shifted = new.transpose(1, 2)[self.distinct[:, None], self.places].transpose(1, 2)
            memory[self.slots, :, self.start : self.start + new.shape[2]] = shifted
        if self.stem is None:
            return key, value
        first, second = self.stem.layers[layer_idx]
        keys[self.slots, :, : self.start], values[self.slots, :, : self.start] = first, second
        first, second = (part.expand(len(key), -1, -1, -1) for part in (first, second))
        return torch.cat([first, key], 2), torch.cat([second, value], 2)

    shared = None
    rows = None
    """A prefill attends to what it is given."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens cached before this call."""
        return self.start


class DecodeView:
    """Stores one new position per running slot and shows the positions from ``start`` to ``width`` of all of them.

    ``shared``: attends to what lies before ``start``, the prompts that rows share. ``rows``: see `CacheView`.
    """

    def __init__(
        self,
        cache: SlotCache,
        positions: Tensor,
        width: int,
        shared: SharedPrompts | None = None,
        rows: CachedRows | None = None,
    ) -> None:
        self.cache = cache
        self.positions = positions
        self._slots = torch.arange(len(positions), device=positions.device)
        self.width = width
        self.shared = shared
        self.rows = rows
        self.start = 0 if shared is None else shared.shortest

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write (A, H, 1, D) at each row's position; return (A, H, width - start, D) views of the memory."""
        keys, values = self.cache.layer(layer_idx, key, value)
        keys[self._slots, :, self.positions] = key[:, :, 0]
        values[self._slots, :, self.positions] = value[:, :, 0]
        n = len(self._slots)
        return keys[:n, :, self.start : self.width], values[:n, :, self.start : self.width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens cached before this call, in the longest row."""
        return self.width - 1
