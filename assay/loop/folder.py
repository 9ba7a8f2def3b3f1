"""The run folder: where everything a run leaves behind lies, and how files get there whole."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    def rollouts(self) -> Path:
        """One parquet file per step."""
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
    def report(self) -> Path:
        """The page to look at."""
        return self.path / "report.html"

    def create(self) -> RunFolder:
        """Make the folder. Raises UserError when it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"run.folder: cannot write to {self.path} ({error.strerror}); choose another with run.folder=PATH"
            ) from error
        return self

    def remove_if_empty(self) -> None:
        """Take the folder away again where nothing came to lie in it: a run that could not begin leaves no litter."""
        with suppress(OSError):
            self.path.rmdir()


def new_run(parent: str, name: str | None, stem: str) -> RunFolder:
    """A folder for a new run: ``parent/name``, or ``parent/stem-DATE-TIME`` made distinct.

    Raises UserError when a named run exists already: nothing is overwritten.
    """
    if name is None:
        base = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        candidates = [base, *(f"{base}-{i}" for i in range(2, 100))]
        name = next(c for c in candidates if not (Path(parent) / c).exists())
    folder = RunFolder(Path(parent) / name)
    if folder.metrics.exists() or folder.checkpoints.exists():
        raise UserError(f"run {folder.path} exists already: continue it with --resume, or choose another run.name")
    return folder


def find_run(parent: str, name: str | None, stem: str) -> RunFolder:
    """The run to resume: the named one, else the newest of this recipe. Raises UserError when there is none."""
    if name is not None:
        candidates = [Path(parent) / name]
    else:
        candidates = sorted(Path(parent).glob(f"{stem}-2*"), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in candidates:
        if (path / "recipe.yaml").exists():
            return RunFolder(path)
    raise UserError(f"nothing to resume: no run {name or stem + '-*'} in {parent}; start it without --resume")


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that readers see the old file or the new one, never a half."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_aside(path, lambda aside: aside.write_text(text, encoding="utf-8"))
