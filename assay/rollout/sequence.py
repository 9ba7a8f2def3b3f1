"""One answer in the making: the engine's own mutable state, turned into a frozen ``Rollout`` when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from assay.records import Finish, Rollout, Segment
from assay.rollout.engine import Request
from assay.rollout.segments import appended, begun_tokens, is_whole

Asked = tuple[int, int]
"""What a sequence answers: the group's number, and a hash of the prompt's tokens."""


@dataclass(eq=False)
class Sequence:
    """A rollout while it is waiting or running."""

    request: Request
    index: int
    """Place in its group."""
    uniforms: np.ndarray
    """(room,) float64: the i-th decides the i-th token."""
    tokens: list[int] = field(default_factory=list)
    """The answer so far, what the request had begun included."""
    logprobs: list[float] = field(default_factory=list)
    """Of the tokens sampled here, as the next two."""
    kept_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cached: int = 0
    """Tokens of prompt and answer whose keys and values are in the cache; 0: it needs a prefill."""
    finish: Finish | None = None
    started: float = 0.0
    """Clock at admission to a slot."""

    def begin(self, stop: frozenset[int]) -> Sequence:
        """Take over what the request had begun; an answer that was whole already is finished."""
        begun = self.request.begun
        self.tokens = begun_tokens(begun)
        if is_whole(begun, stop):
            self.finish = "stop"
        elif len(self.tokens) >= len(self.uniforms):
            self.finish = "length"
        return self

    @cached_property
    def asked(self) -> Asked:
        """The same for all sequences of a group, whichever of its requests they are of."""
        return self.request.id, hash(self.request.prompt.token_ids)

    @property
    def sampled(self) -> list[int]:
        """The tokens sampled here."""
        return self.tokens[len(self.tokens) - len(self.logprobs) :]

    @property
    def length(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.request.prompt.token_ids) + len(self.tokens)

    @property
    def last(self) -> int:
        """The token to feed next: the last one, whose keys and values are not cached yet."""
        return self.tokens[-1] if self.tokens else self.request.prompt.token_ids[-1]

    def everything(self) -> tuple[int, ...]:
        """Prompt and answer so far."""
        return (*self.request.prompt.token_ids, *self.tokens)

    def take(self, token: int, logprob: float, kept: float | None, version: int) -> None:
        """Note a sampled token."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if kept is not None:
            self.kept_logprobs.append(kept)

    def append(self, token: int, logprob: float, kept: float | None, version: int, stop: frozenset[int]) -> None:
        """Take the sampled token; end at a stop token or when the room is used up."""
        self.take(token, logprob, kept, version)
        if token in stop:
            self.finish = "stop"
        elif len(self.tokens) == len(self.uniforms):
            self.finish = "length"

    def rollout(self, decode: Callable[[list[int]], str]) -> Rollout:
        """Return the record; ``decode`` turns token ids into text, which leaves out the end token."""
        visible = self.tokens[:-1] if self.finish == "stop" else self.tokens
        segment = Segment(
            kind="policy",
            token_ids=tuple(self.sampled),
            sampler_logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            kept_logprobs=tuple(self.kept_logprobs) if self.request.sampling.cuts else None,
        )
        return Rollout(
            prompt_id=self.request.prompt.id,
            index=self.index,
            segments=appended(self.request.begun, segment),
            finish=self.finish or "cancelled",
            text=decode(visible),
            seconds=time.perf_counter() - self.started if self.started else 0.0,
        )
