"""Batches by time and size: what arrives within a moment is scored together, up to a size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

Score = Callable[[Sequence[Sequence[int]]], list[float]]
"""Tokenised texts -> a score each."""
_Entry = tuple[Sequence[int], asyncio.Future[float], float]
"""A text, where its score goes, when it arrived."""


@dataclass
class Tally:
    """What a server has done so far."""

    requests: int = 0
    refused: int = 0
    """Requests answered with an error that is the asker's."""
    failed: int = 0
    """Requests that the model failed on."""
    items: int = 0
    batches: int = 0
    busy_s: float = 0.0
    """Seconds in which a batch was scored."""
    waited_s: float = 0.0
    """Seconds that items waited for their batch, summed."""


@dataclass
class Batcher:
    """One model, one batch at a time. ``max_wait_s`` is how long the first of a batch waits for company."""

    score: Score
    max_batch: int
    max_wait_s: float
    tally: Tally = field(default_factory=Tally)
    _queue: asyncio.Queue[_Entry] = field(default_factory=asyncio.Queue)
    _executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "assay-reward-model"))
    _worker: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Items in the queue."""
        return self._queue.qsize()

    def start(self) -> None:
        """Begin to score, in the running event loop."""
        self._worker = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop; what is still waiting is given up."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        while not self._queue.empty():
            self._queue.get_nowait()[1].cancel()
        self._executor.shutdown()

    async def ask(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """The scores of these texts, in their order, each perhaps in another batch. Raises what the model raises."""
        loop, now = asyncio.get_running_loop(), time.monotonic()
        answers = [loop.create_future() for _ in texts]
        for text, answer in zip(texts, answers, strict=True):
            self._queue.put_nowait((text, answer, now))
        return list(await asyncio.gather(*answers))

    async def _run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            until = time.monotonic() + self.max_wait_s
            while len(batch) < self.max_batch and (entry := await self._next(until)) is not None:
                batch.append(entry)
            await self._score([entry for entry in batch if not entry[1].done()])

    async def _next(self, until: float) -> _Entry | None:
        """The next item, one that is there already at once; ``None`` when none came in time."""
        if not self._queue.empty():
            return self._queue.get_nowait()
        try:
            async with asyncio.timeout(until - time.monotonic()):
                return await self._queue.get()
        except TimeoutError:
            return None

    async def _score(self, batch: list[_Entry]) -> None:
        if not batch:
            return
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        try:
            scores = await loop.run_in_executor(self._executor, self.score, [text for text, _, _ in batch])
        except Exception as error:  # whatever the model raises is the answer of this batch, not the server's end
            for _, answer, _ in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        finally:
            self.tally.busy_s += time.monotonic() - began
        self.tally.batches += 1
        self.tally.items += len(batch)
        self.tally.waited_s += sum(began - arrived for _, _, arrived in batch)
        for (_, answer, _), score in zip(batch, scores, strict=True):
            if not answer.done():
                answer.set_result(score)
