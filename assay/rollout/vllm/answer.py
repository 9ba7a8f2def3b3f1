"""One answer in the making: what was sampled, by which version, and what to ask for next."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from assay.records import Finish, Rollout, Segment
from assay.rollout.engine import Request
from assay.rollout.sampling import Sampling
from assay.rollout.segments import appended, begun_tokens
from assay.rollout.vllm.port import Ask, Piece

STREAM_EVERY = 8
"""Tokens in a piece: each costs a message, and what is lost with a server is less than one."""


def answer_seed(request: Request, index: int, held: int) -> int:
    """A seed for vLLM's generator, of the run, the admission, the prompt, the index and the tokens already held.

    >>> from assay.records import Prompt
    >>> request = Request(3, Prompt("p", (), "", (1,)), 2, Sampling(), seed=5)
    >>> first = answer_seed(request, 0, held=0)
    >>> first == answer_seed(request, 0, held=0), first == answer_seed(request, 1, held=0)
    (True, False)
    """
    name = f"{request.seed}\x1f{request.id}\x1f{index}\x1f{held}\x1f{request.prompt.id}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1


def sampling_fields(sampling: Sampling, room: int, seed: int, stop: frozenset[int]) -> dict[str, Any]:
    """The fields of vLLM's ``SamplingParams`` for at most ``room`` tokens that mean what ``sampling`` means.

    >>> sampling_fields(Sampling(top_p=0.9, greedy=True), 8, 1, frozenset({2}))["temperature"]
    0.0
    """
    drawn = not sampling.greedy
    return {
        "temperature": sampling.temperature if drawn else 0.0,
        "top_p": sampling.top_p if drawn else 1.0,
        "top_k": sampling.top_k if drawn else 0,
        "min_p": sampling.min_p if drawn else 0.0,
        "max_tokens": room,
        "seed": seed,
        "stop_token_ids": sorted(stop),
        "ignore_eos": True,  # the ids above are all the ends there are
        "logprobs": 0,  # that of the sampled token alone
        "detokenize": False,
        "stream_interval": STREAM_EVERY,
    }


def knows_full_logprobs(sampling: Sampling) -> bool:
    """Are the log-probs that vLLM gives those of softmax(logits / temperature) over the whole vocabulary?

    They are those of the distribution that was sampled from; a greedy answer's are at temperature 1.

    >>> knows_full_logprobs(Sampling(temperature=0.7)), knows_full_logprobs(Sampling(temperature=0.7, greedy=True))
    (True, False)
    """
    return sampling.temperature == 1 if sampling.greedy else not sampling.cuts


@dataclass(eq=False)
class Answer:
    """A rollout while it waits or runs."""

    request: Request
    index: int
    room: int
    """Most tokens that may still be sampled."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Finish | None = None
    cancelled: bool = False
    attempts: int = 0
    """Asks that failed."""
    asked: int = 0
    """Tokens sampled before the present ask."""
    started: float = 0.0
    """Clock at the first ask."""

    @property
    def name(self) -> str:
        """Name of the present ask."""
        return f"{self.request.id}-{self.index}-{len(self.request.begun)}-{self.attempts}"

    def ask(self, stop: frozenset[int], salt: str) -> Ask:
        """Ask for what is missing."""
        self.started = self.started or time.perf_counter()
        self.asked = len(self.tokens)
        begun = begun_tokens(self.request.begun)
        seed = answer_seed(self.request, self.index, len(begun) + self.asked)
        fields = sampling_fields(self.request.sampling, self.room - self.asked, seed, stop)
        return Ask(self.name, (*self.request.prompt.token_ids, *begun, *self.tokens), fields, salt)

    def take(self, piece: Piece, version: int) -> bool:
        """Add a piece, sampled by ``version`` as far as is known; False when a log-prob is no number.

        What comes before such a token is sound and is kept. The last piece tells the versions for certain.
        """
        for token, logprob in zip(piece.tokens, piece.logprobs, strict=True):
            if math.isnan(logprob) or logprob > 0.01:
                self.finish = "error"
                return False
            self.tokens.append(token)
            self.logprobs.append(min(logprob, 0.0))
            self.versions.append(version)
        for label, first, end in piece.spans or ():
            if label.isdigit():
                known = range(self.asked + first, min(self.asked + end, len(self.tokens)))
                self.versions[known.start : known.stop] = [int(label)] * len(known)
        if piece.finish is not None:
            self.finish = self._finish(piece.finish)
        return True

    def rollout(self, decode: Callable[[list[int]], str]) -> Rollout:
        """Return the record of what there is; ``decode`` turns token ids into text, which leaves out the end token."""
        segments = appended(self.request.begun, self._sampled())
        everything = begun_tokens(segments)
        return Rollout(
            prompt_id=self.request.prompt.id,
            index=self.index,
            segments=segments,
            finish=self.finish or "cancelled",
            text=decode(everything[:-1] if self.finish == "stop" else everything),
            seconds=time.perf_counter() - self.started if self.started else 0.0,
        )

    def _sampled(self) -> Segment | None:
        if not self.tokens:
            return None
        sampling, n = self.request.sampling, len(self.tokens)
        full = tuple(self.logprobs) if knows_full_logprobs(sampling) else (math.nan,) * n
        kept = tuple(self.logprobs) if sampling.cuts else None
        return Segment("policy", tuple(self.tokens), full, tuple(self.versions), kept)

    def _finish(self, reason: str) -> Finish:
        if reason == "abort":
            return "cancelled" if self.cancelled else "error"
        return {"stop": "stop", "length": "length"}.get(reason, "error")  # type: ignore[return-value]
