"""Where the seconds of a step go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext


def unprofiled(phase: str) -> AbstractContextManager[None]:
    """Nothing around a phase."""
    return nullcontext()


class Phases:
    """A stop-watch with named hands: seconds in which each phase of a step was open.

    A phase that is open several times at once (coroutines that score side by side) counts each second once.
    Different phases that overlap each count theirs, so they may add up to more than the step. For use from
    one thread.

    >>> now = iter([0.0, 1.0, 3.5, 4.0])
    >>> phases = Phases(clock=lambda: next(now))
    >>> with phases("generate"):
    ...     pass
    >>> phases.take()
    {'time/generate': 2.5, 'time/step': 4.0}
    """

    def __init__(
        self,
        on_enter: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        around: Callable[[str], AbstractContextManager[None]] = unprofiled,
    ) -> None:
        """``on_enter`` hears each phase's name; ``around(name)`` (a profiler) is entered before its clock runs."""
        self._on_enter = on_enter
        self._around = around
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._open: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._started = clock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the seconds of the ``with`` block for ``name``, after calling ``on_enter(name)``."""
        if self._on_enter is not None:
            self._on_enter(name)
        with self._around(name):
            if not self._open.get(name):
                self._since[name] = self._clock()
            self._open[name] = self._open.get(name, 0) + 1
            try:
                yield
            finally:
                self._open[name] -= 1
                if not self._open[name]:
                    self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - self._since[name]

    def take(self) -> dict[str, float]:
        """Return ``{"time/NAME": seconds}`` of the phases closed since the last call; start the next step.

        ``time/step`` is the wall clock since the last call. A phase still open counts for the step in which
        it closes.
        """
        now = self._clock()
        taken = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        taken.setdefault("time/step", now - self._started)
        self._seconds = {}
        self._started = now
        return taken
