"""The recorder: what a run writes and shows, in one place, so that all of it can be rolled back together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assay.loop.evaluate import Evaluation
from assay.loop.folder import RunFolder
from assay.recipe.schema import Recipe
from assay.records import Group
from assay.track.console import Console
from assay.track.metrics import MetricsLog
from assay.track.rollouts import RolloutLog
from assay.track.trackers import TRACKERS, TrackedRun, Tracker


class Recorder:
    """metrics.jsonl, evals.jsonl, rollouts/, the console and the trackers."""

    def __init__(self, folder: RunFolder, recipe: Recipe, console: Console, start_step: int = 0) -> None:
        self.console = console
        self.metrics = MetricsLog(folder.metrics)
        self.evals = MetricsLog(folder.evals)
        self.rollouts = RolloutLog(folder.rollouts, recipe.reward.gold) if recipe.track.rollouts else None
        tracked = TrackedRun(
            folder.path, recipe.track.project, folder.path.name, recipe.model_dump(mode="json"), start_step
        )
        self.trackers: list[Tracker] = [TRACKERS[name](tracked) for name in recipe.track.trackers]

    def roll_back(self, step: int) -> None:
        """Forget everything later than ``step``: a resumed run writes it again."""
        self.metrics.truncate_after(step)
        self.evals.truncate_after(step)
        if self.rollouts is not None:
            self.rollouts.truncate_after(step)

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        groups: Sequence[Group],
        advantages: Sequence[Sequence[float]],
    ) -> None:
        """Record a training step. The metrics come last: a step without its line was not recorded."""
        if self.rollouts is not None:
            self.rollouts.write(step, groups, advantages)
        self.metrics.append(step, metrics)
        for tracker in self.trackers:
            tracker.log(step, metrics)
        self.console.step(step, metrics, groups)

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Record a held-out evaluation after ``step``."""
        metrics = evaluation.metrics()
        if self.rollouts is not None:
            self.rollouts.write(step, evaluation.groups, phase="eval")
        self.evals.append(step, metrics)
        for tracker in self.trackers:
            tracker.log(step, metrics)
        self.console.evaluation(step, metrics)

    def close(self, summary: Mapping[str, object] | None = None) -> None:
        """Hand the trackers the summary and close them."""
        for tracker in self.trackers:
            if summary is not None:
                tracker.summary(summary)
            tracker.close()
        self.console.stop()
