"""Packing: how the sequences of a batch become rows of a forward pass. It decides memory and speed, never the update.

A *tree* is a prompt followed by some of its responses; each response attends to the prompt and to itself, and its
positions continue the prompt's, so a prompt is forwarded once for all of its responses and the gradients are exact.
Trees are laid side by side into rows, longest first, and rows into micro-batches under a token budget::

    row 0   [ prompt 0 | response 0 | response 1 | response 2 ]
    row 1   [ prompt 1 | response 3 ][ prompt 2 | response 5 ] padding

Attention crosses neither a bracket nor two responses of one bracket. What all prompts of a micro-batch begin with can
be forwarded once, too (:mod:`assay.policy.forest`). Padding costs attention alone, where the model lets it
(:mod:`assay.policy.ragged`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from assay.policy.batch import Batch
from assay.rollout.stem import stem_length

ROOM = 1.5
"""Places in a micro-batch's rows for each token of the budget: up to a third of them may be padding."""


@dataclass(frozen=True)
class Tree:
    """A prompt of P tokens and those of its responses that are forwarded together: T tokens in all."""

    group: int
    prompt: Tensor
    """(P,) long, P at least 1."""
    responses: tuple[Tensor, ...]
    """Token ids of each, none empty."""
    tokens: tuple[Tensor, ...]
    """Where each response's tokens lie in the batch's flat arrays."""

    @property
    def length(self) -> int:
        """T."""
        return len(self.prompt) + sum(len(r) for r in self.responses)

    def with_response(self, response: Tensor, tokens: Tensor) -> Tree:
        """The tree with one response more."""
        return replace(self, responses=(*self.responses, response), tokens=(*self.tokens, tokens))

    def ids(self) -> Tensor:
        """(T,) token ids."""
        return torch.cat([self.prompt, *self.responses])

    def positions(self) -> Tensor:
        """(T,): every response's continue the prompt's."""
        first = len(self.prompt)
        return torch.cat([torch.arange(first), *(first + torch.arange(len(r)) for r in self.responses)])

    def branches(self) -> Tensor:
        """(T,): -1 in the prompt, i in the i-th response."""
        lengths = torch.tensor([len(self.prompt), *(len(r) for r in self.responses)])
        return torch.repeat_interleave(torch.arange(-1, len(self.responses)), lengths)

    def predicts(self) -> Tensor:
        """(n,): the place within the tree whose output predicts each response token, in the order of ``tokens``."""
        places = torch.arange(self.length) - 1
        places[self.branches().diff(prepend=torch.tensor([-1])) != 0] = len(self.prompt) - 1
        return places[len(self.prompt) :]


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass: R rows of L tokens that score n response tokens."""

    input_ids: Tensor
    """(R, L) long; padding is token 0 and attended by nothing."""
    positions: Tensor
    """(R, L) long; a response's continue its prompt's; -1 is padding."""
    tree: Tensor
    """(R, L) long: which tree of its row a token belongs to; -1 is padding."""
    branch: Tensor
    """(R, L) long: which response of its tree a token belongs to; -1 is a prompt or padding."""
    predicts: Tensor
    """(n,) long: index into the flattened (R*L) of the position whose output predicts each scored token."""
    targets: Tensor
    """(n,) long: the scored tokens."""
    tokens: Tensor
    """(n,) long: where each scored token lies in the batch's flat arrays; stays on the batch's device."""
    shared: bool = True
    """May what trees have in common be forwarded once?"""

    @property
    def n_padded(self) -> int:
        """R * L."""
        return self.input_ids.numel()

    @cached_property
    def n_tokens(self) -> int:
        """N, padding left out."""
        return int((self.positions >= 0).sum())

    @cached_property
    def stem(self) -> int:
        """C: how many tokens the prompts of all trees begin with: what a model makes of them is the same in each."""
        return stem_length([p.tolist() for p in self._prompts()]) if self.shared else 0

    def _prompts(self) -> tuple[Tensor, ...]:
        """Token ids of each tree's prompt."""
        held = (self.branch < 0) & (self.positions >= 0)
        begins = (self.positions[held] == 0).nonzero().flatten()
        return self.input_ids[held].tensor_split(begins[1:].cpu())

    @property
    def repeated(self) -> int:
        """Tokens whose results are those of others: all stems but the first."""
        return self.stem * (len(self._prompts()) - 1)

    def places(self) -> Tensor:
        """(N,): where the tokens lie in the flattened (R*L), in order."""
        return (self.positions.flatten() >= 0).nonzero().squeeze(1)

    def related(self) -> Tensor:
        """(R, L, L) bool: is key j in query i's own prompt or response? Order and windows are for the layers to say."""
        same_tree = self.tree[:, :, None] == self.tree[:, None, :]
        key, query = self.branch[:, None, :], self.branch[:, :, None]
        return same_tree & ((key == -1) | (key == query))

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device, except for ``tokens``."""
        return MicroBatch(
            input_ids=self.input_ids.to(device),
            positions=self.positions.to(device),
            tree=self.tree.to(device),
            branch=self.branch.to(device),
            predicts=self.predicts.to(device),
            targets=self.targets.to(device),
            tokens=self.tokens,
            shared=self.shared,
        )


def microbatches(batch: Batch, sequences: Sequence[int], budget: int, share_prompts: bool) -> list[MicroBatch]:
    """Pack ``sequences`` of ``batch`` into micro-batches of at most ``budget`` tokens, in rows of ``ROOM`` times that.

    A single sequence longer than the budget gets a micro-batch of its own. Sequences without tokens are left out.
    """
    packed = _fill(_trees(batch, sequences, budget, share_prompts), budget)
    return [assemble(rows, shared=share_prompts) for rows in packed]


def _trees(batch: Batch, sequences: Sequence[int], budget: int, share: bool) -> list[Tree]:
    """Trees of at most ``budget`` tokens, each group's sequences in order."""
    trees: list[Tree] = []
    group_of = batch.step.layout.group.tolist()
    for s in sequences:
        response, group = batch.responses[s], group_of[s]
        if len(response) == 0:
            continue
        last = trees[-1] if trees else None
        if share and last is not None and last.group == group and last.length + len(response) <= budget:
            trees[-1] = last.with_response(response, batch.tokens_of([s]))
        else:
            trees.append(Tree(group, batch.prompts[group], (response,), (batch.tokens_of([s]),)))
    return trees


