"""A watch for silence, by an event loop's own clock: time in which the loop itself stood still does not count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LOOKS = 10
"""Looks in a row that must find silence; a loop that was busy elsewhere takes one, not many."""


class Watch:
    """Calls ``silent`` when, while `mind` says so, `heard` was not called for ``seconds``."""

    def __init__(self, seconds: float, silent: Callable[[], None]) -> None:
        self.seconds = seconds
        self._silent = silent
        self._quiet = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def heard(self) -> None:
        """There was a sign of life."""
        self._quiet = 0

    def mind(self, wanted: bool) -> None:
        """Watch from now on, or no longer."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and (not wanted or loop is not self._loop):
            self._timer.cancel()
            self._timer = None
        if wanted and self._timer is None:
            self._loop, self._quiet = loop, 0
            self._timer = loop.call_later(self.seconds / LOOKS, self._look)

    def _look(self) -> None:
        self._timer = None
        self._quiet += 1
        if self._quiet > LOOKS:
            self._silent()
            return
        assert self._loop is not None
        self._timer = self._loop.call_later(self.seconds / LOOKS, self._look)
