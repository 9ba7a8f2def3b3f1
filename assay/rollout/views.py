"""What a forward sees of the cache; a transformers model takes them for ``past_key_values``.

A prefill writes whole prompts, once for all slots that share one; a decoding step writes one position per slot and
attends to slices, never to copies.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from assay.rollout.cache import SlotCache
from assay.rollout.shared import SharedPrompts


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


class PrefillView:
    """Stores left-padded prompts (P, H, T, D): row ``rows[i]``, less its padding, goes to ``slots[i]``."""

    def __init__(self, cache: SlotCache, slots: Tensor, rows: Tensor, padding: Tensor, width: int) -> None:
        self.cache = cache
        cache.filled += 1
        self.slots = slots
        self.rows = rows
        # Where padding was, the last position is repeated behind the prompt's end: finite, and masked.
        self.places = (padding[rows][:, None] + torch.arange(width, device=rows.device)).clamp(max=width - 1)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store one layer's keys and values (P, H, T, D) and return them to attend to."""
        for memory, new in zip(self.cache.layer(layer_idx, key, value), (key, value), strict=True):
            shifted = new.transpose(1, 2)[self.rows[:, None], self.places].transpose(1, 2)
            memory[self.slots, :, : new.shape[2]] = shifted
        return key, value

    shared = None
    """A prefill attends to what it is given."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens cached before this call: none."""
        return 0


class DecodeView:
    """Stores one new position per running slot and shows the positions from ``start`` to ``width`` of all of them.

    ``shared``: attends to what lies before ``start``, the prompts that rows share.
    """

    def __init__(self, cache: SlotCache, positions: Tensor, width: int, shared: SharedPrompts | None = None) -> None:
        self.cache = cache
        self.positions = positions
        self.rows = torch.arange(len(positions), device=positions.device)
        self.width = width
        self.shared = shared
        self.start = 0 if shared is None else shared.shortest

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write (A, H, 1, D) at each row's position; return (A, H, width - start, D) views of the memory."""
        keys, values = self.cache.layer(layer_idx, key, value)
        keys[self.rows, :, self.positions] = key[:, :, 0]
        values[self.rows, :, self.positions] = value[:, :, 0]
        n = len(self.rows)
        return keys[:n, :, self.start : self.width], values[:n, :, self.start : self.width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens cached before this call, in the longest row."""
        return self.width - 1
