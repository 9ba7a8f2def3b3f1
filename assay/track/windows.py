"""What a metric did over the steps: a level that holds, or a change of windows that chance does not explain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

History = Sequence[Mapping[str, float]]
"""The lines of metrics.jsonl, oldest first: a ``step`` and what was measured; NaN and absent are the same."""

WINDOW = 10
"""Steps over which a metric is averaged."""
LEAST = 8
"""Of them, how many must have it."""
SPANS = (10, 20, 40, 80, 160)
"""How many steps before the last window the earlier one ends: sudden changes, and slow ones."""
ERRORS = 4.0
"""A change counts from so many standard errors on: with nine alarms looked for at each step, 2 would be chance."""


@dataclass(frozen=True)
class Change:
    """The means of a metric over two windows of `WINDOW` steps."""

    before: float
    after: float
    error: float
    """Standard error of their difference, steps taken as independent."""
    since: int
    """First step after the earlier window."""

    @property
    def by(self) -> float:
        """after - before."""
        return self.after - self.before

    def rises(self, least: float) -> bool:
        """Did it rise by ``least`` or more, and by more than chance?"""
        return self.by >= least and self.by > ERRORS * self.error

    def falls(self, least: float) -> bool:
        """Did it fall by ``least`` or more, and by more than chance?"""
        return -self.by >= least and -self.by > ERRORS * self.error

    @property
    def at_most(self) -> float:
        """What the change may have been at most: two standard errors above what was seen."""
        return self.by + 2 * self.error


def values(rows: History, name: str) -> list[float]:
    """The finite values of a metric.

    >>> values([{"step": 1, "a": 2.0}, {"step": 2}, {"step": 3, "a": math.inf}], "a")
    [2.0]
    """
    return [value for row in rows if (value := row.get(name)) is not None and math.isfinite(value)]


def level(history: History, name: str) -> float | None:
    """The mean over the last window; ``None`` where there is too little to tell."""
    found = values(history[-WINDOW:], name)
    return fmean(found) if len(found) >= LEAST else None


def change(history: History, name: str, span: int) -> Change | None:
    """The last window against the one that ends ``span`` steps before it does; ``None`` without enough of either."""
    if len(history) < WINDOW + span:
        return None
    old = values(history[-WINDOW - span : len(history) - span], name)
    new = values(history[-WINDOW:], name)
    if min(len(old), len(new)) < LEAST:
        return None
    error = math.sqrt(variance(old) / len(old) + variance(new) / len(new))
    return Change(fmean(old), fmean(new), error, int(history[-span]["step"]))


def changes(history: History, *names: str) -> Iterator[tuple[Change, ...]]:
    """The changes of several metrics over each span for which all are known, the shortest span first."""
    for span in SPANS:
        found = [change(history, name, span) for name in names]
        known = tuple(one for one in found if one is not None)
        if len(known) == len(names):
            yield known


def since(history: History, name: str, holds: Callable[[float], bool]) -> int:
    """The first step of the unbroken stretch up to now in which the metric, where it is known, holds.

    >>> rows = [{"step": 1, "a": 0.0}, {"step": 2, "a": 0.5}, {"step": 3}, {"step": 4, "a": 0.6}]
    >>> since(rows, "a", lambda value: value > 0.3)
    2
    """
    first = int(history[-1]["step"])
    for row in reversed(history):
        value = row.get(name)
        if value is None or not math.isfinite(value):
            continue
        if not holds(value):
            break
        first = int(row["step"])
    return first
