"""One rollout in the making at a server: what has arrived of it, and what is to be asked for still."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from assay.records import Finish, Rollout, Segment
from assay.rollout.engine import Request
from assay.rollout.remote.dialect import Piece, Reported
from assay.rollout.segments import appended, begun_tokens

SEEDS = 1 << 31
"""Servers take seeds below this; several continuations of one question use the following ones too."""


def ask_seed(request: Request, index: int, held: int) -> int:
    """A seed for a server's generator: of the run, the admission, the prompt, the index and the tokens held already.

    >>> from assay.records import Prompt
    >>> from assay.rollout.sampling import Sampling
    >>> request = Request(3, Prompt("p", (), "", (1,)), 1, Sampling(), seed=5)
    >>> ask_seed(request, 0, 0) == ask_seed(request, 0, 0), ask_seed(request, 0, 0) == ask_seed(request, 0, 7)
    (True, False)
    """
    name = f"{request.seed}\x1f{request.id}\x1f{index}\x1f{held}\x1f{request.prompt.id}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") % SEEDS


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
    attempts: int = 0
    """Questions for it that failed."""
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

    def settle(self, stop: frozenset[int]) -> None:
        """Finish it where what it holds is an answer already: at a stop token, or with no room left."""
        begun = self.request.begun
        sampled = bool(self.tokens) or bool(begun and begun[-1].kind == "policy")  # a forced end is none
        if self.finish is None and sampled and self.held[-1] in stop:
            self.finish = "stop"
        elif self.finish is None and self.left <= 0:
            self.finish = "length"

    def take(self, piece: Piece, version: int, stop: frozenset[int], complete: bool = True) -> int:
        """Add what was sampled by ``version``; return how many tokens that is.

        Tokens behind the end are dropped. A log-prob that is none ends it as ``error``, with what came before kept,
        unless the server has none for some tokens (not ``complete``): then it is NaN.
        """
        if len(piece.token_ids) != len(piece.logprobs):
            self.finish = self.finish or "error"
        before = len(self.tokens)
        for token, logprob in zip(piece.token_ids, piece.logprobs, strict=False):
            if self.finish is not None:
                break
            missing = math.isnan(logprob) and not complete
            if not missing and not (math.isfinite(logprob) and logprob <= 0.01):
                self.finish = "error"
                break
            self.tokens.append(token)
            self.logprobs.append(logprob if missing else min(logprob, 0.0))
            self.versions.append(version)
            self.settle(stop)
        self.finish = self.finish or piece.finish
        return len(self.tokens) - before

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
