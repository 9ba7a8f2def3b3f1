"""Where tokens lie: flat arrays with sequence and group indices, and the reductions over them.

``N`` tokens of ``S`` sequences of ``G`` groups. Every reduction takes ``where``, and what stands at an
excluded place is never read: it may be NaN, and its gradient is 0, not NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def wide(values: Tensor) -> Tensor:
    """Return ``values`` in float32 or wider: half precisions and integers are cast, float64 stays."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def only(values: Tensor, where: Tensor) -> Tensor:
    """Return ``values`` with zeros where ``where`` is false; NaN there is neither read nor differentiated."""
    return torch.where(where, values, torch.zeros_like(values))


@dataclass(frozen=True)
class Layout:
    """Index arrays of a batch, or of a part of it that a rank or a micro-batch holds.

    Tokens of a sequence stand in their order in the flat array, not necessarily side by side. A sequence may
    be empty.

    >>> layout = Layout.of_lengths([2, 3], groups=[0, 0])
    >>> values, where = torch.tensor([1.0, 2.0, 3.0, torch.nan, 5.0]), torch.tensor([1, 1, 1, 0, 1]).bool()
    >>> layout.sum_by_sequence(values, where)
    tensor([3., 8.])
    """

    sequence: Tensor
    """(N,) long: the sequence of each token, in 0 .. S-1."""
    group: Tensor
    """(S,) long: the group of each sequence, in 0 .. n_groups-1."""
    n_groups: int
    """Groups of the whole batch, also where this part of it holds only some."""

    @classmethod
    def of_lengths(cls, lengths: Sequence[int], groups: Sequence[int], n_groups: int | None = None) -> Layout:
        """Lay out sequences of ``lengths`` side by side; ``groups`` gives each one's group."""
        sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.long))
        group = torch.tensor(groups, dtype=torch.long)
        return cls(sequence, group, max(groups, default=-1) + 1 if n_groups is None else n_groups)

    @property
    def n_tokens(self) -> int:
        """N."""
        return self.sequence.shape[0]

    @property
    def n_sequences(self) -> int:
        """S."""
        return self.group.shape[0]

    def select(self, sequences: Tensor) -> tuple[Layout, Tensor]:
        """Return the layout of some whole sequences, in the order given, and the places of its tokens.

        ``sequences`` (K,) long, renumbered 0 .. K-1. The places (n,) long index this layout's flat arrays:
        ``advantages[places]`` is the part's own array. Group numbers stay those of the whole batch.
        """
        number = self.sequence.new_full((self.n_sequences,), -1)
        number[sequences] = torch.arange(len(sequences), device=number.device)
        mine = number[self.sequence]
        kept = (mine >= 0).nonzero().squeeze(1)
        places = kept[torch.argsort(mine[kept], stable=True)]
        return Layout(mine[places], self.group[sequences], self.n_groups), places

    def sum_by_sequence(self, values: Tensor, where: Tensor) -> Tensor:
        """Sum of ``values`` (N,) over the tokens of each sequence that are in ``where`` (N,) -> (S,)."""
        return values.new_zeros(self.n_sequences).index_add(0, self.sequence, only(values, where))

    def count_by_sequence(self, where: Tensor) -> Tensor:
        """Number of tokens of each sequence that are in ``where`` (N,) -> (S,) long."""
        return self.sum_by_sequence(where.long(), where)

    def mean_by_sequence(self, values: Tensor, where: Tensor) -> Tensor:
        """Mean of ``values`` (N,) over each sequence's tokens in ``where``; 0 of none -> (S,)."""
        return self.sum_by_sequence(values, where) / self.count_by_sequence(where).clamp(min=1)

    def sum_by_group(self, values: Tensor, where: Tensor) -> Tensor:
        """Sum of ``values`` (S,) over the sequences of each group that are in ``where`` (S,) -> (G,)."""
        return values.new_zeros(self.n_groups).index_add(0, self.group, only(values, where))

    def count_by_group(self, where: Tensor) -> Tensor:
        """Number of sequences of each group that are in ``where`` (S,) -> (G,) long."""
        return self.sum_by_group(where.long(), where)

    def mean_by_group(self, values: Tensor, where: Tensor) -> Tensor:
        """Mean of ``values`` (S,) over each group's sequences in ``where``; 0 of none -> (G,)."""
        return self.sum_by_group(values, where) / self.count_by_group(where).clamp(min=1)

    def max_by_group(self, values: Tensor, where: Tensor) -> Tensor:
        """Largest of ``values`` (S,) in each group over ``where`` (S,); -inf of none -> (G,)."""
        start = values.new_full((self.n_groups,), -torch.inf)
        return start.scatter_reduce(0, self.group[where], values[where], "amax")

    def last_token(self, where: Tensor) -> Tensor:
        """Place of each sequence's last token in ``where`` (N,); -1 where there is none -> (S,)."""
        places = torch.arange(self.n_tokens, device=self.sequence.device)
        none = self.sequence.new_full((self.n_sequences,), -1)
        return none.scatter_reduce(0, self.sequence[where], places[where], "amax")

    def from_the_end(self, where: Tensor) -> list[Tensor]:
        """Token places by distance from the end: item k has each sequence's (k+1)-th last in ``where``.

        What a recurrence that runs backwards in time walks over: at most one token of each sequence in an
        item.
        """
        places = where.nonzero().squeeze(1)
        places = places[torch.argsort(self.sequence[places], stable=True)]
        ends = self.count_by_sequence(where).cumsum(0)[self.sequence[places]]
        distance = ends - 1 - torch.arange(len(places), device=places.device)
        longest = int(distance.max()) + 1 if len(places) else 0
        order = places[torch.argsort(distance, stable=True)]
        return list(order.split(torch.bincount(distance, minlength=longest).tolist()))
