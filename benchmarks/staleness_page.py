"""docs/staleness.md, written from benchmarks/results/staleness.json."""

from __future__ import annotations

import fcntl
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import harness
from mismatch_page import table

PAGE = Path(__file__).parent.parent / "docs" / "staleness.md"
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
"""97.5 % points of Student's distribution, by the number of values (degrees of freedom plus 1)."""
AGES = ("0", "1", "2", "4", "8", "16", "inf")


def results() -> Path:
    """Where the figures lie."""
    return harness.RESULTS / "staleness.json"


def known() -> dict[str, Any]:
    """What was measured so far."""
    path = results()
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"benchmark": "staleness", "runs": {}}


def has(name: str) -> bool:
    """Is the run in the results?"""
    return name in known()["runs"]


def keep(name: str, found: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Merge one run into the results, also while another process does."""
    path = results()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        everything = known() | {"settings": dict(settings), "date": time.strftime("%Y-%m-%d")}
        everything["runs"][name] = dict(found)
        path.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".lock").unlink(missing_ok=True)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of its 95 % interval over seeds (Student's).

    >>> interval([1.0, 2.0, 3.0])[0], round(interval([1.0, 2.0, 3.0])[1], 2)
    (2.0, 2.48)
    """
    if len(values) < 2:
        return fmean(values), math.nan
    return fmean(values), STUDENT[len(values)] * stdev(values) / math.sqrt(len(values))


def of(runs: Mapping[str, Any], rate: str, age: str, correction: str, figure: str) -> list[float]:
    """A figure of all seeds, in their order."""
    chosen = sorted(name for name in runs if name.startswith(f"{rate}/{age}/{'none' if age == '0' else correction}/"))
    return [runs[name][figure] for name in chosen]


def cell(values: Sequence[float]) -> str:
    """``0.62 ± 0.05``."""
    if not values:
        return "–"
    mean, half = interval(values)
    return f"{mean:.2f} ± {half:.2f}"


def accuracy_table(runs: Mapping[str, Any], rate: str, figure: str) -> list[str]:
    """Accuracy by staleness, and what it lost against staleness 0 of the same seeds."""
    rows = []
    for age in AGES:
        cells: list[str] = []
        for correction in ("none", "truncate"):
            values, base = of(runs, rate, age, correction, figure), of(runs, rate, "0", "none", figure)
            lost = [v - b for v, b in zip(values, base, strict=False)]
            cells += [cell(values), "" if age == "0" else cell(lost)]
        if cells[0] != "–":
            rows.append(["∞" if age == "inf" else age, *cells])
    header = ("versions old", "uncorrected", "against 0", "weights truncated at 2", "against 0")
    return table(header, rows)


def sample_table(runs: Mapping[str, Any], rate: str) -> list[str]:
    """Effective sample sizes and the gap over the second half of the runs."""
    rows = []
    for age in AGES:
        found = [of(runs, rate, age, correction, figure) for correction, figure in COLUMNS]
        if found[0]:
            rows.append(["∞" if age == "inf" else age, *(f"{fmean(v):.3f}" if v else "–" for v in found)])
    return table(("versions old", *(f"{f.replace('_', ' ')}, {c}" for c, f in COLUMNS)), rows)


COLUMNS = [(c, f) for c in ("none", "truncate") for f in ("ess_token", "ess_sequence", "kl", "entropy")]


def write() -> None:
    """Write the page; its words stand in ``staleness_words.md``, with a mark for each table."""
    everything = known()
    runs, settings = everything["runs"], everything["settings"]
    words = (Path(__file__).parent / "staleness_words.md").read_text(encoding="utf-8")
    seeds = len({name.rpartition("/")[2] for name in runs})
    rates = sorted({name.partition("/")[0] for name in runs} - {"start"}, key=float, reverse=True)
    shown = {
        "accuracy": lambda rate: accuracy_table(runs, rate, "accuracy"),
        "sampled": lambda rate: accuracy_table(runs, rate, "sampled"),
        "samples": lambda rate: sample_table(runs, rate),
    }
    parts = {
        **{n: "\n".join(f"Learning rate {r}:\n\n" + "\n".join(draw(r)) for r in rates) for n, draw in shown.items()},
        "start": cell(of(runs, "start", "0", "none", "accuracy")),
        "start_sampled": cell(of(runs, "start", "0", "none", "sampled")),
        "seeds": str(seeds),
        "runs": str(len(runs)),
        "date": everything["date"],
        **{name: f"{value:g}" for name, value in settings.items()},
    }
    for name, text in parts.items():
        words = words.replace(f"{{{{{name}}}}}", text.rstrip("\n"))
    PAGE.write_text(words, encoding="utf-8")
