"""Stopping on request: SIGINT and SIGTERM end a run between two of its updates, never within one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """The user asked the run to stop; what was under way was abandoned, and nothing of it is kept."""


class StopRequest:
    """Whether the user has asked the run to stop. ``on_ask`` is called when it happens."""

    def __init__(self, on_ask: Callable[[], None]) -> None:
        self._on_ask = on_ask
        self._asked = asyncio.Event()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the first SIGINT or SIGTERM as a request; the next one of either acts at once, as always.

        Afterwards signals do what they did before. Outside the main thread, where Python cannot catch signals, it
        does nothing.
        """
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        caught: list[signal.Signals] = []

        def release() -> None:
            while caught:
                loop.remove_signal_handler(caught.pop())

        def ask() -> None:
            release()
            self._asked.set()
            self._on_ask()

        try:
            for number in before:
                loop.add_signal_handler(number, ask)
                caught.append(number)
        except (ValueError, RuntimeError):  # not the main thread
            before.clear()
        try:
            yield
        finally:
            release()
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    async def unless_asked(self, work: Awaitable[T]) -> T:
        """Wait for ``work``, or abandon it and raise `Interrupted` as soon as the user asks.

        Work that is done when the request comes counts. Nothing of abandoned work is left running.
        """
        if self._asked.is_set():  # else work that never waits would be done before the request is looked at
            if asyncio.iscoroutine(work):
                work.close()
            raise Interrupted
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Interrupted
            return task.result()
        finally:
            for pending in (task, stop):
                pending.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)
