"""The run: its state between steps, what it records, when it evaluates, when it ends."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, TypeVar

from assay.errors import AssayError
from assay.loop.checkpoint import CheckpointStore, RunState
from assay.loop.evaluate import Evaluation
from assay.loop.folder import RunFolder, write_json
from assay.loop.observe import generated_tokens, harvest_metrics, speed_metrics
from assay.loop.recorder import Recorder
from assay.loop.source import Harvest, Source
from assay.objective.kl import CONTROLLERS, KlState
from assay.policy.policy import Policy, Update
from assay.recipe.schema import Recipe
from assay.track.metrics import read_metrics
from assay.track.phases import Phases

T = TypeVar("T")

MAX_BAD_STEPS = 3
"""Steps in a row without a finite update that a run survives, less one."""


Describe = Callable[[Harvest, Update], dict[str, float]]
"""What is said of a step's groups and of its update."""


def described(harvest: Harvest, update: Update) -> dict[str, float]:
    """All that is known of a step of reinforcement learning."""
    return harvest_metrics(harvest) | update.metrics


class Interrupted(Exception):
    """The user asked the run to stop; the step under way was abandoned, and nothing of it is kept."""


class Run:
    """A training run between its steps.

    ``state`` is replaced whole when a step is done, so it always describes whole steps: an abandoned one leaves no
    trace in it, and a checkpoint of it is one to resume from.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        store: CheckpointStore,
        recorder: Recorder,
        phases: Phases,
        evaluator: Callable[[], Awaitable[Evaluation]] | None,
        policy: Policy,
        draws: Source,
        state: RunState,
        describe: Describe = described,
    ) -> None:
        self.recipe = recipe
        self.folder = folder
        self.recorder = recorder
        self.phases = phases
        self.state = state
        self._store = store
        self._evaluator = evaluator
        self._policy = policy
        self._draws = draws
        self._describe = describe
        self._stop = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Are all steps done?"""
        return self.state.step >= self.recipe.run.steps

    @property
    def kl(self) -> KlState:
        """The KL controller's state."""
        return KlState(**self.state.kl)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Turn SIGINT and SIGTERM into a request to stop; a second one acts at once, as always.

        Outside the main thread, where Python cannot catch signals, it does nothing.
        """
        loop, caught = asyncio.get_running_loop(), []

        def ask(number: signal.Signals) -> None:
            self._stop.set()
            loop.remove_signal_handler(number)
            self.recorder.console.message("stopping after this step; once more to stop at once", "warning")

        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, ask, number)
                caught.append(number)
            except (ValueError, RuntimeError):
                break
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    async def unless_stopped(self, work: Awaitable[T]) -> T:
        """Wait for ``work``, or abandon it and raise `Interrupted` as soon as the user asks."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set() and not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise Interrupted
            return await task
        finally:
            stop.cancel()

    def observe(self, harvest: Harvest, update: Update, published: Mapping[str, float]) -> None:
        """Take note of a step that is done: metrics, rollouts, the KL controller, the next state.

        Raises AssayError after three steps in a row whose loss or gradient were not finite, the batch kept beside the
        run for a replay.
        """
        step = self.state.step + 1
        times = self.phases.take()
        tokens = generated_tokens(harvest)
        metrics = {
            **self._describe(harvest, update),
            **published,
            **times,
            **speed_metrics(times, tokens, update.metrics["update/tokens_forwarded"]),
        }
        kl = self.recipe.objective.kl
        if kl.coefficient > 0:
            metrics["update/kl_coefficient"] = self.kl.coefficient
        measured = update.metrics.get("update/kl_reference", float("nan"))
        rollouts = sum(len(g.rollouts) for g in harvest.groups)
        self.recorder.step(step, metrics, harvest.groups, update.advantages)
        self.state = replace(
            self.state,
            step=step,
            version=self.state.version + 1,
            cursor=self._draws.cursor,
            admissions=self._draws.admissions,
            kl=asdict(CONTROLLERS[kl.controller](self.kl, kl, measured, rollouts)),
            bad_steps=0 if update.finite else self.state.bad_steps + 1,
            totals=_added(self.state.totals, times, tokens, update.metrics["update/tokens_forwarded"]),
        )
        if self.state.bad_steps >= MAX_BAD_STEPS:
            write_json(self.folder.path / "failed-batch.json", [asdict(g) for g in harvest.groups])
            raise AssayError(
                f"loss or gradient were not finite in {MAX_BAD_STEPS} steps in a row; the last batch is in "
                f"{self.folder.path}/failed-batch.json. Lower update.learning_rate, or resume from an older checkpoint"
            )

    async def begin(self) -> None:
        """Evaluate the untrained model, unless a resumed run has done so."""
        done = any(row["step"] == 0 for row in read_metrics(self.folder.evals))
        if self.state.step == 0 and self.recipe.eval.before and not done:
            await self._evaluate()

    async def evaluate_and_checkpoint(self) -> None:
        """Evaluate and checkpoint where the recipe says so at this step."""
        step, recipe = self.state.step, self.recipe
        due = recipe.eval.every > 0 and step % recipe.eval.every == 0
        is_best = False
        if due or (self.finished and recipe.eval.after):
            is_best = await self._evaluate()
        periodic = recipe.checkpoint.every > 0 and step % recipe.checkpoint.every == 0
        if periodic or self.finished or (is_best and recipe.checkpoint.keep_best):
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write the present state, with weights and optimizer, to resume from."""
        with self.phases("checkpoint"):
            self._store.save(self.state, self._policy.save)

    def summary(self) -> dict[str, Any]:
        """Write and return ``summary.json``: before, after, seconds per phase, tokens, steps."""
        rows = {int(row["step"]): row for row in read_metrics(self.folder.evals)}
        seconds = {k[5:]: v for k, v in self.state.totals.items() if k.startswith("time/")}
        summary = {
            "run": self.folder.path.name,
            "steps": self.state.step,
            "before": estimates_of(rows[0]) if 0 in rows else None,
            "after": estimates_of(rows[self.state.step]) if self.state.step in rows and self.state.step else None,
            "best_step": self.state.best_step,
            "seconds": seconds,
            "tokens": {k: int(v) for k, v in self.state.totals.items() if not k.startswith("time/")},
        }
        write_json(self.folder.summary, summary)
        return json.loads(self.folder.summary.read_text(encoding="utf-8"))

    async def _evaluate(self) -> bool:
        """Evaluate; is it the best so far?"""
        if self._evaluator is None:
            return False
        with self.phases("evaluate"):
            evaluation = await self.unless_stopped(self._evaluator())
        self.recorder.evaluation(self.state.step, evaluation)
        score = evaluation.estimates["greedy"].value
        is_best = self.state.step > 0 and (self.state.best is None or score > self.state.best)
        if is_best:
            self.state = replace(self.state, best=score, best_step=self.state.step)
        return is_best


def estimates_of(row: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The estimates of a line of evals.jsonl by name, each with value, low, high and n.

    >>> estimates_of({"step": 0, "eval/prompts": 9, "eval/greedy": 0.5, "eval/greedy_low": 0.2, "eval/greedy_high": 0.8})
    {'greedy': {'value': 0.5, 'low': 0.2, 'high': 0.8, 'n': 9}}
    """
    names = [k[5:] for k in row if k.startswith("eval/") and f"{k}_low" in row]
    return {
        name: {
            "value": row[f"eval/{name}"],
            "low": row[f"eval/{name}_low"],
            "high": row[f"eval/{name}_high"],
            "n": int(row["eval/prompts"]),
        }
        for name in names
    }


def _added(
    totals: Mapping[str, float], times: Mapping[str, float], generated: int, forwarded: float
) -> dict[str, float]:
    found = dict(totals)
    for name, value in {**times, "generated": generated, "forwarded": forwarded}.items():
        found[name] = found.get(name, 0.0) + value
    return found
