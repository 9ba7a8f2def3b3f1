"""The thinking budget: a span that is too long is closed with forced tokens, and the answer is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from assay.records import Rollout, Segment
from assay.rollout.sampling import Sampling


@dataclass(frozen=True)
class ThinkingBudget:
    """Most tokens of thinking, and what ends it: the same for every engine, since each can go on behind tokens."""

    budget: int
    """Tokens of the answer within which the thinking span must close."""
    tag: str
    """What closes it when the policy does so itself, such as ``</think>``."""
    forced: tuple[int, ...]
    """Tokens that close it otherwise."""

    def sampling(self, begun: tuple[Segment, ...], sampling: Sampling) -> Sampling:
        """How the next stretch behind ``begun`` is sampled: up to the budget first, then up to the cap."""
        if _length(begun) >= self.budget:
            return sampling
        return replace(sampling, max_tokens=min(self.budget, sampling.max_tokens))

    def goes_on(self, rollout: Rollout, max_tokens: int) -> tuple[Segment, ...] | None:
        """What an answer that has reached the budget goes on behind; ``None`` for one that is at its end.

        The forced tokens are put in unless the tag is there already. An answer whose cap leaves no room for a token
        behind them ends as it is.
        """
        length = len(rollout)
        if rollout.finish != "length" or length != self.budget:
            return None
        closed = self.tag in rollout.text
        added = () if closed else (Segment("forced", self.forced),)
        if length + _length(added) >= max_tokens:
            return None
        return rollout.segments + added


def thinking_budget(budget: int, close: str, encode: Callable[[str], list[int]]) -> ThinkingBudget:
    """A budget that is closed by the text ``close``; its tag is the closing tag in it, else all of it.

    >>> thinking_budget(8, "\\n</think>\\n\\n", lambda text: [7, 8]).tag
    '</think>'
    """
    found = re.search(r"</[^<>]+>", close)
    return ThinkingBudget(budget, found.group() if found else close.strip(), tuple(encode(close)))


def encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """How a tokenizer turns text into ids without adding tokens of its own."""
    return lambda text: list(tokenizer(text, add_special_tokens=False).input_ids)


def _length(segments: tuple[Segment, ...]) -> int:
    return sum(len(s.token_ids) for s in segments)
