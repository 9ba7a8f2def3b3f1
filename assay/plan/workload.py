"""What has to be generated and judged: groups with their lengths, drawn anew or as a run logged them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from assay.plan.distribution import Distribution
from assay.recipe.schema import Section


@dataclass(frozen=True)
class GroupWork:
    """One group: what its prompt and answers weigh."""

    prompt_tokens: int
    lengths: tuple[int, ...]
    """Tokens of each answer, at least 1, at most the cap."""
    signal: bool
    """Has it an advantage that is not 0?"""


class DrawnWork(Section):
    """Groups of independent answers."""

    kind: Literal["drawn"] = "drawn"
    """How groups come to be."""
    lengths: Distribution
    """Tokens of an answer; what is beyond ``rollout.max_tokens`` is cut there."""
    prompt_tokens: Distribution
    """Tokens of a prompt."""
    signal_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups that have signal."""

    def group(self, number: int, rng: random.Random, size: int, cap: int) -> GroupWork:
        """Group ``number``, of ``size`` answers of at most ``cap`` tokens."""
        prompt = max(1, round(self.prompt_tokens.draw(rng)))
        lengths = tuple(min(cap, max(1, round(self.lengths.draw(rng)))) for _ in range(size))
        return GroupWork(prompt, lengths, rng.random() < self.signal_share)


class SeenGroup(Section):
    """A group as a run logged it."""

    prompt_tokens: int = Field(ge=1)
    """Tokens of its prompt."""
    lengths: list[int] = Field(min_length=1)
    """Tokens of its answers."""
    signal: bool = True
    """Had it an advantage that is not 0?"""


class SeenWork(Section):
    """Groups of a run, each as likely as the others: answers to one prompt stay together, being of similar length."""

    kind: Literal["seen"] = "seen"
    """How groups come to be."""
    groups: list[SeenGroup] = Field(min_length=1)
    """What was seen."""
    in_order: bool = False
    """As they were seen, over and over, rather than drawn: the same run under other circumstances."""

    def group(self, number: int, rng: random.Random, size: int, cap: int) -> GroupWork:
        """Group ``number``; of another ``size`` than it was, answers drawn from it with replacement."""
        seen = self.groups[number % len(self.groups)] if self.in_order else rng.choice(self.groups)
        lengths = seen.lengths if len(seen.lengths) == size else rng.choices(seen.lengths, k=size)
        return GroupWork(seen.prompt_tokens, tuple(min(cap, max(1, n)) for n in lengths), seen.signal)


Workload = DrawnWork | SeenWork
"""Either."""
