"""Checkpoints: everything a run needs to go on as if it had never stopped, written aside and renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from assay.errors import AssayError, UserError
from assay.loop.folder import write_json


@dataclass(frozen=True)
class RunState:
    """What a run knows beside its tensors, after a number of whole steps. At staleness 0 nothing is in flight then."""

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
    best: float | None = None
    """Best held-out accuracy so far."""
    best_step: int | None = None
    """The step that had it."""
    totals: dict[str, float] = field(default_factory=dict)
    """Seconds per phase and tokens since the start, over all resumptions."""


class CheckpointStore:
    """The ``checkpoints`` folder of a run.

    A checkpoint is written as ``.step-N.partial``, flushed, and renamed to ``step-N``; a folder without its
    ``state.json`` (written last) is never loaded, and leftovers of a killed writer are removed.
    """

    def __init__(self, path: Path, keep_last: int, keep_best: bool) -> None:
        self.path = path
        self.keep_last = keep_last
        self.keep_best = keep_best

    def save(self, state: RunState, write_tensors: Callable[[Path], None]) -> Path:
        """Write a checkpoint of ``state``; ``write_tensors(folder)`` puts model and optimizer beside it."""
        final = self.path / f"step-{state.step:06d}"
        if (final / "state.json").exists():
            return final
        aside = self.path / f".step-{state.step:06d}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            write_tensors(aside)
            write_json(aside / "state.json", asdict(state))
            for file in aside.rglob("*"):
                _sync(file)
            os.replace(aside, final)
            _sync(self.path)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise AssayError(
                f"checkpoint of step {state.step} could not be written to {self.path}: {error.strerror or error}; "
                f"the last whole one is {self.latest_name() or 'none'}"
            ) from error
        self._prune(state)
        return final

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, oldest first."""
        return sorted(int(p.parent.name[5:]) for p in self.path.glob("step-*/state.json"))

    def latest(self) -> tuple[Path, RunState] | None:
        """The newest whole checkpoint and its state, or ``None``."""
        steps = self.steps()
        if not steps:
            return None
        folder = self.path / f"step-{steps[-1]:06d}"
        try:
            return folder, RunState(**json.loads((folder / "state.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"checkpoint {folder} cannot be read ({error}); delete that folder to resume from an older one"
            ) from error

    def latest_name(self) -> str | None:
        """Folder name of the newest whole checkpoint."""
        steps = self.steps()
        return f"step-{steps[-1]:06d}" if steps else None

    def _prune(self, state: RunState) -> None:
        steps = self.steps()
        keep = set(steps[-self.keep_last :])
        if self.keep_best and state.best_step is not None:
            keep.add(state.best_step)
        for step in steps:
            if step not in keep:
                shutil.rmtree(self.path / f"step-{step:06d}", ignore_errors=True)
        for leftover in self.path.glob(".step-*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)


def _sync(path: Path) -> None:
    """Have the operating system put a file or folder on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
