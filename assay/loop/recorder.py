"""The recorder: what a run writes and shows, in one place, so that all of it can be rolled back together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from assay.loop.evaluate import Evaluation
from assay.loop.folder import RunFolder
from assay.loop.harvest import Harvest
from assay.recipe.schema import Recipe
from assay.track.alarm_log import AlarmLog
from assay.track.alarms import raised
from assay.track.console import Console
from assay.track.metrics import MetricsLog
from assay.track.profile import Profiler
from assay.track.rollouts import RolloutLog, rows_of
from assay.track.trackers import TrackedRun, Trackers


class Recorder:
    """The logs of a run (metrics, evals, alarms, rollouts), console and trackers, when it goes on after ``start_step``.

    Whatever was recorded later than that is forgotten: the run writes it again. Raises UserError when the folder cannot
    be written or a tracker is not installed, and OSError when the disk is full, as its methods do.
    """

    def __init__(
        self,
        folder: RunFolder,
        recipe: Recipe,
        console: Console,
        start_step: int,
        profiler: Profiler | None = None,
    ) -> None:
        self.console = console
        self._profiler = profiler
        self._metrics = MetricsLog(folder.metrics)
        self._evals = MetricsLog(folder.evals)
        self._rollouts = RolloutLog(folder.rollouts, recipe.reward.gold) if recipe.track.rollouts else None
        self._alarms = AlarmLog(folder.alarms)
        for log in (self._metrics, self._evals, self._rollouts, self._alarms):
            if log is not None:
                log.truncate_after(start_step)
        self._history: list[Mapping[str, float]] = [*self._metrics.read()]
        self._gold = recipe.reward.gold
        settings = recipe.model_dump(mode="json")
        run = TrackedRun(folder.path, recipe.track.project, folder.path.name, settings, start_step)
        self._trackers = Trackers(recipe.track.trackers, run, partial(console.message, style="warning"))

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        harvest: Harvest,
        advantages: Sequence[Sequence[float]],
    ) -> None:
        """Record a training step. The metrics come last: a step without its line was not recorded."""
        if self._rollouts is not None:
            if harvest.unused:
                self._rollouts.write(step, harvest.unused, phase="unused")
            if harvest.replaced:
                self._rollouts.write(step, harvest.replaced, phase="replaced")
            self._rollouts.write(step, harvest.groups, advantages)
        self._metrics.append(step, metrics)
        self._trackers.log(step, metrics)
        self.console.step(step, metrics, harvest.generated)
        self._look_for_alarms(step, metrics, harvest)
        if self._profiler is not None:
            self._profiler.step(step, metrics)

    def _look_for_alarms(self, step: int, metrics: Mapping[str, float], harvest: Harvest) -> None:
        """Say and write what the history shows by now; a function of the log alone, so a resumed run finds the same."""
        self._history.append({"step": step, **metrics})
        rows = partial(rows_of, step, harvest.generated, gold=self._gold)
        for alarm in raised(self._history, self._alarms.names, rows):
            self._alarms.append(alarm)
            self.console.message(alarm.line(), "warning")

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Record a held-out evaluation after ``step``."""
        metrics = evaluation.metrics()
        if self._rollouts is not None:
            self._rollouts.write(step, evaluation.groups, phase="eval")
        self._evals.append(step, metrics)
        self._trackers.log(step, metrics)
        self.console.evaluation(step, metrics)

    def evaluations(self) -> dict[int, dict[str, float]]:
        """The metrics of every evaluation so far, by step."""
        return {int(row["step"]): row for row in self._evals.read()}

    def profile(self) -> dict[str, Any]:
        """``{"profile": ...}`` of a run that is profiled, its table written; of others nothing."""
        return {} if self._profiler is None else {"profile": self._profiler.finish()}

    def summary(self, summary: Mapping[str, object]) -> None:
        """Hand the trackers the results."""
        self._trackers.summary(summary)

    def close(self) -> None:
        """Close the trackers and give the terminal back."""
        self._trackers.close()
        self.console.stop()
