"""How a kind of server is asked for tokens, and what its events say: token ids in, ids and log-probs out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from assay.rollout.answer import Reported
from assay.rollout.sampling import Sampling


class Malformed(Exception):
    """An event does not hold what was asked for, and what is missing, in a few words."""


@dataclass(frozen=True)
class Ask:
    """Continuations of one beginning."""

    token_ids: tuple[int, ...]
    """The prompt, and what the answer holds already."""
    n: int
    """How many, each with random numbers of its own."""
    room: int
    """Most tokens of each."""
    sampling: Sampling
    seed: int
    """In [0, 2^31)."""
    stop: frozenset[int]
    """Ids that end an answer."""


@dataclass(frozen=True)
class Piece:
    """What an event adds to one of the continuations."""

    place: int
    """Which: 0 to n - 1."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Per token, natural log; NaN where the server gave none."""
    finish: Literal["stop", "length"] | None = None
    """Why the server ended it, with the last piece."""


class Dialect(Protocol):
    """A kind of server."""

    @property
    def name(self) -> str:
        """What it is, in words."""
        ...

    @property
    def health(self) -> str:
        """A path that a server which is alive answers."""
        ...

    @property
    def several(self) -> bool:
        """May one question ask for several continuations, which then share the computation of their beginning?"""
        ...

    @property
    def complete(self) -> bool:
        """Has every token a log-prob? Where not, a missing one is no fault of the answer."""
        ...

    def reported(self, sampling: Sampling) -> Reported:
        """What the log-probs of sampled tokens are."""
        ...

    def question(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        """The path, and the body to post there; the reply is a stream of events, or JSON that is read as such."""
        ...

    def read(self, event: Mapping[str, Any]) -> Sequence[Piece]:
        """What an event says. Raises Malformed."""
        ...


def number(value: Any) -> float:
    """A log-prob as a server wrote it; NaN for what is none (``null``, which JSON has for NaN).

    >>> number(-1.5), number(None)
    (-1.5, nan)
    """
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
