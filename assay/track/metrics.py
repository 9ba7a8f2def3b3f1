"""metrics.jsonl and evals.jsonl: one JSON object a step, appended, readable after a kill at any moment."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.errors import UserError
from assay.track.files import write_aside
from assay.track.glossary import lookup


def _number(value: Any) -> int | float | None:
    """A plain JSON number, from numpy and torch scalars too; ``None`` for what is not finite."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read a log: a dictionary per step, with its ``step`` and NaN where the file says ``null``.

    A last line that a kill left half-written is ignored. A missing file is an empty log.

    Raises :class:`UserError` with file and row for a broken line before the last.
    """
    rows, _ = _scan(path)
    return rows


def _scan(path: Path) -> tuple[list[dict[str, float]], int]:
    """Return the rows of a log and how many bytes of the file hold whole lines."""
    content = path.read_bytes() if path.exists() else b""
    rows, whole = [], 0
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("no end of line")
            row = json.loads(line)
            rows.append({key: math.nan if value is None else value for key, value in row.items()})
            row["step"]
        except (ValueError, AttributeError, KeyError) as error:
            if number == len(lines):
                break
            raise UserError(f"{path}, row {number}: not a line of metrics ({error}); delete that line") from None
        whole += len(line)
    return rows, whole


class MetricsLog:
    """An append-only log of one JSON object a step: ``{"step": 12, "reward/mean": 0.61, ...}``.

    Each line is written whole and flushed. NaN and infinities become ``null``, so that any JSON reader can
    read the file; :func:`read_metrics` gives them back as NaN. Floats keep every bit. Opening a log cuts
    off a last line that a kill left half-written.

    Raises :class:`UserError` when the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            rows, whole = _scan(self.path)
            with open(self.path, "ab") as file:
                file.truncate(whole)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); choose another run.folder") from None
        self._last = int(rows[-1]["step"]) if rows else -1

    def append(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of ``step``.

        Raises :class:`AssayError` for a name that the glossary lacks, and ``ValueError`` for a step before
        the last one written (a resumed run calls :meth:`truncate_after` first).
        """
        if step < self._last:
            raise ValueError(f"{self.path}: step {step} after step {self._last}; truncate_after first")
        for name in metrics:
            lookup(name)
        row = {"step": step, **{name: _number(value) for name, value in metrics.items()}}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        self._last = step

    def truncate_after(self, step: int) -> None:
        """Drop every line of a later step than ``step``, for a run that resumes after it; all or nothing."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["step"] <= step]

        def write(aside: Path) -> None:
            aside.write_bytes(b"".join(kept))

        write_aside(self.path, write)
        self._last = json.loads(kept[-1])["step"] if kept else -1

    def read(self) -> list[dict[str, float]]:
        """Return the log so far: see :func:`read_metrics`."""
        return read_metrics(self.path)
