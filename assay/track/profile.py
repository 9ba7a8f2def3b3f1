"""A profile of a run: what torch did in a few of its steps, and how fast each phase was in the others.

The operators are recorded phase by phase, in all threads, with `torch.profiler`. A long generation is the same few
operators over and over, so of each only the first seconds are recorded; that keeps the trace small.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from assay.track.files import write_aside
from assay.track.operators import Event, costliest, operator_calls
from assay.track.profile_table import SECONDS, profile_text

PHASES = ("generate", "update", "publish")
"""What is recorded."""
STEPS = 2
"""How many steps are recorded."""
TOP = 5
"""Operators listed for each phase."""
PLAIN_BYTES = 8 * 2**20
"""A trace larger than this is compressed; viewers read it either way."""


def profiled_steps(start_step: int, total_steps: int) -> range:
    """The steps to record of a run that goes on after ``start_step``: not its first, which warms up, unless it is all.

    >>> profiled_steps(0, 30), profiled_steps(10, 12), profiled_steps(4, 5)
    (range(2, 4), range(12, 13), range(5, 6))
    """
    first = min(start_step + 2, total_steps)
    return range(first, min(first + STEPS, total_steps + 1))


class Profiler:
    """Records the operators of some steps into ``folder``: trace.json (or .json.gz), a Chrome trace, and their costs.

    Nothing that goes wrong with it stops the run: ``warn`` is told, and the profile ends there. Called with the name of
    a phase it gives the context manager to record it, as :class:`assay.track.phases.Phases` wants one around each.
    """

    def __init__(self, folder: Path, start_step: int, total_steps: int, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self.steps = profiled_steps(start_step, total_steps)
        self._warn = warn
        self._step = start_step + 1
        self._session: Any = None
        self._began = 0.0
        self._recorded: dict[str, float] = defaultdict(float)
        self._calls: dict[str, list[tuple[str, str, float]]] = defaultdict(list)
        self._events: list[str] = []
        self._rows: dict[int, dict[str, float]] = {}
        self._steps_recorded: list[int] = []
        self._trace: str | None = None

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Record the operators of the ``with`` block, if the present step is to be recorded; not when it fails.

        For use within a running event loop, one phase at a time.
        """
        if self._step not in self.steps or phase not in PHASES or self._session is not None:
            yield
            return
        with self._harmless():
            self._start()
        session = self._session
        cut = asyncio.get_running_loop().call_later(SECONDS, self._stop, phase)
        try:
            yield
        finally:
            cut.cancel()
            self._stop(phase)
        if session is not None:
            with self._harmless():
                self._take(session, phase)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take note of a finished step; after the last one that is recorded, write the trace."""
        self._rows[step] = {k: v for k, v in metrics.items() if k.startswith(("time/", "speed/"))}
        self._step = step + 1
        if step in self.steps and self._events:
            self._steps_recorded.append(step)
        if self._step not in self.steps:
            self._write_trace()

    def finish(self) -> dict[str, Any]:
        """Write ``table.txt`` and return what it shows: steps, each phase's seconds and speed, its costliest operators.

        Phases are timed after the recorded steps, which recording slows, and after the next, in which the trace is
        written; in the recorded ones where the run ends with them.
        """
        self._write_trace()
        recorded = self._steps_recorded
        timed = [step for step in self._rows if step > max(recorded, default=0) + 1] or recorded or list(self._rows)
        rows = [self._rows[step] for step in timed]
        seconds = sum(row["time/step"] for row in rows)
        found = {
            "timed": timed,
            "recorded": recorded,
            "trace": self._trace,
            "step_seconds": seconds / len(rows) if rows else 0.0,
            "phases": {
                phase: timings(rows, phase, seconds)
                | {
                    "recorded_seconds": self._recorded[phase],
                    "operator_seconds": sum(seconds for _, _, seconds in self._calls[phase]),
                    "operators": [asdict(op) for op in costliest(self._calls[phase], TOP)],
                }
                for phase in _phases(rows)
            },
        }
        with self._harmless():
            self._write("table.txt", profile_text(found).encode())
        return found

    def _start(self) -> None:
        """Begin to record, on all threads: an engine may work in one of its own."""
        from torch.profiler import profile, supported_activities

        session = profile(activities=supported_activities(), record_shapes=True, experimental_config=_all_threads())
        with _quiet():
            session.start()
        self._session, self._began = session, time.perf_counter()

    def _stop(self, phase: str) -> None:
        """End the recording, if it has not ended."""
        if self._session is None:
            return
        self._recorded[phase] += time.perf_counter() - self._began
        session, self._session = self._session, None
        with _quiet():
            session.stop()

    def _take(self, session: Any, phase: str) -> None:
        """Read the events of a recording, by way of a file: torch gives all of them in no other form."""
        self.folder.mkdir(exist_ok=True)
        part = self.folder / ".part.json"
        try:
            session.export_chrome_trace(str(part))
            events = json.loads(part.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
        finally:
            part.unlink(missing_ok=True)
        self._calls[phase] += operator_calls(events)
        self._events += [json.dumps(event) for event in [*_span(events, f"step {self._step}: {phase}"), *events]]

    def _write_trace(self) -> None:
        """Write what was recorded and forget it."""
        if not self._events:
            return
        text = '{"displayTimeUnit": "ms", "traceEvents": [\n' + ",\n".join(self._events) + "\n]}\n"
        self._events = []
        content, name = text.encode(), "trace.json"
        if len(content) > PLAIN_BYTES:
            content, name = gzip.compress(content, compresslevel=5, mtime=0), "trace.json.gz"
        with self._harmless():
            for old in ("trace.json", "trace.json.gz"):
                (self.folder / old).unlink(missing_ok=True)
            self._write(name, content)
            self._trace = f"{self.folder.name}/{name}"

    def _write(self, name: str, content: bytes) -> None:
        """Write a file of the profile, whole or not at all."""

        def write(aside: Path) -> None:
            aside.write_bytes(content)

        self.folder.mkdir(exist_ok=True)
        write_aside(self.folder / name, write)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Turn a recording or a file that fails into a warning and the end of the profile."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            self.steps, self._events = range(0), []
            reason = str(error).strip().splitlines() or [type(error).__name__]
            self._warn(f"profile: {self.folder} is incomplete ({reason[0]}); the run goes on")


def timings(rows: Sequence[Mapping[str, float]], phase: str, seconds: float) -> dict[str, float]:
    """Seconds per step, share of the ``seconds`` of all steps, tokens/s and share of the limit, where they are known.

    >>> timings([{"time/update": 2.0, "speed/update_tokens_s": 10.0}, {"time/update": 4.0}], "update", 12.0)
    {'seconds': 3.0, 'share': 0.5, 'tokens_s': 10.0}
    """
    taken = sum(row.get(f"time/{phase}", 0.0) for row in rows)
    found = {"seconds": taken / len(rows), "share": taken / seconds if seconds else 0.0}
    for name in ("tokens_s", "limit_share"):
        measured = [(row[f"time/{phase}"], row[key]) for row in rows if (key := f"speed/{phase}_{name}") in row]
        if measured:
            found[name] = sum(t * value for t, value in measured) / sum(t for t, _ in measured)
    return found


def _phases(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """The phases of these steps, those that are recorded first."""
    timed = (name.removeprefix("time/") for row in rows for name in row if name.startswith("time/"))
    names = dict.fromkeys([*PHASES, *timed])
    return [name for name in names if name != "step" and any(f"time/{name}" in row for row in rows)]


def _span(events: Sequence[Event], name: str) -> list[dict[str, Any]]:
    """An event that covers all of these, on a line of its own."""
    whole = [e for e in events if e.get("ph") == "X" and e.get("cat") == "cpu_op"]
    if not whole:
        return []
    start, end = min(e["ts"] for e in whole), max(e["ts"] + e["dur"] for e in whole)
    return [{"ph": "X", "cat": "phase", "name": name, "pid": "assay", "tid": "phases", "ts": start, "dur": end - start}]


def _all_threads() -> Any:
    """The setting that records every thread; ``None`` for a torch without it, which records the trainer's alone."""
    from torch._C._profiler import _ExperimentalConfig

    with suppress(TypeError):
        return _ExperimentalConfig(profile_all_threads=True)
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep from the terminal the lines that the profiler's library writes on starting and stopping."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
