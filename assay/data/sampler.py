"""The order of training: a pure function of seed and position, so that resuming is exact."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class PromptSampler:
    """Endless epochs over ``n`` prompts, each in an order of its own.

    The whole state is one integer, the cursor: how many prompts have been taken since the run began. A step
    may cross an epoch's end, and may take more than ``n`` prompts (it then begins the next epoch).

    >>> sampler = PromptSampler(n=3, seed=7)
    >>> first, cursor = sampler.take(0, 2)
    >>> more, cursor = sampler.take(cursor, 4)
    >>> sorted((first + more)[:3]), cursor, sampler.epoch(cursor)
    ([0, 1, 2], 6, 2)
    """

    n: int
    """How many prompts there are."""
    seed: int = 0
    """Of the orders; ``run.seed``."""
    shuffle: bool = True
    """Otherwise every epoch has the order of the data."""

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"a sampler needs at least one prompt, not {self.n}")

    def epoch(self, cursor: int) -> int:
        """The epoch that position ``cursor`` lies in, from 0."""
        return cursor // self.n

    def order(self, epoch: int) -> tuple[int, ...]:
        """All indices once, in the order of an epoch."""
        return _shuffled(self.n, self.seed, epoch) if self.shuffle else tuple(range(self.n))

    def index(self, cursor: int) -> int:
        """The prompt at one position."""
        return self.order(self.epoch(cursor))[cursor % self.n]

    def take(self, cursor: int, k: int) -> tuple[tuple[int, ...], int]:
        """The next ``k`` indices, and the cursor after them."""
        if cursor < 0 or k < 0:
            raise ValueError(f"cursor {cursor} and count {k} must not be negative")
        return tuple(self.index(position) for position in range(cursor, cursor + k)), cursor + k


@lru_cache(maxsize=8)
def _shuffled(n: int, seed: int, epoch: int) -> tuple[int, ...]:
    """Indices sorted by draws of ``random()``: Python keeps that sequence for ever, not ``shuffle``'s."""
    draws = random.Random(f"{seed}/{epoch}")
    keys = [draws.random() for _ in range(n)]
    return tuple(sorted(range(n), key=keys.__getitem__))
