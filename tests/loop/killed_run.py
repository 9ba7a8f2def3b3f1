"""A run that kills itself at a chosen moment, for processes forked from a warm one.

A *moment* is an entry of a phase (``generate``, ``score``, ``update``, ``publish``, ``evaluate``, ``checkpoint``) or one
of the places between them that a power cut could hit: see `MOMENTS`.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import assay.loop.checkpoint as checkpoint
import assay.track.metrics as metrics
from assay.loop.trainer import train
from assay.policy.policy import Policy
from assay.recipe.schema import Recipe
from assay.track.console import make_console
from assay.track.phases import Phases

MOMENTS: dict[str, tuple[Any, str, str]] = {
    "weights moved": (Policy, "update", "after"),
    "before metrics": (metrics.MetricsLog, "append", "before"),
    "after metrics": (metrics.MetricsLog, "append", "after"),
    "tensors written": (checkpoint, "write_json", "before"),
    "before rename": (checkpoint.os, "replace", "before"),
    "after rename": (checkpoint.os, "replace", "after"),
    "dropping a checkpoint": (checkpoint.shutil, "rmtree", "before"),
}
"""By name: what is called there (an object and its attribute), and on which side of the call."""


class Watch:
    """Counts moments; at the ``nth`` of the one named ``moment`` the process dies as by ``kill -9``."""

    def __init__(self, moment: str = "", nth: int = 0) -> None:
        self.seen: Counter[str] = Counter()
        self._moment = moment
        self._nth = nth

    def at(self, moment: str) -> None:
        """It is that moment."""
        self.seen[moment] += 1
        if moment == self._moment and self.seen[moment] == self._nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def everywhere(self) -> None:
        """Watch all moments of this process, which is a fork that trains once and ends."""
        enter = Phases.__call__

        def phase(phases: Phases, name: str) -> Any:
            self.at(name)
            return enter(phases, name)

        Phases.__call__ = phase  # type: ignore[method-assign]
        for moment, (owner, attribute, side) in MOMENTS.items():
            setattr(owner, attribute, self._watched(getattr(owner, attribute), moment, side))

    def _watched(self, call: Callable[..., Any], moment: str, side: str) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if side == "before":
                self.at(moment)
            result = call(*arguments, **named)
            if side == "after":
                self.at(moment)
            return result

        return watched


def train_watched(values: dict[str, Any], resume: bool, moment: str, nth: int, counts: Path | None) -> None:
    """Train a recipe of these values, and die at the ``nth`` such moment; else leave the counts of all moments."""
    watch = Watch(moment, nth)
    watch.everywhere()
    train(Recipe.from_dict(values), resume=resume, console=make_console("silent"))
    if counts is not None:
        counts.write_text(json.dumps(watch.seen))
