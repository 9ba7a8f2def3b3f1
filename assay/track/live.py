"""The live console: a panel at the bottom of the terminal; samples and messages scroll above it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import rich.console
from rich.live import Live
from rich.text import Text

from assay.records import Group
from assay.track.console import STYLES, evaluation_line
from assay.track.panel import panel, samples
from assay.track.progress import Progress
from assay.track.rollouts import rows_of
from assay.track.samples import good_and_bad
from assay.track.text import visible


class LiveConsole:
    """A :class:`Console` for a terminal. Draws four times a second, only the lines of the panel."""

    def __init__(
        self,
        samples_every: int = 5,
        gold: str = "answer",
        terminal: rich.console.Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every = samples_every
        self._gold = gold
        self._clock = clock
        self._terminal = terminal or rich.console.Console()
        self._progress = Progress(started=clock())
        self._live: Live | None = None

    def _draw(self) -> rich.console.RenderableType:
        return panel(self._progress, self._clock(), min(self._terminal.width, 100))

    def start(self, total_steps: int, start_step: int, info: Mapping[str, Any]) -> None:
        """Show the panel of a run that goes from ``start_step`` to ``total_steps``."""
        now = self._clock()
        self._progress = Progress(total_steps, start_step, dict(info), now, start_step, (now,))
        self._live = Live(console=self._terminal, get_renderable=self._draw, refresh_per_second=4)
        self._live.start(refresh=True)

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Say what is being done now, and how much of it, where that is known."""
        self._progress = replace(self._progress, activity=name, done=done, total=total)

    def step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        """Show a finished step, and every few steps a good and a bad completion."""
        self._progress = self._progress.stepped(step, metrics, self._clock())
        if self._every and step % self._every == 0:
            chosen = good_and_bad(rows_of(step, groups, gold=self._gold))
            if chosen:
                self._terminal.print(samples(chosen, self._terminal.width))
        self._refresh()

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a held-out evaluation: in the panel, and as a line that stays."""
        self._progress = replace(self._progress, evals=(*self._progress.evals, (step, dict(metrics))))
        self._terminal.print(Text(evaluation_line(step, metrics), style="bold"))
        self._refresh()

    def message(self, text: str, style: str = "info") -> None:
        """Print a line above the panel: ``info``, ``warning`` or ``error``."""
        self._terminal.print(Text(visible(text), style=STYLES[style]))

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def stop(self) -> None:
        """Leave the last panel on the screen and give the terminal back; again does nothing."""
        if self._live is not None:
            self._live.stop()
            self._live = None
