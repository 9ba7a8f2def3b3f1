"""The run as a chain of events: groups admitted by the loop's own schedule, engines, verifiers, a trainer.

::

    admit --> engines --> verifiers --> schedule --> trainer: wait, update, publish, overhead --+
      ^  (least loaded)   (first come)   (the loop's)                                           |
      +--------------------- room, at the version that the engines sample from -----------------+

Time is virtual, and every random number is a function of the seed and the group's number: two regimes or splits see the
same groups, and the same simulation gives the same numbers.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from assay.loop.schedule import Schedule
from assay.plan.costs import Costs
from assay.plan.engine_model import Answer, EngineModel
from assay.plan.layout import Layout
from assay.plan.tally import Prediction, Step, Tally, predict, read_meter
from assay.plan.terms import Terms
from assay.plan.workload import GroupWork, Workload

PROBE = -1
"""Number of the probes in place of a group's."""


@dataclass(eq=False)
class _Group:
    """A group between its admission and its batch."""

    work: GroupWork
    verdict_s: list[float]
    """Seconds of each answer's verdict."""
    engine: EngineModel
    judged: int = 0
    kept: list[Answer] = field(default_factory=list)


class Simulation:
    """One run of ``terms`` on ``layout``; `run` it once."""

    def __init__(
        self,
        costs: Costs,
        work: Workload,
        terms: Terms,
        layout: Layout,
        seed: int = 0,
        last_version: int | None = None,
    ) -> None:
        """``last_version``: the steps of the whole run, beyond which no group is started; absent: it has no end."""
        costs = costs.at_speed(layout.engine_speed, layout.trainer_speed)
        self._costs, self._work, self._terms, self._layout, self._seed = costs, work, terms, layout, seed
        self._engines = [
            EngineModel(costs, terms.slots_of_each(layout.engines), keep_cache=terms.keep_cache)
            for _ in range(layout.engines)
        ]
        self._schedule = Schedule(
            terms.prompts_per_step,
            terms.max_staleness,
            max_groups=terms.max_groups,
            max_extra=terms.max_extra,
            last_version=last_version,
        )
        self._verifiers = [0.0] * (costs.verifier_workers or terms.verifier_workers)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._due: dict[EngineModel, float] = {}
        self._groups: dict[int, _Group] = {}
        self._unjudged: list[Answer] = []
        self._now, self._order, self._admissions, self._published = 0.0, 0, 0, 0
        self._waiting_since: float | None = 0.0
        self._publishing: int | None = None
        self._draining = False
        self._step: Step | None = None
        self._updated_at = 0.0
        self._tally = Tally()
        self.events = 0
        """Events so far: what a simulation costs."""

    def run(self, steps: int) -> Tally:
        """Simulate until so many batches are trained on."""
        self._admit()
        while len(self._tally.steps) < steps:
            self._now, _, happen = heapq.heappop(self._events)
            self.events += 1
            happen()
        return self._tally

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, happen))

    def _follow(self, engine: EngineModel) -> None:
        """Have the engine advanced when it wants to be; what was planned for it before is void."""
        due = engine.next
        if due != self._due.get(engine):
            self._due[engine] = due
            if due < float("inf"):
                self._at(due, lambda: self._advance(engine, due))

    def _advance(self, engine: EngineModel, due: float) -> None:
        if self._due.get(engine) != due:
            return
        self._due[engine] = float("inf")
        for answer in engine.advance(self._now):
            self._answered(answer)
        self._follow(engine)
        if self._terms.stream or not any(e.load for e in self._engines):
            self._judge()
        if self._publishing is not None and all(e.version >= self._publishing for e in self._engines):
            self._publish_done()

    def _admit(self) -> None:
        """Start as many groups as there is room for, each on the engine with the least to do."""
        for _ in range(0 if self._draining else self._schedule.room(self._published)):
            number, terms = self._admissions, self._terms
            self._admissions += 1
            self._schedule.admit(number, self._published)
            size = terms.group_size + terms.oversample
            rng = random.Random(self._seed << 32 | number)
            work = self._work.group(number, rng, size, terms.max_tokens)
            verdict_s = [self._costs.verifier.draw(rng) for _ in range(size)]
            engine = min(self._engines, key=lambda e: e.load)
            answers = [Answer(number, i, work.prompt_tokens, n) for i, n in enumerate(work.lengths)]
            self._groups[number] = _Group(work, verdict_s, engine)
            engine.submit(answers, self._now)
            self._follow(engine)

    def _answered(self, answer: Answer) -> None:
        """Ready for a verifier; once a group has enough answers its others are cancelled."""
        if answer.group == PROBE:
            return self._rest()
        group = self._groups[answer.group]
        if len(group.kept) == self._terms.group_size:
            return None  # ended in the same step as the last one needed
        group.kept.append(answer)
        self._unjudged.append(answer)
        if len(group.kept) == self._terms.group_size and self._terms.oversample:
            for gone in group.engine.cancel(answer.group, self._now):
                self._tally.cancelled += gone.made
            self._follow(group.engine)
        return None

    def _judge(self) -> None:
        """Hand the answers that are there to the verifiers, in the order in which they came."""
        for answer in self._unjudged:
            begins = max(self._now, heapq.heappop(self._verifiers))
            ends = begins + self._groups[answer.group].verdict_s[answer.index]
            heapq.heappush(self._verifiers, ends)
            self._at(ends, partial(self._judged, answer.group))
        self._unjudged = []

    def _judged(self, number: int) -> None:
        group = self._groups[number]
        group.judged += 1
        if group.judged == self._terms.group_size:
            self._schedule.complete(number, group.work.signal)
            if number not in self._schedule.ready:
                del self._groups[number]  # without signal, and replaced
                self._tally.replaced += 1
            self._admit()
            self._train()
            if self._draining and self._publishing is None and not self._schedule.running:
                self._publish()

    def _train(self) -> None:
        """Consume the next batch, if the trainer waits and there is one."""
        if self._waiting_since is None or len(self._schedule.ready) < self._terms.prompts_per_step:
            return
        version, ready = self._schedule.version, set(self._schedule.ready)
        batch = self._schedule.next_batch()
        if batch is None:
            return
        for blank in ready - set(self._schedule.ready) - set(batch):
            del self._groups[blank]
        groups = [self._groups.pop(number) for number in batch]
        ages = [version - a.version for g in groups for a in g.kept if a.version is not None]
        weights = [(g.work.prompt_tokens, [a.length for a in g.kept], g.work.signal) for g in groups]
        update = self._costs.update.seconds(*self._terms.tokens(weights), self._layout.trainers)
        self._step = Step(
            wait_s=self._now - self._waiting_since,
            update_s=update,
            groups=len(groups),
            mean_staleness=sum(ages) / len(ages) if ages else 0.0,
            max_staleness=max(ages, default=0),
        )
        self._waiting_since = None
        self._admit()
        self._at(self._now + update, self._updated)

    def _updated(self) -> None:
        """The weights have moved: publish them, where it is time to, and once answers may be interrupted."""
        self._updated_at = self._now
        if not self._terms.publishes(self._schedule.version, self._published):
            return self._rest()
        self._draining = not self._terms.in_flight
        if not (self._draining and self._schedule.running):
            self._publish()

    def _publish(self) -> None:
        """Hand the weights to every engine; then a probe."""
        self._publishing = self._schedule.version
        seconds = self._costs.publish_s + self._layout.shared * self._costs.wake_s / self._layout.trainers
        for engine in self._engines:
            engine.publish(self._publishing, self._now, seconds)
            self._follow(engine)

    def _publish_done(self) -> None:
        """The engines sample from the new weights; one of them answers a few tokens that are compared."""
        assert self._publishing is not None
        self._published, self._publishing = self._publishing, None
        if not self._costs.probe_tokens:
            return self._rest()
        engine = min(self._engines, key=lambda e: e.load)
        probe = Answer(PROBE, 0, self._costs.probe_prompt_tokens, self._costs.probe_tokens, urgent=True)
        engine.submit([probe], self._now)
        self._follow(engine)
        return None

    def _rest(self) -> None:
        """What is none of the phases; then the trainer waits for its next batch."""
        assert self._step is not None
        self._step = self._step.published(self._now - self._updated_at, self._costs.overhead_s)
        self._at(self._now + self._costs.overhead_s, self._next)

    def _next(self) -> None:
        assert self._step is not None
        self._tally.steps.append(self._step)
        self._tally.meters.append(read_meter(self._engines, self._now))
        self._waiting_since = self._now
        self._draining = False
        self._admit()
        self._train()


def simulate(
    costs: Costs, work: Workload, terms: Terms, layout: Layout, *, seed: int = 0, steps: int = 60
) -> Prediction:
    """Predict the steady state of a run: the mean over ``steps`` steps, after those that fill the pipeline."""
    ahead = terms.max_staleness if terms.max_staleness is not None else 4
    skip = 2 + 2 * ahead
    tally = Simulation(costs, work, terms, layout, seed).run(skip + steps)
    return predict(tally, layout.engines, skip)
