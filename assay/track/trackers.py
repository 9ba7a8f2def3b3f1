"""Experiment trackers by name, imported when used: TensorBoard, Weights & Biases, MLflow, trackio."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from assay.errors import MissingExtra
from assay.registry import Registry


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of the run when it opens."""

    folder: Path
    project: str
    name: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    start_step: int = 0
    """Steps done before: a resumed run goes on after them, and what was logged later is void."""


class Tracker(Protocol):
    """What each tracker does."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass on the metrics of a step; those that are not finite are left out."""
        ...

    def summary(self, values: Mapping[str, Any]) -> None:
        """Pass on the run's results (summary.json, nested)."""
        ...

    def close(self) -> None:
        """Write what is buffered and end the run."""
        ...


TRACKERS: Registry[Callable[[TrackedRun], Tracker]] = Registry("tracker")
"""The trackers by name, each opened on a :class:`TrackedRun`."""


def _need(module: str, tracker: str, package: str | None = None) -> ModuleType:
    """Import a tracker's module or say which extra brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise MissingExtra(f"the tracker {tracker!r}", package or tracker, tracker) from None


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, keys joined by dots.

    >>> flatten({"before": {"greedy": {"value": 0.25}}, "steps": 40})
    {'before.greedy.value': 0.25, 'steps': 40}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {k: float(v) for k, v in metrics.items() if v is not None and math.isfinite(v)}


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return _finite({k: v for k, v in flatten(values).items() if isinstance(v, int | float)})


@TRACKERS.register("tensorboard")
class TensorBoard:
    """Event files in the run's ``tensorboard/`` folder: ``tensorboard --logdir RUNS``."""

    def __init__(self, run: TrackedRun) -> None:
        _need("tensorboard", "tensorboard")
        writer = import_module("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(
            str(run.folder / "tensorboard"), purge_step=run.start_step + 1 if run.start_step else None
        )
        lines = [f"    {key}: {value}" for key, value in flatten(run.recipe).items()]
        self._writer.add_text("recipe", "\n".join(lines), run.start_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write scalars."""
        for name, value in _finite(metrics).items():
            self._writer.add_scalar(name, value, step)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write the numbers as scalars under ``summary/``."""
        for name, value in _numbers(values).items():
            self._writer.add_scalar(f"summary/{name}", value, 0)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


@TRACKERS.register("wandb")
class WandB:
    """A run of Weights & Biases; its own environment variables (WANDB_MODE and so on) hold."""

    def __init__(self, run: TrackedRun) -> None:
        module = _need("wandb", "wandb")
        self._run = module.init(
            project=run.project,
            name=run.name,
            id=re.sub(r"[^\w-]", "-", run.name),
            resume="allow",
            dir=str(run.folder),
            config=dict(run.recipe),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a step."""
        self._run.log(_finite(metrics), step=step)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Update the run's summary."""
        self._run.summary.update(flatten(values))

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


@TRACKERS.register("mlflow")
class MLflow:
    """A run of MLflow in the experiment named by ``track.project``; MLFLOW_TRACKING_URI says where."""

    def __init__(self, run: TrackedRun) -> None:
        module = _need("mlflow", "mlflow")
        self._client = module.MlflowClient()
        experiment = self._client.get_experiment_by_name(run.project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(run.project)
        self._id = self._client.create_run(number, run_name=run.name).info.run_id
        for key, value in flatten(run.recipe).items():
            self._client.log_param(self._id, key, str(value)[:500])

    def _metrics(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, re.sub(r"[^\w\-./: ]", "_", name), value, step=step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a step; characters that MLflow refuses in names become underscores."""
        self._metrics(step, _finite(metrics))

    def summary(self, values: Mapping[str, Any]) -> None:
        """Log the numbers as metrics under ``summary/``."""
        self._metrics(0, {f"summary/{k}": v for k, v in _numbers(values).items()})

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._id)


@TRACKERS.register("trackio")
class Trackio:
    """A run of trackio, kept on this machine: ``trackio show``."""

    def __init__(self, run: TrackedRun) -> None:
        module = _need("trackio", "trackio")
        self._run = module.init(project=run.project, name=run.name, config=flatten(run.recipe), resume="allow")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a step."""
        self._run.log(_finite(metrics), step=step)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Log the numbers under ``summary/``."""
        self._run.log({f"summary/{k}": v for k, v in _numbers(values).items()})

    def close(self) -> None:
        """Send what is buffered and end the run."""
        self._run.finish()


class Trackers:
    """Several trackers as one. One that fails while the run goes on is dropped and reported, never the run.

    Trackers talk to servers and may raise anything: the first exception of each goes to ``on_failure`` as
    one line. Opening one may raise :class:`MissingExtra`, or whatever the tracker raises: then nothing has
    been trained yet.
    """

    def __init__(self, names: Sequence[str], run: TrackedRun, on_failure: Callable[[str], None]) -> None:
        self._on_failure = on_failure
        self._open: dict[str, Tracker] = {name: TRACKERS[name](run) for name in names}

    @property
    def names(self) -> tuple[str, ...]:
        """The trackers that still work."""
        return tuple(self._open)

    def _each(self, do: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            try:
                do(tracker)
            except Exception as error:  # third-party code over a network; the run outlives it
                del self._open[name]
                self._on_failure(f"tracker {name} failed and is left out: {type(error).__name__}: {error}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass on the metrics of a step."""
        self._each(lambda tracker: tracker.log(step, metrics))

    def summary(self, values: Mapping[str, Any]) -> None:
        """Pass on the run's results."""
        self._each(lambda tracker: tracker.summary(values))

    def close(self) -> None:
        """Close them all."""
        self._each(lambda tracker: tracker.close())
