"""The run folder: where everything a run leaves behind lies, and how files get there whole."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.data.demo_model import resolve_model_path
from assay.errors import UserError
from assay.track.files import write_aside


@dataclass(frozen=True)
class RunFolder:
    """Paths inside ``runs/NAME``."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe that ran."""
        return self.path / "recipe.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON object per step."""
        return self.path / "metrics.jsonl"

    @property
    def evals(self) -> Path:
        """One JSON object per evaluation."""
        return self.path / "evals.jsonl"

    @property
    def alarms(self) -> Path:
        """One JSON object per alarm."""
        return self.path / "alarms.jsonl"

    @property
    def rollouts(self) -> Path:
        """One parquet file per step and per evaluation."""
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        """``step-NNNNNN`` folders."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The trained model as a Hugging Face folder."""
        return self.path / "model"

    @property
    def summary(self) -> Path:
        """Before, after, and where the time went."""
        return self.path / "summary.json"

    @property
    def profile(self) -> Path:
        """A trace of two steps, and what their operators cost."""
        return self.path / "profile"

    @property
    def drift_probe(self) -> Path:
        """The answers that the drift monitor measures on."""
        return self.path / "drift-probe.json"

    @property
    def failed_batch(self) -> Path:
        """The groups of the step that stopped the run for want of finite numbers."""
        return self.path / "failed-batch.json"

    def resuming(self, command: Sequence[str]) -> str:
        """How a run of this ``command`` (of none: in Python) goes on, in words that follow a "with".

        >>> RunFolder(Path("runs/a b")).resuming(["assay", "train", "sums.yaml"])
        "`assay train sums.yaml --resume --run 'runs/a b'`"
        """
        if not command:
            return f"resume=Path({str(self.path)!r})"
        return f"`{shlex.join([*command, '--resume', '--run', str(self.path)])}`"

    @property
    def used(self) -> bool:
        """Does it hold a step, an evaluation or a checkpoint?"""
        logged = any(log.exists() and log.stat().st_size for log in (self.metrics, self.evals))
        return logged or self.checkpoints.exists()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder for the length of a run; one that fails before it recorded anything leaves none behind.

        A folder that was there before is never removed. Raises UserError when it cannot be written.
        """
        missing = [p for p in (self.path, *self.path.parents) if not os.path.exists(p)]
        try:
            self._make()
            yield
        except BaseException:
            if self.path in missing and not self.used:
                shutil.rmtree(self.path, ignore_errors=True)
                with suppress(OSError):
                    for parent in missing[1:]:
                        parent.rmdir()
            raise

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"run.folder: cannot write to {self.path} ({error.strerror}); choose another with run.folder=PATH"
            ) from error


def model_place(path: str) -> str:
    """Where the model that ``model.path`` means lies: ``demo`` is the fetched one, a run folder its trained one.

    Raises UserError for a run that has none, with the command that writes one, and where nothing was fetched.
    """
    run = RunFolder(Path(path))
    if not run.recipe.is_file() or (run.path / "config.json").exists():
        return resolve_model_path(path)
    if not run.model.is_dir():
        mend = f"`assay export {path}` writes one" if run.checkpoints.is_dir() else "and no checkpoint to make one of"
        raise UserError(f"model.path: the run {path} has no model yet: {mend}")
    return str(run.model)


def new_run(parent: str, name: str | None, stem: str) -> RunFolder:
    """A folder for a new run: ``parent/name``, or ``parent/stem-DATE-TIME`` made distinct.

    Raises UserError when a named run exists already: nothing is overwritten.
    """
    if name is None:
        base = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        candidates = [base, *(f"{base}-{i}" for i in range(2, 100))]
        name = next(c for c in candidates if not os.path.exists(Path(parent) / c))
    folder = RunFolder(Path(parent) / name)
    if any(os.path.exists(p) for p in (folder.recipe, folder.metrics, folder.checkpoints)):
        raise UserError(f"run.name: {folder.path} exists already: continue it with --resume, or choose another name")
    return folder


def find_run(parent: str, name: str | None, stem: str) -> RunFolder:
    """The run to resume: the named one, else the one of this recipe that began last.

    Raises UserError when there is none.
    """
    if name is not None:
        candidates = [Path(parent) / name]
    else:
        dated = re.compile(rf"{re.escape(stem)}-(\d{{8}}-\d{{6}})(?:-(\d+))?")
        matches = [(m, p) for p in Path(parent).glob("*") if (m := dated.fullmatch(p.name))]
        matches.sort(key=lambda found: (found[0][1], int(found[0][2] or 1)), reverse=True)
        candidates = [path for _, path in matches]
    for path in candidates:
        if (path / "recipe.yaml").exists():
            return RunFolder(path)
    raise UserError(f"nothing to resume: no run {name or stem + '-*'} in {parent}; start it without --resume")


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that readers see the old file or the new one, never a half.

    What is not JSON becomes text, and a number that is not finite ``null``.
    """
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"

    def write(aside: Path) -> None:
        aside.write_text(text, encoding="utf-8")

    write_aside(path, write)


def _finite(value: Any) -> Any:
    """The value with ``None`` for every number in it that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value
