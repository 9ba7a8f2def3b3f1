"""One metric: its name, unit, meaning, healthy band, and what confuses newcomers about it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Health = Literal["low", "healthy", "high"]


@dataclass(frozen=True)
class Metric:
    """An entry of the glossary.

    >>> Metric("update/entropy", "nats", "Mean entropy.", (0.1, math.inf)).judge(0.02)
    'low'
    >>> Metric("reward/part/*", "score", "One verifier's mean score.").matches("reward/part/number")
    True
    """

    name: str
    """``area/name``; a ``*`` stands for any text and makes the entry a pattern."""
    unit: str
    """``share`` (between 0 and 1), ``count``, ``tokens``, ``nats``, ``s``, ``tokens/s`` and so on."""
    meaning: str
    """What it is, in one or two sentences."""
    healthy: tuple[float, float] | str = ""
    """A band (an infinite end is open), or words where no number holds for every run."""
    note: str = ""
    """What confuses newcomers, in a line: shown where the metric is shown."""

    @property
    def is_pattern(self) -> bool:
        """Does the name hold a ``*``?"""
        return "*" in self.name

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(".+".join(re.escape(part) for part in self.name.split("*")), re.DOTALL)

    def matches(self, name: str) -> bool:
        """Is ``name`` this entry's name, or an instance of its pattern?"""
        return self._regex.fullmatch(name) is not None

    @property
    def band(self) -> tuple[float, float] | None:
        """The healthy band in numbers, where there is one."""
        return self.healthy if isinstance(self.healthy, tuple) else None

    @property
    def healthy_text(self) -> str:
        """The healthy band in words: ``0.1 to 0.3``, ``above 0.1``, or the entry's own words."""
        if isinstance(self.healthy, str):
            return self.healthy
        low, high = (f"{100 * end:g}%" if self.unit == "share" else f"{end:g}" for end in self.healthy)
        if math.isinf(self.healthy[1]):
            return f"above {low}"
        return f"below {high}" if math.isinf(self.healthy[0]) else f"{low} to {high}"

    def judge(self, value: float) -> Health | None:
        """Where ``value`` lies against the band; ``None`` for NaN, or without a band in numbers."""
        if self.band is None or math.isnan(value):
            return None
        low, high = self.band
        return "low" if value < low else "high" if value > high else "healthy"
