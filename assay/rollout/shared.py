"""Decoding attention that reads a group's prompt once: its rows ask together, then each its own answer by itself.

A decoding step waits for memory, and without this every row reads its own copy of the prompt's keys and values. The
two results are those of one softmax over both sets of keys, with z their logsumexps::

    w = exp(z_prompt) / (exp(z_prompt) + exp(z_answer)) = sigmoid(z_prompt - z_answer)
    o = w o_prompt + (1 - w) o_answer
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from assay.kernels.decode import CachedRows
from assay.rollout.cache import SlotCache
from assay.rollout.sequence import Asked, Sequence

KERNEL: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""torch's attention that also returns logsumexps; ``None`` where this torch has none."""


@dataclass
class Prompts:
    """The prompts' keys and values of the running groups, each once. Made anew when groups or weights change."""

    groups: tuple[Asked, ...]
    """Whose they are, in order."""
    filled: int
    """The cache's count of prefills when they were read: what was prefilled since may have changed them."""
    keys: list[Tensor] = field(default_factory=list)
    """Per layer (groups, KV, P, D)."""
    values: list[Tensor] = field(default_factory=list)

    def serve(self, groups: tuple[Asked, ...], filled: int) -> bool:
        """Are they these groups', and still so?"""
        return groups == self.groups and filled == self.filled


@dataclass(frozen=True)
class SharedPrompts:
    """Who shares a prompt with whom in one decoding step of A rows, in G groups of at most M."""

    prompts: Prompts
    members: Tensor
    """(G * M,) long: each group's rows; a short group repeats its first."""
    places: Tensor
    """(A,) long: where each row stands among the members."""
    lengths: Tensor
    """(A,) long: tokens of each row's prompt."""
    shortest: int
    """Tokens of the shortest prompt: from here on rows have keys of their own."""
    mask: Tensor | None
    """(G, 1, 1, P) additive, where prompts are of different lengths."""

    @property
    def read(self) -> int:
        """Keys read, once for each row that asks, padding too: G * M * P."""
        return len(self.members) * self.prompts.keys[0].shape[2]

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, layer: int, scaling: float | None
    ) -> Tensor:
        """Queries (A, H, 1, D) on their prompts and on own keys and values (A, KV, K, D); returns (A, 1, H * D).

        ``mask`` (A, 1, 1, K) is over the own ones.
        """
        rows, heads, _, width = query.shape
        kv_heads = keys.shape[1]
        folded = query.reshape(rows, kv_heads, heads // kv_heads, width)
        own, z_own = KERNEL(folded, keys, values, 0.0, False, attn_mask=mask, scale=scaling)
        groups = len(self.prompts.groups)
        asking = folded[self.members].unflatten(0, (groups, -1)).transpose(1, 2)  # (G, KV, M, heads of a KV head, D)
        far, z_far = KERNEL(
            asking.flatten(2, 3),
            self.prompts.keys[layer],
            self.prompts.values[layer],
            0.0,
            False,
            attn_mask=self.mask,
            scale=scaling,
        )
        far, z_far = (self._rows(part, asking.shape[2]) for part in (far, z_far[..., None]))
        share = torch.sigmoid(z_far - z_own[..., None]).to(own.dtype)
        return torch.lerp(own, far, share).reshape(rows, 1, heads * width)

    def _rows(self, grouped: Tensor, members: int) -> Tensor:
        """(G, KV, M * F, X) -> (A, KV, F, X)."""
        return grouped.unflatten(2, (members, -1)).transpose(1, 2).flatten(0, 1)[self.places]


def share_prompts(
    running: Rows[Sequence], cache: SlotCache, known: Prompts | None, dtype: torch.dtype
) -> SharedPrompts | None:
    """How the rows (row i in slot i) share prompts; ``None`` where too few do. ``known``: those of the step before."""
    members: dict[Asked, list[int]] = {}
    for slot, sequence in enumerate(running):
        members.setdefault(sequence.asked, []).append(slot)
    if len(running) < 2 * len(members):
        return None
    slots = list(members.values())
    groups = tuple(members)
    sizes = [len(running[some[0]].request.prompt.token_ids) for some in slots]
    if known is None or not known.serve(groups, cache.filled):
        first, longest = torch.tensor([some[0] for some in slots]), max(sizes)
        known = Prompts(groups, cache.filled)
        known.keys = [keys[first, :, :longest] for keys in cache.keys]
        known.values = [values[first, :, :longest] for values in cache.values]
    table = pad_sequence([torch.tensor(some) for some in slots], batch_first=True, padding_value=-1)
    flat = torch.where(table < 0, table[:, :1], table).flatten()
    held = (table >= 0).flatten().nonzero().squeeze(1)
    places = torch.empty(len(running), dtype=torch.long)
    places[flat[held]] = held
    size = torch.tensor(sizes)
    mask = None
    if min(sizes) < max(sizes):
        hidden = torch.arange(max(sizes))[None] >= size[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)[:, None, None]
    lengths = torch.tensor([len(s.request.prompt.token_ids) for s in running])
    return SharedPrompts(known, flat, places, lengths, min(sizes), mask)


def cached_rows(running: Rows[Sequence], cache: SlotCache) -> CachedRows:
    """What kernels are to read for the rows (row i in slot i): each prompt where the first of its rows has it."""
    first: dict[Asked, int] = {}
    source = [first.setdefault(sequence.asked, slot) for slot, sequence in enumerate(running)]
    lengths = [s.length for s in running]
    return CachedRows(
        keys=cache.keys,
        values=cache.values,
        order=torch.tensor(sorted(range(len(running)), key=source.__getitem__)),
        positions=torch.tensor(lengths) - 1,
        source=torch.tensor(source),
        shared=torch.tensor([len(s.request.prompt.token_ids) for s in running]),
        longest=max(lengths),
    )
