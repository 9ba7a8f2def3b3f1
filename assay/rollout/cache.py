"""Keys and values of the running answers, one slot each, written in place.

Per layer (slots, kv_heads, capacity, head_dim). New memory is zero: masked positions get weight
0, and 0 times whatever lay there must be 0.

Where the system takes memory only as it is written to, there is room for all that answers can come to from the
beginning, and nothing is ever copied; elsewhere the memory grows, a layer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from assay.kernels.memory import untouched

BLOCK = 32
"""Capacity is a multiple of this many positions."""
AHEAD = 128
"""Positions to have at once for what will be sampled, where all of them would take memory: a cache that need not grow
leaves no holes in the heap."""


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

    def __init__(self, on_demand: bool = False) -> None:
        """``on_demand``: on the CPU of a system that is so (`assay.kernels.memory`)."""
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.slots = 0
        self.capacity = 0
        self.filled = 0
        """How often prompts have been written: what was read before may be another's now."""
        self.made = 0
        """How often the memory has been made anew: what was read before lies elsewhere now."""
        self._on_demand = on_demand
        self._written = (0, 0)
        """Slots and positions beyond which nothing has been written."""

    def reserve(self, slots: int, length: int, most: int = 0) -> None:
        """Have room for ``slots`` rows of ``length`` positions, which are written next, keeping what is stored.

        ``most``: positions that they can come to.
        """
        before, self._written = self._written, (max(slots, self._written[0]), max(length, self._written[1]))
        if self._on_demand:
            length = max(length, most)
        if slots <= self.slots and length <= self.capacity:
            return
        if length > self.capacity:
            length = -(-max(length, min(most, length + AHEAD), self.capacity * 5 // 4) // BLOCK) * BLOCK
        if slots > self.slots > 0 and self._on_demand:
            slots = max(slots, 2 * self.slots)
        self.slots, self.capacity = max(slots, self.slots), max(length, self.capacity)
        self.made += 1
        for memory in (self.keys, self.values):
            for layer, old in enumerate(memory):  # one at a time: the old and the new of one layer exist together
                memory[layer] = self._made(old)
                rows, positions = before
                memory[layer][:rows, :, :positions] = old[:rows, :, :positions]

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's memory, made to the shapes of its first keys and values (B, H, T, D)."""
        if index == len(self.keys):
            self.keys.append(self._made(key))
            self.values.append(self._made(value))
        return self.keys[index], self.values[index]

    def _made(self, like: Tensor) -> Tensor:
        """Zeros for what is ``like`` (_, H, _, D)."""
        shape = self.slots, like.shape[1], self.capacity, like.shape[3]
        return untouched(*shape, dtype=like.dtype) if self._on_demand else like.new_zeros(shape)

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
        self._written = (0, 0)
        self.made += 1
