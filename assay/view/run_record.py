"""A finished or running run, read back from its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import UserError, nearest
from assay.track.alarm_log import read_alarms
from assay.track.alarms import Alarm
from assay.track.metrics import read_metrics

_MARKS = ("recipe.yaml", "metrics.jsonl", "rollouts", "summary.json")


def locate(run: str | Path, folder: str | Path = "runs") -> Path:
    """Return the folder of a run, given its path or its name under ``folder``.

    Raises :class:`UserError` when there is none; the message lists the runs that are there.
    """
    for path in (Path(run), Path(folder) / run):
        if path.is_dir() and any((path / mark).exists() for mark in _MARKS):
            return path
    given = Path(run)
    if given.is_dir():
        inside = runs_in(given)
        held = f"; it holds the runs {', '.join(inside[:10])}" if inside else ""
        raise UserError(f"{given}: not a run folder (no recipe.yaml, metrics.jsonl or rollouts/){held}")
    parent = given.parent if given.parent != Path() else Path(folder)
    known = runs_in(parent)
    there = f"runs there, newest first: {', '.join(known[:10])}" if known else "no runs are there"
    raise UserError(f"no run {given.name!r} in {parent}{nearest(given.name, known)}; {there}")


def runs_in(folder: Path) -> list[str]:
    """Return the names of the runs in a folder, newest first."""
    if not folder.is_dir():
        return []
    runs = [p for p in folder.iterdir() if p.is_dir() and any((p / mark).exists() for mark in _MARKS)]
    return [p.name for p in sorted(runs, key=lambda p: (-p.stat().st_mtime, p.name))]


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says; what it does not hold is empty."""

    folder: Path
    recipe: Mapping[str, Any]
    metrics: Sequence[Mapping[str, float]]
    """A row per step, each with its ``step``."""
    evals: Sequence[Mapping[str, float]]
    summary: Mapping[str, Any]
    alarms: Sequence[Alarm] = ()

    @property
    def name(self) -> str:
        """The run's name: its folder's."""
        return self.folder.resolve().name

    def series(self, name: str) -> list[tuple[float, float]]:
        """Return ``(step, value)`` of a metric over the steps, NaN where a step did not log it."""
        return [(row["step"], float(row.get(name, float("nan")))) for row in self.metrics]

    def seconds(self) -> dict[str, float]:
        """Return seconds per phase over the run: the summary's, or else the sums of the ``time/`` metrics."""
        given = self.summary.get("seconds")
        if isinstance(given, Mapping) and given:
            return _numbers(given)
        total: dict[str, float] = {}
        for row in self.metrics:
            for name, value in row.items():
                if name.startswith("time/") and value == value:
                    total[name.removeprefix("time/")] = total.get(name.removeprefix("time/"), 0.0) + value
        return total

    def speed(self) -> dict[str, dict[str, float]]:
        """Return ``{"generate": {"tokens_s", "limit_share"}, ...}`` over the run, as far as the summary says."""
        given = self.summary.get("speed")
        if not isinstance(given, Mapping):
            return {}
        return {str(phase): _numbers(found) for phase, found in given.items() if isinstance(found, Mapping)}

    def accuracy(self, when: str) -> dict[str, dict[str, float]]:
        """Return the held-out numbers ``before`` or ``after``: ``{"greedy": {"value", "low", "high", "n"}}``.

        From the summary, or else from the first evaluation (at step 0) or the last one.
        """
        given = self.summary.get(when)
        if isinstance(given, Mapping):
            found = {str(name): _numbers(e) for name, e in given.items() if isinstance(e, Mapping)}
            return {name: e for name, e in found.items() if "value" in e}
        rows = [r for r in self.evals if (r["step"] == 0) == (when == "before")]
        row = rows[-1] if rows else {}
        names = [k for k in row if k.startswith("eval/") and not k.endswith(("_low", "_high"))]
        found = {
            name.removeprefix("eval/"): _numbers(
                {"value": row[name], "low": row.get(f"{name}_low"), "high": row.get(f"{name}_high")}
            )
            for name in names
        }
        return {name: e for name, e in found.items() if "value" in e}


def _numbers(values: Mapping[Any, Any]) -> dict[str, float]:
    """The finite numbers among the values."""
    return {str(k): float(v) for k, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}


def open_run(folder: Path) -> RunRecord:
    """Read a run folder; missing files are empty.

    Raises :class:`UserError` with the file for one that is broken.
    """
    return RunRecord(
        folder=folder,
        recipe=_mapping(folder / "recipe.yaml"),
        metrics=read_metrics(folder / "metrics.jsonl"),
        evals=read_metrics(folder / "evals.jsonl"),
        summary=_mapping(folder / "summary.json"),
        alarms=read_alarms(folder / "alarms.jsonl"),
    )


def _mapping(path: Path) -> Mapping[str, Any]:
    """Read a JSON or YAML file that holds a mapping."""
    import yaml

    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]}); mend or delete it") from None
    if not isinstance(value, Mapping):
        raise UserError(f"{path}: holds no mapping; mend or delete it")
    return value
