"""Model calls: prefill of distinct prompts in batches, and one decoding step for all running answers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from assay.kernels.memory import on_demand
from assay.rollout.cache import Prefix, SlotCache
from assay.rollout.engine import Stats
from assay.rollout.graphs import DecodeGraphs, Recorder
from assay.rollout.network import Network, compiled_step, decode_step
from assay.rollout.sequence import Sequence
from assay.rollout.shared import Prompts, SharedPrompts, cached_rows, share_prompts
from assay.rollout.stem import Stem, stem_length
from assay.rollout.views import PrefillView

Batch = list[tuple[tuple[int, ...], list[int]]]
"""Token ids to forward, each with the slots that begin with them."""


class ModelRunner:
    """A network, its cache, and the counts of what was computed."""

    def __init__(self, network: Network, prefill_tokens: int, recorder: Recorder | None = None) -> None:
        """``prefill_tokens``: most positions of one prefill, padding included; a longer prompt is alone.

        ``recorder``: of decoding steps (`assay.rollout.graphs`); rows then do not share their prompts.
        """
        self.network = network
        self.prefill_tokens = prefill_tokens
        self.cache = SlotCache(network.device.type == "cpu" and on_demand())
        self.graphs = DecodeGraphs(network, self.cache, recorder) if recorder else None
        self.stats = Stats()
        self.busy: Callable[[], None] | None = None
        """Called after each batch of a prefill, which may take long."""
        self._prompts: Prompts | None = None
        self._prefix: Prefix | None = None

    def clear(self) -> None:
        """Give the cache's memory back."""
        self.cache.clear()
        if self.graphs:
            self.graphs.clear()
        self._prompts = self._prefix = None

    def refreshed(self) -> None:
        """The network has followed the trainer's weights: drop what was computed with the old ones."""
        self._prefix = None
        if self.graphs:
            self.graphs.refreshed()

    def fill(self, sequences: list[Sequence], slots: list[int], next_up: tuple[int, ...] | None) -> Tensor:
        """Logits (S, V) of sequences that enter slots: from the stored prefix where it fits, else by prefill.

        ``next_up``: tokens of the first that waits; where they are filled in now, they are stored for it. The queue is
        in order, so one prefix is enough.
        """
        stored = self._prefix.token_ids if self._prefix else None
        known = [i for i, s in enumerate(sequences) if s.everything() == stored]
        unknown = [i for i in range(len(sequences)) if i not in set(known)]
        parts: list[Tensor] = []
        if known and self._prefix:
            parts.append(self.restore(self._prefix, [sequences[i] for i in known], [slots[i] for i in known]))
        if unknown:
            parts.append(self.prefill([sequences[i] for i in unknown], [slots[i] for i in unknown]))
        logits = parts[0]
        if len(parts) > 1:
            order = torch.tensor(known + unknown).argsort()
            logits = torch.cat(parts)[order.to(logits.device)]
        self._store(sequences, slots, logits, next_up)
        return logits

    def _store(
        self, sequences: list[Sequence], slots: list[int], logits: Tensor, next_up: tuple[int, ...] | None
    ) -> None:
        if self._prefix and self._prefix.token_ids != next_up:
            self._prefix = None
        if next_up is None or self._prefix:
            return
        for row, (sequence, slot) in enumerate(zip(sequences, slots, strict=True)):
            if sequence.everything() == next_up:
                self._prefix = self.cache.save(slot, next_up, logits[row])
                return

    def prefill(self, sequences: list[Sequence], slots: list[int]) -> Tensor:
        """Fill the slots with all tokens so far; return the logits at the last one, (S, V) as ``slots``.

        Sequences with the same tokens (a group at its start) are forwarded once, those of like length together, and
        what all of them begin with (a system message) once for all.
        """
        distinct: dict[tuple[int, ...], list[int]] = {}
        for sequence, slot in zip(sequences, slots, strict=True):
            distinct.setdefault(sequence.everything(), []).append(slot)
            sequence.cached = sequence.length
        self.cache.reserve(max(slots) + 1, max(s.length for s in sequences), max(map(_most, sequences)))
        work = sorted(distinct.items(), key=lambda item: len(item[0]))
        place = {slot: row for row, (_, shared) in enumerate(work) for slot in shared}
        stem = self._stem([tokens for tokens, _ in work])
        if stem:
            work = [(tokens[stem.length :], shared) for tokens, shared in work]
        logits = torch.cat([self._prefill(batch, stem) for batch in self._batches(work)])
        return logits[[place[slot] for slot in slots]]

    def _batches(self, work: Batch) -> list[Batch]:
        """Cut the work, in order, so that rows times longest row stays within the budget."""
        batches: list[Batch] = []
        longest = 0
        for tokens, slots in work:
            widest = max(longest, len(tokens))
            if not batches or widest * (len(batches[-1]) + 1) > self.prefill_tokens:
                batches.append([])
                widest = len(tokens)
            batches[-1].append((tokens, slots))
            longest = widest
        return batches

    def _stem(self, prompts: list[tuple[int, ...]]) -> Stem | None:
        """Forward what the prompts begin with, where that is enough to pay."""
        length = stem_length(prompts)
        if not length:
            return None
        stem, positions = Stem(length), self._put(torch.arange(length)[None])
        self.network.forward(
            self._put(torch.tensor([prompts[0][:length]])), positions, self._mask(positions, positions), stem
        )
        self.stats = replace(self.stats, prefill_tokens=self.stats.prefill_tokens + length)
        return stem

    def _prefill(self, batch: Batch, stem: Stem | None) -> Tensor:
        """Logits (P, V) of one forward over left-padded rows: the head is applied to the last position alone."""
        lengths = torch.tensor([len(tokens) for tokens, _ in batch])
        width = int(lengths.max())
        padding = width - lengths
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        for row, (tokens, _) in enumerate(batch):
            ids[row, width - len(tokens) :] = torch.tensor(tokens)
        positions = torch.arange(width)[None] - padding[:, None]
        slots = torch.tensor([slot for _, shared in batch for slot in shared])
        rows = torch.tensor([row for row, (_, shared) in enumerate(batch) for _ in shared])
        view = PrefillView(self.cache, slots, self._put(rows), self._put(padding), width, stem)
        positions = self._put(torch.where(positions < 0, positions, positions + view.start))
        behind = torch.arange(view.start, device=positions.device).expand(len(batch), -1)
        mask = self._mask(positions, torch.cat([behind, positions], 1))
        logits = self.network.forward(self._put(ids), positions.clamp(min=0), mask, view)
        self.stats = replace(
            self.stats,
            prefill_tokens=self.stats.prefill_tokens + int(lengths.sum()),
            prefilled=self.stats.prefilled + len(batch),
            padded_tokens=self.stats.padded_tokens + int(padding.sum()),
        )
        if self.busy is not None:
            self.busy()
        return logits

    def restore(self, prefix: Prefix, sequences: list[Sequence], slots: list[int]) -> Tensor:
        """Fill the slots from a stored prompt instead; return its logits (S, V)."""
        self.cache.reserve(max(slots) + 1, max(s.length for s in sequences), max(map(_most, sequences)))
        self.cache.restore(prefix, slots)
        for sequence in sequences:
            sequence.cached = sequence.length
        self.stats = replace(self.stats, restored=self.stats.restored + len(slots))
        return prefix.logits.expand(len(slots), -1)

    def decode(self, running: list[Sequence]) -> Tensor:
        """Feed each running sequence its last token; return logits (A, V), which hold until the next call.

        Slot i holds ``running[i]``.
        """
        lengths = [s.length for s in running]
        width, held = max(lengths), sum(lengths)
        self.cache.reserve(len(running), width)
        ids, positions = [s.last for s in running], [length - 1 for length in lengths]
        if self.graphs:
            logits, read = self.graphs.decode(ids, positions, width), math.prod(self.graphs.shape(len(ids), width))
        elif self.network.compiled:
            rows, read = cached_rows(running, self.cache), held
            logits = compiled_step(self.network, self.cache, torch.tensor(ids)[:, None], rows)
        else:
            logits, read = self._decode(ids, positions, width, self._shared(running, width))
        for sequence, length in zip(running, lengths, strict=True):
            sequence.cached = length
        self.stats = replace(
            self.stats,
            steps=self.stats.steps + 1,
            decode_rows=self.stats.decode_rows + len(running),
            attended=self.stats.attended + read,
            attended_padding=self.stats.attended_padding + read - held,
        )
        return logits

    def _decode(
        self, ids: list[int], positions: list[int], width: int, shared: SharedPrompts | None
    ) -> tuple[Tensor, int]:
        """Logits (A, V) after ``ids`` at ``positions`` (A,) of slots 0 to A - 1, and how many keys were read."""
        tokens, places = self._put(torch.tensor([ids, positions])[..., None])
        logits = decode_step(self.network, self.cache, tokens, places, width, shared)
        return logits, len(ids) * width + (shared.read - len(ids) * shared.shortest if shared else 0)

    def measure(self, sequence: Sequence, kept: Tensor, spare: int) -> None:
        """Count how far the logits (V,) of a running sequence are from those of keys and values computed anew.

        ``spare``: a slot that nobody holds.
        """
        exact = self.prefill([copy.copy(sequence)], [spare])[0]
        p, q = (torch.log_softmax(x.float() / sequence.request.sampling.temperature, -1) for x in (kept, exact))
        gap = float((p.exp() * (p - q)).sum())
        self.stats = replace(self.stats, kv_measured=self.stats.kv_measured + 1, kv_gap=self.stats.kv_gap + gap)

    def _shared(self, running: list[Sequence], width: int) -> SharedPrompts | None:
        """How the rows share prompts, where the network can make use of it."""
        if not (self.network.shares_prompts and self.network.masks.sees_all(width)):
            return None
        shared = share_prompts(running, self.cache, self._prompts, self.network.dtype)
        self._prompts = shared.prompts if shared else None
        return shared

    def _mask(self, queries: Tensor, keys: Tensor) -> Tensor | dict[str, Tensor]:
        return self.network.masks.build(queries, keys, self.network.dtype)

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.network.device)


def _most(sequence: Sequence) -> int:
    """Positions that a sequence can come to."""
    return len(sequence.request.prompt.token_ids) + len(sequence.uniforms)
