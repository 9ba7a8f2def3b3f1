"""The desk: services are asked in a thread with an event loop of its own.

Chosen here: not the trainer's loop, which generation blocks for a whole decoding step at a time: a time-out measured in
it would count the trainer's work, and a question would take as many steps as it has packets.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from assay.errors import AssayError
from assay.reward.function import describe_error
from assay.reward.trial import Finding
from assay.reward.verifier import AsyncVerifier, Case, verifier_error

T = TypeVar("T")


class DeskClosed(AssayError):
    """The desk was closed before it answered."""


class Desk:
    """Async verifiers at work, each known by a number. Thread-safe; close it: then the thread is gone."""

    def __init__(self, verifiers: Mapping[int, AsyncVerifier]) -> None:
        self._verifiers = dict(verifiers)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="assay-judges", daemon=True)
        self._thread.start()
        self._closed = False

    async def judge(self, number: int, cases: Sequence[Case]) -> list[Finding]:
        """What the verifier finds of each case; whatever it raises becomes a ``verifier_error``. May be cancelled."""
        return await asyncio.wrap_future(self._submit(self._judge(self._verifiers[number], cases)))

    def close(self) -> None:
        """Give up what is unanswered, close the verifiers' connections, end the thread. May be called twice."""
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._closed:
            work.close()
            raise DeskClosed("the judges are closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _judge(self, verifier: AsyncVerifier, cases: Sequence[Case]) -> list[Finding]:
        began = time.perf_counter()
        try:
            judgements = await verifier.judge(cases)
        except Exception as error:  # a verifier's bug is a verdict, not the end of the run
            judgements = [verifier_error(describe_error(error))] * len(cases)
        seconds = (time.perf_counter() - began) / max(1, len(cases))
        return [Finding(judgement, seconds) for judgement in judgements]

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for verifier in self._verifiers.values():
            await verifier.close()
