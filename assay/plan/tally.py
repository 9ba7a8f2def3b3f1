"""What a simulation found, step by step, and what that comes to once the pipeline is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.plan.engine_model import EngineModel


@dataclass(frozen=True)
class Step:
    """One training step."""

    wait_s: float
    """The trainer waited for its batch."""
    update_s: float
    groups: int
    """Trained on."""
    mean_staleness: float
    """Versions that the oldest tokens of the batch's answers were old, mean."""
    max_staleness: int
    publish_s: float = 0.0
    overhead_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.wait_s + self.update_s + self.publish_s + self.overhead_s

    def published(self, publish_s: float, overhead_s: float) -> Step:
        """The step with its end."""
        return replace(self, publish_s=publish_s, overhead_s=overhead_s)


@dataclass(frozen=True)
class Meter:
    """Counters of all engines together at one time."""

    time: float
    prefill_s: float
    decode_s: float
    pause_s: float
    row_seconds: float
    tokens: int

    def since(self, earlier: Meter) -> Meter:
        """What was added."""
        return Meter(*(getattr(self, name) - getattr(earlier, name) for name in self.__dataclass_fields__))


def read_meter(engines: Sequence[EngineModel], now: float) -> Meter:
    """The counters now; the stretch that an engine is in counts when it ends."""
    return Meter(
        now,
        sum(e.busy["prefill"] for e in engines),
        sum(e.busy["decode"] for e in engines),
        sum(e.busy["pause"] for e in engines),
        sum(e.row_seconds for e in engines),
        sum(e.generated for e in engines),
    )


@dataclass
class Tally:
    """Kept while a simulation runs."""

    steps: list[Step] = field(default_factory=list)
    meters: list[Meter] = field(default_factory=list)
    """At the end of each step."""
    replaced: int = 0
    """Groups without signal that dynamic sampling replaced."""
    cancelled: int = 0
    """Tokens of answers that oversampling cancelled."""


@dataclass(frozen=True)
class Prediction:
    """A run's steady state: means over the steps after the first ones, which fill the pipeline."""

    step_s: float
    wait_s: float
    """Of a step, the trainer waiting for its batch."""
    update_s: float
    publish_s: float
    overhead_s: float
    mean_staleness: float
    max_staleness: int
    generate_share: float
    """Share of the engines' time in which they prefill or decode."""
    publish_share: float
    """Share of the engines' time in which they take weights."""
    rows: float
    """Answers that an engine decodes at once, while it decodes."""
    tokens_s: float
    """Tokens of finished answers a second, all engines."""
    groups_per_step: float
    steps: int
    """Over how many steps."""

    @property
    def engine_idle(self) -> float:
        """Share of the engines' time with nothing to do; where GPUs are shared, the trainer's turn included."""
        return max(0.0, 1.0 - self.generate_share - self.publish_share)

    @property
    def shared_idle(self) -> float:
        """Share of the time in which GPUs that both sides share do neither: most of it is waiting for the slowest."""
        busy = self.generate_share + (self.update_s + self.publish_s) / self.step_s
        return max(0.0, 1.0 - busy)

    @property
    def trainer_idle(self) -> float:
        """Share of the trainer's time in which it waits for a batch."""
        return self.wait_s / self.step_s


def predict(tally: Tally, engines: int, skip: int) -> Prediction:
    """What the steps after the first ``skip`` come to."""
    steps, meter = tally.steps[skip:], tally.meters[-1].since(tally.meters[skip - 1])
    time = engines * meter.time
    return Prediction(
        step_s=meter.time / len(steps),
        wait_s=fmean(s.wait_s for s in steps),
        update_s=fmean(s.update_s for s in steps),
        publish_s=fmean(s.publish_s for s in steps),
        overhead_s=fmean(s.overhead_s for s in steps),
        mean_staleness=fmean(s.mean_staleness for s in steps),
        max_staleness=max(s.max_staleness for s in steps),
        generate_share=(meter.prefill_s + meter.decode_s) / time,
        publish_share=meter.pause_s / time,
        rows=meter.row_seconds / meter.decode_s if meter.decode_s else 0.0,
        tokens_s=meter.tokens / meter.time,
        groups_per_step=fmean(s.groups for s in steps),
        steps=len(steps),
    )