def _fill(trees: Iterable[Tree], budget: int) -> list[list[list[Tree]]]:
    """Micro-batches of rows of trees: each as many rows of the longest tree left as fit, then filled first fit.

    So trees of like length lie together, and rows are no longer than one of them must be.
    """
    waiting = sorted(trees, key=lambda t: -t.length)
    micros: list[list[list[Tree]]] = []
    while waiting:
        length = waiting[0].length
        rows: list[list[Tree]] = [[] for _ in range(max(1, int(ROOM * budget) // length))]
        room = [length] * len(rows)
        tokens = max(budget, length)
        left: list[Tree] = []
        for tree in waiting:
            place = next((r for r, free in enumerate(room) if free >= tree.length), None)
            if place is None or tree.length > tokens:
                left.append(tree)
            else:
                rows[place].append(tree)
                room[place] -= tree.length
                tokens -= tree.length
        micros.append([row for row in rows if row])
        waiting = left
    return micros


def assemble(rows: Sequence[Sequence[Tree]], *, shared: bool = True) -> MicroBatch:
    """Write rows of trees out as tensors, padded to the longest row."""
    lengths = [[t.length for t in row] for row in rows]
    width = max(sum(row) for row in lengths)
    starts = [r * width + start for r, row in enumerate(lengths) for start in accumulate(row[:-1], initial=0)]
    trees = [tree for row in rows for tree in row]

    def padded(parts: Iterable[Iterable[Tensor]], padding: int) -> Tensor:
        return pad_sequence([torch.cat(list(row)) for row in parts], batch_first=True, padding_value=padding)

    return MicroBatch(
        input_ids=padded(((t.ids() for t in row) for row in rows), 0),
        positions=padded(((t.positions() for t in row) for row in rows), -1),
        tree=padded(((torch.full((t.length,), k) for k, t in enumerate(row)) for row in rows), -1),
        branch=padded(((t.branches() for t in row) for row in rows), -1),
        predicts=torch.cat([start + t.predicts() for start, t in zip(starts, trees, strict=True)]),
        targets=torch.cat([r for t in trees for r in t.responses]),
        tokens=torch.cat([places for t in trees for places in t.tokens]),
        shared=shared,
    )
