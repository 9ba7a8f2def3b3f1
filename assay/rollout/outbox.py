"""Where an engine puts finished rollouts, and where it says that it is gone: one reader, who never waits for ever."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import replace

from assay.errors import AssayError
from assay.records import Rollout


class Outbox:
    """Finished rollouts on their way to the one who consumes ``finished()``, and the failure that ends the engine."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        """Why the engine can make nothing any more; the first one counts."""
        self._done: deque[tuple[int, Rollout]] = deque()
        self._news = asyncio.Event()
        self._consumed = False

    def __len__(self) -> int:
        return len(self._done)

    def put(self, request_id: int, rollout: Rollout) -> None:
        """Hand out a finished rollout."""
        self._done.append((request_id, rollout))
        self.wake()

    def wake(self) -> None:
        """There is news: whoever waits looks again."""
        self._news.set()

    def fail(self, failure: BaseException) -> None:
        """The engine is gone for good: whoever waits is told."""
        self.failure = self.failure or failure
        self.wake()

    def check(self) -> None:
        """Raise the failure, if there is one; an AssayError as a new one, so that no two raisers share a traceback."""
        if isinstance(self.failure, AssayError):
            raise type(self.failure)(str(self.failure)) from self.failure
        if self.failure is not None:
            raise self.failure

    def unseen(self) -> list[tuple[int, Rollout]]:
        """What is finished and nobody has taken yet, as if cut off now: part of an engine's partial answers."""
        return unseen(self._done)

    def clear(self) -> None:
        """Drop what nobody has taken."""
        self._done.clear()

    async def news(self) -> None:
        """Wait until there is news since the last wait."""
        await self._news.wait()
        self._news.clear()

    async def drain(
        self, busy: Callable[[], bool], wait: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[tuple[int, Rollout], None]:
        """Yield (request id, rollout) until the engine is not ``busy``; one consumer at a time.

        ``wait`` waits for `news` in the engine's own way. Raises the failure once what is finished has been yielded.
        """
        if self._consumed:
            raise RuntimeError("finished() is already being consumed")
        self._consumed = True
        try:
            while True:
                while self._done:
                    yield self._done.popleft()
                self.check()
                if not busy():
                    return
                await (wait or self.news)()
        finally:
            self._consumed = False


def unseen(finished: Iterable[tuple[int, Rollout]]) -> list[tuple[int, Rollout]]:
    """Those of ``finished`` that came to their own end, as if cut off there."""
    return [(i, replace(r, finish="cancelled")) for i, r in finished if r.finish in ("stop", "length")]
