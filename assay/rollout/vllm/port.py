"""What the engine asks of vLLM, wherever that runs: answers in pieces, and the steps of a weight update."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol


class PortError(Exception):
    """A call to vLLM failed; a request may be sent again."""


class Refused(PortError):
    """vLLM will not have this request, and would not have it a second time."""


@dataclass(frozen=True)
class Ask:
    """One answer to be sampled."""

    name: str
    """Distinct among those running."""
    token_ids: tuple[int, ...]
    """Prompt, and what the answer holds already."""
    sampling: dict[str, Any]
    """Fields of vLLM's ``SamplingParams``."""
    salt: str
    """Of the prefix cache: answers of different versions share no keys and values."""


@dataclass(frozen=True)
class Piece:
    """What was sampled since the last piece of the same answer."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Per token, of the distribution that was sampled from; NaN where the model's logits were."""
    finish: str | None = None
    """vLLM's finish reason with the last piece: ``stop``, ``length``, ``abort``, ``error``."""
    spans: tuple[tuple[str, int, int], ...] | None = None
    """With the last piece, where vLLM tells: (weight version, first, end) over the tokens of this ask."""
    cached: int | None = None
    """Tokens of the ask whose keys and values were in the prefix cache, where vLLM tells."""


class Control(Protocol):
    """The steps of a weight update, as vLLM's weight transfer has them."""

    async def init_transfer(self, info: dict[str, Any]) -> None:
        """Once, before the first update."""
        ...

    async def start_update(self) -> None:
        """Weights are coming."""
        ...

    async def update(self, info: dict[str, Any]) -> None:
        """Some of them: what ``info`` holds is the backend's affair."""
        ...

    async def finish_update(self, version: str) -> None:
        """All are there; they are this version."""
        ...


class Sleeper(Protocol):
    """A vLLM that gives its memory back while it has nothing to do."""

    async def sleep(self) -> None:
        """Give weights and cache back; nothing is running."""
        ...

    async def wake(self, what: Literal["weights", "kv_cache"]) -> None:
        """Take that memory again; with the last of the two it serves again."""
        ...


class Port(Protocol):
    """vLLM. Every call raises PortError when it fails."""

    async def ready(self) -> None:
        """Wait until it serves. Raises UserError for arguments that vLLM refuses, AssayError when it does not start."""
        ...

    async def alive(self) -> bool:
        """Is it there?"""
        ...

    def pieces(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """Sample an answer; the last piece has a finish."""
        ...

    async def abort(self, names: Sequence[str]) -> None:
        """End the answers of those names early: their last pieces come with the finish ``abort``."""
        ...

    async def pause(self, clear_cache: bool) -> None:
        """Hold all answers where they are; ``clear_cache`` drops their keys and values, to be computed anew."""
        ...

    async def resume(self) -> None:
        """Go on."""
        ...

    async def close(self) -> None:
        """Stop it, if it is ours to stop."""
        ...
