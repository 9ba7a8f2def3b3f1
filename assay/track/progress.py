"""What the console knows of a run: replaced at each event, never changed, so that a thread may draw it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Progress:
    """A run as seen so far. Times are readings of one monotonic clock, in seconds."""

    total_steps: int = 0
    start_step: int = 0
    """Steps already done when this process began: 0, or where a resumed run goes on."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What is said of the run in the title: ``name``, ``model``, ``data``."""
    started: float = 0.0
    step: int = 0
    ends: tuple[float, ...] = ()
    """When the last steps ended, the start before them."""
    activity: str = ""
    done: int | None = None
    total: int | None = None
    """How much of the current activity is done, where that is known: 37 of 64 rollouts."""
    history: tuple[Mapping[str, float], ...] = ()
    """Metrics of every step shown."""
    evals: tuple[tuple[int, Mapping[str, float]], ...] = ()

    def stepped(self, step: int, metrics: Mapping[str, float], now: float) -> Progress:
        """Return the progress after a step."""
        return replace(
            self,
            step=step,
            history=(*self.history, dict(metrics)),
            ends=(*self.ends[-10:], now),
            activity="",
            done=None,
            total=None,
        )

    def latest(self, name: str) -> float | None:
        """Return the metric's value in the last step, or ``None`` where it has none."""
        value = self.history[-1].get(name) if self.history else None
        return None if value is None or math.isnan(value) else float(value)

    def series(self, name: str) -> list[float]:
        """Return the metric in every step shown, NaN where it is missing."""
        return [float(h[name]) if h.get(name) is not None else math.nan for h in self.history]

    def seconds_left(self, now: float) -> float | None:
        """Estimate from the mean of the last ten steps, evaluations included; ``None`` before the first."""
        if len(self.ends) < 2:
            return None
        mean = (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)
        return max(0.0, mean * (self.total_steps - self.step) - (now - self.ends[-1]))

    def trend(self, name: str) -> tuple[float, int] | None:
        """Return the mean of the last k steps less that of the k before, and k (at most 10)."""
        values = [v for v in self.series(name) if math.isfinite(v)]
        k = min(10, len(values) // 2)
        if k < 2:
            return None
        return (sum(values[-k:]) - sum(values[-2 * k : -k])) / k, k


def clip_share(metrics: Mapping[str, float]) -> float | None:
    """Return the share of clipped tokens, low and high together; ``None`` where neither was measured."""
    found = [metrics.get("update/clip_low_share"), metrics.get("update/clip_high_share")]
    known = [v for v in found if v is not None and math.isfinite(v)]
    return sum(known) if known else None


def used_once(metrics: Mapping[str, float]) -> bool:
    """Was the batch used once, so that clip shares and KL to the anchor are 0 by construction?

    Read off the ratio: it never left 1.
    """
    ratio = metrics.get("update/ratio_max")
    return ratio is not None and abs(ratio - 1.0) < 1e-6 and not clip_share(metrics)


def group_shares(metrics: Mapping[str, float]) -> tuple[float, float, float, float] | None:
    """Return the shares of all-fail, mixed, all-pass and other groups; together they are 1."""
    found = [metrics.get(f"group/{kind}") for kind in ("all_fail", "mixed", "all_pass")]
    fail, mixed, passed = (v if v is not None and math.isfinite(v) else math.nan for v in found)
    if math.isnan(fail + mixed + passed):
        return None
    return fail, mixed, passed, max(0.0, 1.0 - fail - mixed - passed)
