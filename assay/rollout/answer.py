"""One rollout in the making at an engine elsewhere: what has arrived of it, and what is to be asked for still."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from assay.records import Finish, Rollout, Segment
from assay.rollout.engine import Request
from assay.rollout.sampling import Sampling
from assay.rollout.segments import appended, begun_tokens, is_whole

Reported = Literal["full", "kept", "other"]
"""Log-probs of the full softmax at the temperature, of what the cuts have left of it, or of something else."""

LARGEST = 0.01
"""A log-prob above 0 by no more than this is rounding."""


def of_the_draw(sampling: Sampling) -> Reported:
    """What log-probs after all processing are: a greedy answer's are at temperature 1.

    >>> of_the_draw(Sampling(temperature=0.7)), of_the_draw(Sampling(top_k=5))
    ('full', 'kept')
    >>> of_the_draw(Sampling(temperature=0.7, greedy=True))
    'other'
    """
    if sampling.greedy:
        return of_the_logits(sampling)
    return "kept" if sampling.cuts else "full"


def of_the_logits(sampling: Sampling) -> Reported:
    """What log-probs before all processing are.

    >>> of_the_logits(Sampling(top_k=5)), of_the_logits(Sampling(temperature=0.7))
    ('full', 'other')
    """
    return "full" if sampling.temperature == 1 else "other"


@dataclass(eq=False)
class Answer:
    """A rollout while it waits or runs."""

    request: Request
    index: int
    room: int
    """Most tokens that may be sampled behind what the request has begun."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Finish | None = None
    cancelled: bool = False
    """Has somebody asked for its end?"""
    attempts: int = 0
    """Questions for it that failed."""
    asked: int = 0
    """Tokens sampled before the present question."""
    started: float = 0.0
    """Clock at the first question."""

    @property
    def held(self) -> tuple[int, ...]:
        """The answer's tokens so far, begun ones included."""
        return (*begun_tokens(self.request.begun), *self.tokens)

    @property
    def left(self) -> int:
        """Tokens that may still be sampled."""
        return self.room - len(self.tokens)

    def question(self) -> tuple[int, ...]:
        """Note that it is asked for now; the tokens that it goes on behind, prompt included."""
        self.started = self.started or time.perf_counter()
        self.asked = len(self.tokens)
        return (*self.request.prompt.token_ids, *self.held)

    def settle(self, stop: frozenset[int]) -> None:
        """Finish it where what it holds is an answer already: at a stop token, or with no room left."""
        if self.finish is not None:
            return
        if is_whole(self.request.begun, stop) if not self.tokens else self.tokens[-1] in stop:
            self.finish = "stop"
        elif self.left <= 0:
            self.finish = "length"

    def add(self, token: int, logprob: float, version: int, *, complete: bool = True) -> bool:
        """Take a token that ``version`` sampled; False, and an end as ``error``, where its log-prob is none.

        What came before is sound and is kept. Of a server that has none for some tokens (not ``complete``) it is NaN.
        """
        missing = math.isnan(logprob) and not complete
        if not missing and not (math.isfinite(logprob) and logprob <= LARGEST):
            self.finish = "error"
            return False
        self.tokens.append(token)
        self.logprobs.append(logprob if missing else min(logprob, 0.0))
        self.versions.append(version)
        return True

    def rollout(self, reported: Reported, stop: frozenset[int], decode: Callable[[list[int]], str]) -> Rollout:
        """The record of what there is, with log-probs of the kind ``reported``: NaN where others are wanted.

        ``decode`` turns token ids into text, which leaves out the end token.
        """
        held = list(self.held)
        return Rollout(
            prompt_id=self.request.prompt.id,
            index=self.index,
            segments=appended(self.request.begun, self._sampled(reported)),
            finish=self.finish or "cancelled",
            text=decode(held[:-1] if held and held[-1] in stop else held),
            seconds=time.perf_counter() - self.started if self.started else 0.0,
        )

    def _sampled(self, reported: Reported) -> Segment | None:
        if not self.tokens:
            return None
        logprobs, unknown = tuple(self.logprobs), (math.nan,) * len(self.tokens)
        full = logprobs if reported == "full" else unknown
        kept = None
        if self.request.sampling.cuts:
            kept = logprobs if reported == "kept" else unknown
        return Segment("policy", tuple(self.tokens), full, tuple(self.versions), kept)
