"""Packing: how the sequences of a batch become rows of a forward pass. It decides memory and speed, never the update.

A *tree* is a prompt followed by some of its responses; each response attends to the prompt and to itself, and its
positions continue the prompt's, so a prompt is forwarded once for all of its responses and the gradients are exact.
Trees are laid side by side into rows of equal length (first fit, longest first), rows into micro-batches under a token
budget::

    row 0   [ prompt 0 | resp 0 | resp 1 | resp 2 ]
    row 1   [ prompt 1 | resp 3 ][ prompt 2 | resp 5 ] pad

Attention crosses neither a bracket nor two responses of one bracket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.policy.batch import Batch


@dataclass(frozen=True)
class Tree:
    """A prompt and those of its responses that are forwarded together."""

    group: int
    sequences: tuple[int, ...]
    length: int
    """Prompt tokens plus response tokens."""


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass: R rows of L tokens that score n response tokens."""

    input_ids: Tensor
    """(R, L) long; padding is token 0 and attended by nothing."""
    positions: Tensor
    """(R, L) long; a response's continue its prompt's."""
    tree: Tensor
    """(R, L) long: which tree a token belongs to; -1 is padding."""
    branch: Tensor
    """(R, L) long: which sequence a token belongs to; -1 is a prompt (or padding)."""
    predicts: Tensor
    """(n,) long: index into the flattened (R*L) of the position whose output predicts each scored token."""
    targets: Tensor
    """(n,) long: the scored tokens."""
    tokens: Tensor
    """(n,) long: where each scored token lies in the batch's flat arrays."""

    @property
    def n_forwarded(self) -> int:
        """Tokens forwarded, padding included."""
        return self.input_ids.numel()

    def attention(self, window: int | None = None) -> Tensor:
        """(R, 1, L, L) bool: may query i see key j? ``window``: only within so many positions (sliding attention)."""
        index = torch.arange(self.tree.shape[1], device=self.tree.device)
        causal = index[:, None] >= index[None, :]
        same_tree = self.tree[:, :, None] == self.tree[:, None, :]
        key_branch, query_branch = self.branch[:, None, :], self.branch[:, :, None]
        seen = causal & same_tree & ((key_branch == -1) | (key_branch == query_branch))
        if window is not None:
            seen = seen & (self.positions[:, :, None] - self.positions[:, None, :] < window)
        padding = (self.tree == -1)[:, :, None]
        itself = index[:, None] == index[None, :]  # a row that sees nothing would be NaN
        return torch.where(padding, itself, seen)[:, None]

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device; ``tokens`` stays where the batch is."""
        return MicroBatch(
            input_ids=self.input_ids.to(device),
            positions=self.positions.to(device),
            tree=self.tree.to(device),
            branch=self.branch.to(device),
            predicts=self.predicts.to(device),
            targets=self.targets.to(device),
            tokens=self.tokens,
        )


def microbatches(batch: Batch, sequences: Sequence[int], budget: int, share_prompts: bool) -> list[MicroBatch]:
    """Pack ``sequences`` of ``batch`` into micro-batches of at most ``budget`` forwarded tokens.

    A single sequence longer than the budget gets a micro-batch of its own. Sequences without tokens are left out.
    """
    trees = _trees(batch, sequences, budget, share_prompts)
    if not trees:
        return []
    rows = _rows(trees)
    length = max(t.length for t in trees)
    per_micro = max(1, budget // length)
    return [_assemble(batch, rows[i : i + per_micro]) for i in range(0, len(rows), per_micro)]


def _trees(batch: Batch, sequences: Sequence[int], budget: int, share: bool) -> list[Tree]:
    """Trees of at most ``budget`` tokens, each group's sequences in order."""
    trees: list[Tree] = []
    group_of = batch.step.layout.group.tolist()
    for s in sequences:
        size = len(batch.responses[s])
        if size == 0:
            continue
        group = group_of[s]
        last = trees[-1] if trees else None
        if share and last is not None and last.group == group and last.length + size <= budget:
            trees[-1] = Tree(group, (*last.sequences, s), last.length + size)
        else:
            trees.append(Tree(group, (s,), len(batch.prompts[group]) + size))
    return trees


def _rows(trees: Sequence[Tree]) -> list[list[Tree]]:
    """First fit, longest first, into rows as long as the longest tree."""
    capacity = max(t.length for t in trees)
    rows: list[list[Tree]] = []
    room: list[int] = []
    for tree in sorted(trees, key=lambda t: (-t.length, t.sequences)):
        place = next((i for i, left in enumerate(room) if left >= tree.length), None)
        if place is None:
            rows.append([])
            room.append(capacity)
            place = len(rows) - 1
        rows[place].append(tree)
        room[place] -= tree.length
    return rows


def _assemble(batch: Batch, rows: Sequence[Sequence[Tree]]) -> MicroBatch:
    """Write the rows out as tensors."""
    length = max(sum(t.length for t in row) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    positions = torch.zeros_like(ids)
    tree_of = torch.full_like(ids, -1)
    branch = torch.full_like(ids, -1)
    predicts: list[Tensor] = []
    targets: list[Tensor] = []
    tokens: list[Tensor] = []
    for r, row in enumerate(rows):
        at = 0
        for k, tree in enumerate(row):
            prompt = batch.prompts[tree.group]
            end = at + len(prompt)
            tree_of[r, at : at + tree.length] = k
            ids[r, at:end] = prompt
            positions[r, at:end] = torch.arange(len(prompt))
            last_prompt = r * length + end - 1
            at = end
            for s in tree.sequences:
                response = batch.responses[s]
                n = len(response)
                ids[r, at : at + n] = response
                positions[r, at : at + n] = len(prompt) + torch.arange(n)
                branch[r, at : at + n] = s
                start = r * length + at
                predicts.append(torch.cat([torch.tensor([last_prompt]), torch.arange(start, start + n - 1)]))
                targets.append(response)
                tokens.append(torch.arange(int(batch.offsets[s]), int(batch.offsets[s + 1])))
                at += n
    return MicroBatch(ids, positions, tree_of, branch, torch.cat(predicts), torch.cat(targets), torch.cat(tokens))
