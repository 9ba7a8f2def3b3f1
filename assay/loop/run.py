"""The run: its state between steps, what it records, when it evaluates, when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from assay.errors import AssayError
from assay.loop.batch_file import write_batch
from assay.loop.checkpoint import CheckpointStore, RunState
from assay.loop.drift import Decision, DriftMonitor, decide, publish_due
from assay.loop.evaluate import Evaluation
from assay.loop.folder import RunFolder, write_json
from assay.loop.harvest import Harvest, Source
from assay.loop.in_flight import InFlight
from assay.loop.interrupt import Interrupted, StopRequest
from assay.loop.limit import Limit
from assay.loop.memory import memory
from assay.loop.observe import generated_tokens, harvest_metrics, speed_metrics
from assay.loop.recorder import Recorder
from assay.loop.summary import LIMIT, added, best_step, summarize
from assay.objective.kl import CONTROLLERS, KlState
from assay.policy.policy import Policy, Update
from assay.recipe.schema import Recipe
from assay.track.phases import Phases

T = TypeVar("T")

MAX_BAD_STEPS = 3
"""Steps in a row without a finite update that a run survives, less one."""


Describe = Callable[[Harvest, Update], dict[str, float]]
"""What is said of a step's groups and of its update."""


def described(harvest: Harvest, update: Update) -> dict[str, float]:
    """All that is known of a step of reinforcement learning."""
    return harvest_metrics(harvest) | update.metrics


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
        source: Source,
        state: RunState,
        limit: Limit,
        describe: Describe = described,
        worker: Executor | None = None,
        drift: DriftMonitor | None = None,
    ) -> None:
        self.recipe = recipe
        self.folder = folder
        self.phases = phases
        self.state = state
        self._store = store
        self._recorder = recorder
        self._evaluator = evaluator
        self._policy = policy
        self._source = source
        self._limit = limit
        self._describe = describe
        self._worker = worker
        self._drift = drift or DriftMonitor(recipe.drift)
        self._decision = Decision()  # of the step in the making
        self._stop = StopRequest(lambda: self._say("stopping; once more to stop at once"))
        self._unlogged: dict[str, float] = {}
        self._optimizer_steps = policy.optimizer_steps  # as of `state`

    @property
    def finished(self) -> bool:
        """Are all steps done?"""
        return self.state.step >= self.recipe.run.steps

    @property
    def synchronous(self) -> bool:
        """Is nothing in flight between two steps?"""
        return self.recipe.regime.max_staleness == 0

    @property
    def kl(self) -> KlState:
        """The KL controller's state."""
        return KlState(**self.state.kl)

    def interruptible(self) -> AbstractContextManager[None]:
        """Turn SIGINT and SIGTERM into a request to stop: see `StopRequest.listening`."""
        return self._stop.listening()

    async def unless_stopped(self, work: Awaitable[T], phase: str = "generate") -> T:
        """Wait for ``work`` between two updates, or abandon it and raise `Interrupted` as soon as the user asks."""
        async with self._keeping(phase):
            return await self._stop.unless_asked(work)

    @asynccontextmanager
    async def doing(self, phase: str) -> AsyncIterator[None]:
        """Count the seconds of the ``with`` block for ``phase``; what fails in it leaves the steps done kept."""
        async with self._keeping(phase):
            with self.phases(phase):
                yield

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Do ``work``, which computes: in a thread of its own where generation goes on meanwhile.

        Always the same thread, since OpenMP keeps a pool of workers for each that computes.
        """
        if self._worker is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    async def drifted(self, update: Update) -> dict[str, float]:
        """Measure how far an update has moved the policy, and do what the recipe says about it, but for the publish.

        Raises AssayError when rolling back leads nowhere.
        """
        readings = await self.off_loop(partial(self._drift.measure, self._policy, update))
        self._decision = decision = decide(readings, self.recipe.drift)
        for crossing in decision.crossings:
            self._say(crossing.line())
        if decision.action == "sync":
            self._source.drop_to_sync()
        if decision.action == "rollback":
            await self._roll_back()
        step = self.state.step + 1
        self._drift.settle(step, decision, max((s for s in self._store.steps() if s < step), default=None))
        return self._drift.metrics(readings, decision)

    def publish_due(self, engine: int) -> bool:
        """Is the policy, as of the step in the making, to be published to an engine that has version ``engine``?"""
        bound = 0 if self._drift.state.synchronous else self.recipe.regime.max_staleness
        return publish_due(self.recipe.sync.every, self.state.version + 1, engine, bound, self._decision)

    async def _roll_back(self) -> None:
        """Give the policy the weights and the optimizer of the last good checkpoint; the run goes on with new prompts.

        What is in flight was sampled by what led here, and is given up.
        """
        self._drift.refuse_endless_rollbacks()
        good, steps = self._drift.state.good, self._store.steps()
        target = good if good in steps else steps[-1]
        self._store.read(target, self._policy.load)
        gone = await self._source.discard()
        lost = f"; {gone} groups in the making are given up" if gone else ""
        self._say(f"rolled back to the weights and the optimizer of step {target}{lost}")

    def observe(self, harvest: Harvest, update: Update, published: Mapping[str, float]) -> None:
        """Take note of a step that is done: metrics, rollouts, the KL controller, the next state.

        Raises AssayError after three steps in a row whose loss or gradient were not finite, the batch kept beside the
        run for a replay, and when the disk is full.
        """
        step, settings = self.state.step + 1, self.recipe.objective.kl
        answered, forwarded = generated_tokens(harvest), update.metrics["update/tokens_forwarded"]
        self._take_times()
        times, self._unlogged = self._unlogged, {}
        at_limit = self._limit.seconds(harvest, update)
        sampled = times if self._worker is None else times | {"time/generate": times["time/step"]}  # it never ends
        speed = speed_metrics(sampled, answered, forwarded, at_limit)
        metrics = {**self._describe(harvest, update), **published, **times, **speed}
        if settings.coefficient > 0:
            metrics["update/kl_coefficient"] = self.kl.coefficient
        with self._store.disk(f"step {step}"):
            self._recorder.step(step, metrics, harvest, update.advantages)
        tokens = {harvest.origin: answered, "forwarded": forwarded}
        measured = update.metrics.get("update/kl_reference", float("nan"))
        rollouts = sum(len(g.rollouts) for g in harvest.groups)
        self.state = replace(
            self.state,
            step=step,
            version=self.state.version + 1,
            cursor=self._source.cursor,
            admissions=self._source.admissions,
            kl=asdict(CONTROLLERS[settings.controller](self.kl, settings, measured, rollouts)),
            bad_steps=0 if update.finite else self.state.bad_steps + 1,
            drift=asdict(self._drift.state),
            totals=added(self.state.totals, tokens | {LIMIT + phase: s for phase, s in at_limit.items()}),
        )
        self._optimizer_steps = self._policy.optimizer_steps
        if self.state.bad_steps >= MAX_BAD_STEPS:
            self._give_up(harvest)

    async def evaluate_and_checkpoint(self) -> None:
        """Evaluate and checkpoint where the recipe says so at this step; a resumed run repeats neither."""
        await self._evaluate_if_due()
        step, settings = self.state.step, self.recipe.checkpoint
        periodic = settings.every > 0 and step % settings.every == 0
        kept = periodic or self.finished or (settings.keep_best and step == self._best_step())
        back = step == (self._drift.state.restored if step else 0) and self._drift.can_roll_back
        if (step and kept) or back:
            await self.checkpoint(await self._what_is_left())

    async def checkpoint(self, in_flight: InFlight) -> None:
        """Write the present state, with weights, optimizer and ``in_flight``, which must be of this very moment.

        Generation goes on meanwhile, where it runs ahead. Raises AssayError: see the store.
        """

        def write(folder: Path) -> None:
            self._policy.save(folder)
            in_flight.write(folder)

        self._take_times()
        state = self.state
        if not self.synchronous:  # groups go on being started between two steps
            state = replace(state, cursor=self._source.cursor, admissions=self._source.admissions)
        with self.phases("checkpoint"):
            await self.off_loop(partial(self._store.save, state, write, self._best_step(), self._drift.state.good))

    def summary(self) -> dict[str, Any]:
        """Write, hand out and return ``summary.json``: before, after, seconds per phase, tokens, steps."""
        self._take_times()
        summary = summarize(self.folder.path.name, self.state, self._recorder.evaluations())
        summary |= self._recorder.profile()
        with self._store.disk("summary.json"):
            write_json(self.folder.summary, summary)
        self._recorder.summary(summary)
        return summary

    async def _evaluate_if_due(self) -> None:
        step, settings = self.state.step, self.recipe.eval
        periodic = settings.every > 0 and step > 0 and step % settings.every == 0
        due = periodic or (settings.before and step == 0) or (settings.after and self.finished)
        if self._evaluator is None or not due or step in self._recorder.evaluations():
            return
        with self.phases("evaluate"):
            evaluation = await self.unless_stopped(self._evaluator(), "evaluate")
        with self._store.disk(f"the evaluation after step {step}"):
            self._recorder.evaluation(step, evaluation)

    @asynccontextmanager
    async def _keeping(self, phase: str) -> AsyncIterator[None]:
        """Should what is done within fail or be stopped, keep the steps done in a checkpoint, and say what is kept.

        Not in the midst of an optimizer step: weights and state disagree then, and the last checkpoint is what is kept.
        """
        try:
            with memory(phase, self.recipe):
                yield
        except Exception as error:
            step, settled = self.state.step, self._policy.optimizer_steps == self._optimizer_steps
            if step and settled:
                await self.checkpoint(await self._what_is_left())
            if step and not isinstance(error, Interrupted):
                kept = f"the {step} steps done are kept" if settled else f"step {step + 1} began to move the weights"
                self._say(f"{kept}: find out what failed and {self._store.way_back()}")
            raise

    async def _what_is_left(self) -> InFlight:
        """What is in flight: with what the engine knows of it, if it still answers."""
        try:
            return await self._source.in_flight(self.state.version)
        except AssayError:
            return self._source.known(self.state.version)

    def _best_step(self) -> int | None:
        return best_step(self._recorder.evaluations())

    def _say(self, text: str) -> None:
        self._recorder.console.message(text, "warning")

    def _take_times(self) -> None:
        """Add the seconds since the last call to the totals, and to what the next step's metrics will show."""
        times = self.phases.take()
        self._unlogged = added(self._unlogged, times)
        self.state = replace(self.state, totals=added(self.state.totals, times))

    def _give_up(self, harvest: Harvest) -> None:
        with self._store.disk("failed-batch.json"):
            write_batch(self.folder.failed_batch, self.state.step, harvest.groups)
        raise AssayError(
            f"loss or gradient were not finite in {MAX_BAD_STEPS} steps in a row; the last batch is in "
            f"{self.folder.failed_batch}: lower update.learning_rate in a new run, or look for what the batch holds "
            f"(`assay show {self.folder.path} --phase failed`) and {self._store.way_back()}"
        )
