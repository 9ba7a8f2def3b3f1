"""A run that sends itself signals at a chosen moment, for processes forked from a warm one.

A *moment* is an entry of one of the `PHASES`, or a place between them that a power cut could hit: see `MOMENTS`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import assay.loop.checkpoint as checkpoint
import assay.track.metrics as metrics
from assay.loop.trainer import train
from assay.policy.policy import Policy
from assay.recipe.schema import Recipe
from assay.records import Group
from assay.track.console import SilentConsole
from assay.track.phases import Phases

PATIENCE = 400.0
"""Seconds after which a run hangs: less than a test may take (pyproject.toml)."""
PHASES = ("generate", "score", "update", "publish", "evaluate", "checkpoint")
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

FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(
    ["killed_run", "transformers.models.llama.modeling_llama", "peft", "pandas", "pyarrow.pandas_compat"]
)


@dataclass
class Signals:
    """At the ``nth`` of the moments named ``moment`` the process gets the first of ``numbers``, when it says that it is
    stopping the second. All moments are counted."""

    moment: str = ""
    nth: int = 0
    numbers: Sequence[int] = (signal.SIGKILL,)
    seen: Counter[str] = field(default_factory=Counter)

    def at(self, moment: str) -> None:
        """It is that moment."""
        self.seen[moment] += 1
        if moment == self.moment and self.seen[moment] == self.nth:
            os.kill(os.getpid(), self.numbers[0])

    def stopping(self) -> None:
        """The run says that it will stop."""
        self.seen["stopping"] += 1
        if len(self.numbers) > 1:
            os.kill(os.getpid(), self.numbers[1])

    def watch(self) -> None:
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


class ListeningConsole(SilentConsole):
    """Tells the signals when the run announces its end, and keeps the steps that it shows."""

    def __init__(self, signals: Signals) -> None:
        self.signals = signals
        self.steps: list[int] = []

    def step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        self.steps.append(step)

    def message(self, text: str, style: str = "info") -> None:
        if text.startswith("stopping"):
            self.signals.stopping()


def train_watched(values: dict[str, Any], resume: bool, signals: Signals, report: Path | None) -> None:
    """Train a recipe of these values under ``signals``, and report how it ended, where it does."""
    signals.watch()
    console = ListeningConsole(signals)
    outcome = train(Recipe.from_dict(values), resume=resume, console=console)
    if report is not None:
        told = {"finished": outcome.finished, "step": outcome.step, "shown": console.steps, "seen": signals.seen}
        report.write_text(json.dumps(told))


def in_a_process(
    values: dict[str, Any],
    resume: bool = False,
    moment: str = "",
    nth: int = 0,
    numbers: Sequence[int] = (signal.SIGKILL,),
    report: Path | None = None,
) -> int:
    """`train_watched` in a process of its own; its exit status, negative for the signal that ended it."""
    return forked(train_watched, values, resume, Signals(moment, nth, numbers), report)


def forked(work: Callable[..., None], *arguments: Any) -> int:
    """Do ``work`` in a process forked from a warm one; its exit status, negative for the signal that ended it.

    One that takes longer than `PATIENCE` fails here, with what its threads were doing.
    """
    with tempfile.NamedTemporaryFile("r") as words:
        process = FORKS.Process(target=_patiently, args=(words.name, work, arguments))
        process.start()
        process.join()
        assert words.read() == ""
    assert process.exitcode is not None
    return process.exitcode


def _patiently(words: str, work: Callable[..., None], arguments: Sequence[Any]) -> None:
    with open(words, "w", encoding="utf-8") as file:
        faulthandler.dump_traceback_later(PATIENCE, exit=True, file=file)
        work(*arguments)
        faulthandler.cancel_dump_traceback_later()
