"""How per-token losses become one number: a weight per token, known before the step begins.

loss = sum over all tokens of w_t l_t. With w known beforehand, no split into micro-batches or ranks can
change the sum, and no denominator is ever a part's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.objective.layout import Layout
from assay.registry import Registry


@dataclass(frozen=True)
class Totals:
    """Denominators of an optimizer step, counted after every exclusion; those of ranks add up with ``+``.

    >>> layout = Layout.of_lengths([2, 3, 1], groups=[0, 0, 1])
    >>> one = Totals.count(torch.tensor([1, 1, 1, 0, 0, 0]).bool(), layout)
    >>> one.tokens, one.sequences, one.groups
    (3, 2, 1)
    >>> (one + one).tokens
    6
    """

    tokens: int
    """Counting tokens."""
    sequences: int
    """Sequences with a counting token: an empty one is in no denominator."""
    group_tokens: Tensor
    """(G,) long: counting tokens of each group."""
    active: int = 0
    """Sequences that have a gradient to give."""

    @classmethod
    def count(cls, counts: Tensor, layout: Layout, active: Tensor | None = None) -> Totals:
        """Count the tokens in ``counts`` (N,) bool, and of ``active`` (S,) bool the sequences with any."""
        lengths = layout.count_by_sequence(counts)
        group_tokens = layout.sum_by_group(lengths, torch.ones_like(layout.group, dtype=torch.bool))
        with_tokens = lengths > 0
        differentiated = with_tokens if active is None else with_tokens & active
        tokens, sequences = int(lengths.sum()), int(with_tokens.sum())
        return cls(tokens, sequences, group_tokens, int(differentiated.sum()))

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.tokens + other.tokens,
            self.sequences + other.sequences,
            self.group_tokens + other.group_tokens,
            self.active + other.active,
        )

    @property
    def groups(self) -> int:
        """Groups with a counting token."""
        return int((self.group_tokens > 0).sum())

    @property
    def empty(self) -> bool:
        """Is nothing left? Then there is no optimizer step: no weight decay, no momentum."""
        return self.tokens == 0


WeightFunction = Callable[[Tensor, Layout, Totals, float], Tensor]


@dataclass(frozen=True)
class Aggregation:
    """``compute(lengths, layout, totals, constant)`` -> (S,), the weight of each token of a sequence.

    ``lengths`` (S,) are the counting tokens of each sequence, at least 1; sequences without any are zeroed
    afterwards.
    """

    compute: WeightFunction
    formula: str
    """Plain text; ``{constant}`` stands for the configured number of tokens."""


AGGREGATIONS: Registry[Aggregation] = Registry("aggregation")
"""Aggregations by the name that ``objective.aggregation`` takes."""


def aggregation(name: str, *, formula: str) -> Callable[[WeightFunction], WeightFunction]:
    """Return a decorator that registers an aggregation under ``name``."""

    def file(compute: WeightFunction) -> WeightFunction:
        AGGREGATIONS.register(name)(Aggregation(compute, formula))
        return compute

    return file


@aggregation("token", formula="sum of l_t / tokens")
def token(lengths: Tensor, layout: Layout, totals: Totals, constant: float) -> Tensor:
    """1 / T: every token weighs the same (Yu et al. 2025, DAPO)."""
    return torch.ones_like(lengths) / totals.tokens


@aggregation("sequence", formula="mean over rollouts of (mean over the rollout's tokens of l_t)")
def sequence(lengths: Tensor, layout: Layout, totals: Totals, constant: float) -> Tensor:
    """1 / (S len_s): rollouts weigh the same, so long wrong ones are punished less per token (GRPO)."""
    return 1 / (lengths * totals.sequences)


@aggregation("sequence_sum", formula="mean over rollouts of (sum over the rollout's tokens of l_t)")
def sequence_sum(lengths: Tensor, layout: Layout, totals: Totals, constant: float) -> Tensor:
    """1 / S."""
    return torch.ones_like(lengths) / totals.sequences


@aggregation("constant", formula="sum of l_t / (rollouts x {constant})")
def constant(lengths: Tensor, layout: Layout, totals: Totals, constant: float) -> Tensor:
    """1 / (S C), C a configured constant and never the batch's longest answer (Liu et al. 2025, Dr. GRPO)."""
    return torch.ones_like(lengths) / (totals.sequences * constant)


@aggregation("prompt", formula="mean over groups of (mean over the group's tokens of l_t)")
def prompt(lengths: Tensor, layout: Layout, totals: Totals, constant: float) -> Tensor:
    """1 / (G tokens of the group): every prompt weighs the same."""
    return 1 / (totals.group_tokens[layout.group].clamp(min=1) * totals.groups).to(lengths.dtype)


def token_weights(
    name: str, counts: Tensor, layout: Layout, totals: Totals, constant: float, dtype: torch.dtype
) -> Tensor:
    """w (N,) with loss = sum of w_t l_t; 0 outside ``counts``, and everywhere when nothing is left.

    ``counts`` and ``layout`` may be a rank's own part, ``totals`` are the whole optimizer step's.
    """
    if totals.empty:
        return torch.zeros_like(counts, dtype=dtype)
    lengths = layout.count_by_sequence(counts).clamp(min=1).to(dtype)
    weights = AGGREGATIONS[name].compute(lengths, layout, totals, constant)[layout.sequence]
    return torch.where(counts, weights, torch.zeros_like(weights))
