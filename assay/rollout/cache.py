"""Keys and values of the running answers, one slot each, preallocated and written in place.

Per layer (slots, kv_heads, capacity, head_dim). The two views below are what a transformers model takes for
``past_key_values``: a prefill writes whole prompts, once for all slots that share one; a decoding step writes
one position per slot and attends to slices, never to copies. New memory is zero: masked positions get weight
0, and 0 times whatever lay there must be 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from assay.rollout.shared import SharedPrompts

BLOCK = 128
"""Capacity grows by multiples of this many positions."""


@dataclass(frozen=True)
class Prefix:
    """A prompt's keys and values kept aside for siblings that found no slot yet."""

    token_ids: tuple[int, ...]
    keys: tuple[Tensor, ...]
    """Per layer (kv_heads, T, head_dim)."""
    values: tuple[Tensor, ...]
    logits: Tensor
    """(V,) at the last token."""


class SlotCache:
    """The memory behind all slots."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.slots = 0
        self.capacity = 0
        self.filled = 0
        """How often prompts have been written: what was read before may be another's now."""

    def reserve(self, slots: int, length: int) -> None:
        """Grow, keeping what is stored, until ``slots`` rows of ``length`` positions fit."""
        if slots <= self.slots and length <= self.capacity:
            return
        if length > self.capacity:
            length = -(-max(length, self.capacity * 5 // 4) // BLOCK) * BLOCK
        self.slots, self.capacity = max(slots, self.slots), max(length, self.capacity)
        for memory in (self.keys, self.values):
            for layer, old in enumerate(memory):  # one at a time: the old and the new of one layer exist together
                memory[layer] = self._grown(old)

    def _grown(self, old: Tensor) -> Tensor:
        new = old.new_zeros(self.slots, old.shape[1], self.capacity, old.shape[3])
        new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's memory, made to the shapes of its first keys and values (B, H, T, D)."""
        if index == len(self.keys):
            self.keys.append(key.new_zeros(self.slots, key.shape[1], self.capacity, key.shape[3]))
            self.values.append(value.new_zeros(self.slots, value.shape[1], self.capacity, value.shape[3]))
        return self.keys[index], self.values[index]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of one slot to another."""
        for memory in (*self.keys, *self.values):
            memory[target, :, :length] = memory[source, :, :length]

    def save(self, slot: int, token_ids: tuple[int, ...], logits: Tensor) -> Prefix:
        """Copy a slot's prompt aside."""
        n = len(token_ids)
        keys = tuple(k[slot, :, :n].clone() for k in self.keys)
        return Prefix(token_ids, keys, tuple(v[slot, :, :n].clone() for v in self.values), logits.clone())

    def restore(self, prefix: Prefix, slots: list[int]) -> None:
        """Write a stored prompt into slots."""
        n = len(prefix.token_ids)
        self.filled += 1
        for memory, part in zip((*self.keys, *self.values), (*prefix.keys, *prefix.values), strict=True):
            memory[slots, :, :n] = part

    def clear(self) -> None:
        """Give the memory back."""
        self.keys, self.values, self.slots, self.capacity = [], [], 0, 0


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
