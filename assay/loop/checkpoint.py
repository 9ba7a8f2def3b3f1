"""Checkpoints: everything a run needs to go on as if it had never stopped, written aside and renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from assay.errors import AssayError, UserError
from assay.loop.folder import write_json

STATE = "state.json"


@dataclass(frozen=True)
class RunState:
    """What a run knows beside its tensors and beside what is in flight, after a number of whole steps."""

    step: int = 0
    """Steps done."""
    version: int = 0
    """Of the weights: batches consumed."""
    cursor: int = 0
    """Prompts drawn so far: the position in the data order."""
    admissions: int = 0
    """Groups started so far."""
    kl: dict[str, Any] = field(default_factory=dict)
    """The KL controller."""
    bad_steps: int = 0
    """Steps in a row without an update because loss or gradient were not finite."""
    drift: dict[str, Any] = field(default_factory=dict)
    """The drift monitor."""
    totals: dict[str, float] = field(default_factory=dict)
    """Seconds per phase and tokens since the start, over all resumptions."""


class CheckpointStore:
    """The ``checkpoints`` folder of a run.

    A checkpoint is written as ``.step-N.partial``, flushed, and renamed to ``step-N``; it is removed by renaming it
    back first. So a ``step-N`` is whole, whenever the process is killed, and leftovers go with the next checkpoint.
    ``again`` says how the run goes on, in words that follow a "with".
    """

    def __init__(self, path: Path, keep_last: int, keep_best: bool, again: str = "--resume") -> None:
        self.path = path
        self.keep_last = keep_last
        self.keep_best = keep_best
        self._again = again

    def save(
        self,
        state: RunState,
        write_tensors: Callable[[Path], None],
        best_step: int | None = None,
        good_step: int | None = None,
    ) -> Path:
        """Write a checkpoint of ``state`` and drop those that need not be kept any more.

        ``best_step`` is kept where the recipe keeps the best, ``good_step`` is what a rollback may lead to.

        ``write_tensors(folder)`` puts model and optimizer beside the state. A checkpoint of this step that is there
        already is left as it is. Raises AssayError when the disk refuses; what was there before is then untouched.
        """
        final, aside = self._place(state.step), self._aside(state.step)
        if state.step not in self.steps():
            with self.disk(f"the checkpoint of step {state.step}"):
                try:
                    _write(aside, state, write_tensors)
                    os.replace(aside, final)
                    _sync(self.path)
                except BaseException:
                    shutil.rmtree(aside, ignore_errors=True)
                    raise
        self._prune(best_step, good_step)
        return final

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, oldest first."""
        return sorted(int(p.parent.name[5:]) for p in self.path.glob(f"step-*/{STATE}"))

    def way_back(self) -> str:
        """What the user can do after a failure, in words that follow an "and"."""
        steps = self.steps()
        if not steps:
            return "begin again: there was no checkpoint yet"
        return f"go on from {self._place(steps[-1]).name} with {self._again}"

    def load(self, read_tensors: Callable[[Path], None]) -> RunState | None:
        """The state of the newest whole checkpoint, after ``read_tensors(folder)``; ``None`` without a checkpoint.

        Raises UserError when it cannot be read.
        """
        steps = self.steps()
        return self.read(steps[-1], read_tensors) if steps else None

    def read(self, step: int, read_tensors: Callable[[Path], None]) -> RunState:
        """The state of the checkpoint of ``step``, which is one of `steps`; as `load`."""
        folder = self._place(step)
        try:
            state = RunState(**json.loads((folder / STATE).read_text(encoding="utf-8")))
            read_tensors(folder)
        except UserError:
            raise
        except Exception as error:  # a damaged file makes its reader raise anything
            reason = (str(error).splitlines() or ["no message"])[0]
            others = [s for s in self.steps() if s != step]
            raise UserError(
                f"checkpoint {folder} cannot be read ({type(error).__name__}: {reason}): "
                f"delete that folder to go on from {self._place(others[-1]).name if others else 'the beginning'}"
            ) from error
        return state

    @contextmanager
    def disk(self, what: str) -> Iterator[None]:
        """Turn a write that fails, as on a full disk, into an AssayError that says what is whole and what to do."""
        try:
            yield
        except OSError as error:
            free = shutil.disk_usage(_existing(self.path)).free / 2**20
            raise AssayError(
                f"{what} could not be written: {error.strerror or error} ({free:,.0f} MB are free in "
                f"{self.path.parent}); make room and {self.way_back()}"
            ) from error

    def _prune(self, best_step: int | None, good_step: int | None) -> None:
        steps = self.steps()
        keep = {*steps[-self.keep_last :], good_step, best_step if self.keep_best else None}
        for step in steps:
            if step not in keep:
                shutil.rmtree(self._aside(step), ignore_errors=True)
                os.replace(self._place(step), self._aside(step))
        for leftover in self.path.glob(".step-*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _place(self, step: int) -> Path:
        return self.path / f"step-{step:06d}"

    def _aside(self, step: int) -> Path:
        return self.path / f".step-{step:06d}.partial"


def _write(folder: Path, state: RunState, write_tensors: Callable[[Path], None]) -> None:
    """Fill a new folder and have the operating system put all of it on the disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_tensors(folder)
    write_json(folder / STATE, asdict(state))
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _existing(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.exists())
