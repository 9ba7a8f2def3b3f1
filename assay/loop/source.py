"""Where a step's scored groups come from: admits prompts, follows them to their verdicts, keeps its place in the data.

One code path for every regime. What may start, and what a step is made of, is arithmetic (`assay.loop.schedule`); how
a group comes to its verdicts is `assay.loop.making`; this file starts the one as the other allows. Groups go on while
the policy is updated: at ``max_staleness`` 0 none is left then, as no group may start before the next publish.

In order (``run.deterministic``) all groups that may start are made together, in rounds, and batches take them by their
number: everything is then a function of indices. Otherwise each group goes its own way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from assay.data.prompts import PromptSet
from assay.data.sampler import PromptSampler
from assay.loop.harvest import Harvest
from assay.loop.in_flight import InFlight, Unfinished, with_partials
from assay.loop.invalid import refuse_invalid
from assay.loop.making import Asking, Judge, Making, Progress, make, unheard
from assay.loop.schedule import Place, Schedule
from assay.records import Group, Rollout
from assay.rollout.dispatch import Dispatcher
from assay.rollout.engine import Stats
from assay.track.phases import Phases


@dataclass
class GroupSource:
    """Scored groups for training, step after step.

    ``cursor`` (prompts drawn), ``admissions`` (groups started) and what is in flight are its whole state: prompts,
    their order and every sampling seed are functions of the two numbers.
    """

    dispatcher: Dispatcher
    scorer: Judge
    prompts: PromptSet
    sampler: PromptSampler
    asking: Asking
    schedule: Schedule
    group_size: int
    max_invalid: float
    has_signal: Callable[[Group], bool]
    phases: Phases
    oversample: int = 0
    """Rollouts beyond ``group_size`` that are started in a group; the slowest are cancelled."""
    progress: Progress = unheard
    cursor: int = 0
    admissions: int = 0
    _makings: dict[int, Making] = field(default_factory=dict)
    """Of the untrained groups, by admission."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _groups: dict[int, Group] = field(default_factory=dict)
    """Complete groups that wait for their batch."""
    _unused: list[Group] = field(default_factory=list)
    _seen: list[Making] = field(default_factory=list)
    """Completed since the last harvest."""
    _heard: int = 0
    """Answers since the last harvest."""
    _taken: InFlight = InFlight()
    """The last batch handed out, as it was in flight before."""
    _held: bool = False
    _stats: Stats | None = None

    async def next_groups(self) -> Harvest:
        """The groups of the next step; at staleness 0, abandoned or failed, the same prompts come again.

        With dynamic sampling, groups without signal are replaced by further prompts until ``prompts_per_step`` have
        signal or the bound on replacements is reached; then the step has what there is. Raises AssayError when more
        than ``max_invalid`` of the verdicts since the last step are invalid, and what engine or verifiers raise.
        """
        place = self.cursor, self.admissions
        if self._stats is None or self.schedule.max_staleness == 0:
            self._stats = self.dispatcher.engine.stats  # what evaluation and probe did between is no part of the step
        self._held = False
        try:
            while True:
                self._fill()
                extra, ready = self.schedule.extra, dict(self.schedule.ready)
                in_round = self.schedule.in_order and self._tasks
                batch = None if in_round else self.schedule.next_batch()
                if batch is not None:
                    self._taken = InFlight(self._complete_ones(ready, batch), extra)
                    return self._harvest(batch, extra)
                await self._advance()
        except BaseException:
            if self.schedule.max_staleness == 0:
                await self._give_up(place)
            raise

    async def in_flight(self, version: int) -> InFlight:
        """What is started and not trained on after ``version`` batches, with what the engine has of unfinished answers.

        A batch that was handed out and whose step failed is not trained on: it is among them.
        """
        partials: dict[int, dict[int, Rollout]] = {}
        if self.schedule.running:
            for request_id, rollout in await self.dispatcher.engine.partials():
                partials.setdefault(request_id, {})[rollout.index] = rollout
        return self._unfinished(partials, version)

    def known(self, version: int) -> InFlight:
        """What is started and not trained on, without what only the engine has."""
        return self._unfinished({}, version)

    def restore(self, in_flight: InFlight, version: int) -> None:
        """Go on after ``version`` batches; what was running is started again at the next `next_groups`."""
        self.schedule.version, self.schedule.extra = version, in_flight.extra
        begun: list[Making] = []
        for unfinished in in_flight.groups:
            making, place = unfinished.making, unfinished.place
            again = making.forget_invalid()  # the verifier may have been mended since
            if place is None or place.blank:
                self._unused += [making.group()] if unfinished.fresh and not again else []
            if place is not None:
                self._makings[making.admission] = making
                if unfinished.stage == "running" or (again and not place.blank):
                    self.schedule.running[making.admission] = place
                    begun.append(making)
                    continue
                self.schedule.ready[making.admission] = place
                if not place.blank:
                    self._groups[making.admission] = making.group()
            if unfinished.fresh and not again:
                self._seen.append(making)
        self._begin(begun)

    async def drained(self) -> None:
        """Wait until no answer is being made; none is begun before the next call of `next_groups`."""
        self._held = True
        while making := {t for t in self._tasks if not t.done()}:
            await asyncio.wait(making, return_when=asyncio.FIRST_EXCEPTION)
            self._raise()

    async def discard(self) -> int:
        """Give up every group that is not trained on, as after a rollback; returns how many those were."""
        await self.close()
        gone = self.schedule.discard()
        self._unused += self._groups.values()  # complete and never trained on: the next step reports them
        self._makings, self._groups = {}, {}
        return len(gone)

    def drop_to_sync(self) -> None:
        """Start groups for the very next batch alone from now on; what is in flight is still trained on."""
        self.schedule.dropped = True

    async def close(self) -> None:
        """Take back what is in flight; the makings keep what is there of them."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _fill(self) -> None:
        """Start as many groups as there is room for."""
        n = 0 if self._held else self.schedule.room(self.dispatcher.engine.version)
        if n == 0:
            return
        indices, self.cursor = self.sampler.take(self.cursor, n)
        begun: list[Making] = []
        for k in indices:
            size = self.group_size + self.oversample
            making = Making(self.admissions, self.prompts.prompts[k], size, self.group_size)
            self.schedule.admit(making.admission, self.dispatcher.engine.version)
            self.admissions += 1
            begun.append(making)
        self._begin(begun)

    def _begin(self, makings: Sequence[Making]) -> None:
        self._makings |= {m.admission: m for m in makings}
        for together in [list(makings)] if self.schedule.in_order else [[m] for m in makings]:
            if together:
                self._tasks.add(asyncio.create_task(self._follow(together)))

    async def _follow(self, makings: Sequence[Making]) -> None:
        """See groups to their end, and start what their end makes room for."""
        try:
            await make(makings, self.dispatcher, self.scorer, self.asking, self._hear)
            for making in makings:
                self._complete(making)
        finally:
            self._news.set()
        task = asyncio.current_task()
        if task is not None:
            self._tasks.discard(task)
        if not self.schedule.in_order:
            self._fill()

    def _complete(self, making: Making) -> None:
        group = making.group()
        self._seen.append(making)
        if len(self._seen) >= self.schedule.prompts_per_step:
            refuse_invalid([v for m in self._seen for v in m.all_verdicts()], self.max_invalid)
        signal = self.schedule.max_extra is None or self.has_signal(group)
        self.schedule.complete(making.admission, signal)
        if signal:
            self._groups[making.admission] = group
        else:
            self._unused.append(group)
        if making.admission not in self.schedule.ready:
            del self._makings[making.admission]

    def _harvest(self, batch: list[int], extra: int) -> Harvest:
        engine = self.dispatcher.engine
        before, self._stats = self._stats or Stats(), engine.stats
        seen, self._seen = self._seen, []
        unused, self._unused = self._unused, []
        self._heard = 0
        untrained = self.schedule.running | self.schedule.ready
        self._makings = {a: m for a, m in self._makings.items() if a in untrained}
        if not self.schedule.in_order:
            self._fill()
        return Harvest(
            groups=tuple(self._groups.pop(a) for a in sorted(batch)),
            unused=tuple(sorted(unused, key=lambda g: g.admission)),
            extra=extra,
            replaced=tuple(lost for m in sorted(seen, key=lambda m: m.admission) if (lost := m.lost()) is not None),
            cancelled=tuple(r for m in seen for r in m.cancelled),
            sampling=self._stats.since(before),
            version=self.schedule.version - 1,
            ahead=self.schedule.max_staleness != 0,
            running=len(self.schedule.running),
            waiting=len(self.schedule.ready),
            due=len(self.schedule.waits_for()),
        )

    async def _advance(self) -> None:
        """Wait for a group to complete: sampling while the engine has work for us, scoring after that."""
        if not self._tasks:
            raise RuntimeError("nothing is being made, nothing may start, and there is no batch")
        news = asyncio.ensure_future(self._news.wait())
        quiet = asyncio.ensure_future(self.dispatcher.quiet())
        try:
            with self.phases("generate"):
                await asyncio.wait({news, quiet}, return_when=asyncio.FIRST_COMPLETED)
            if quiet.done():
                with self.phases("score"):
                    await news
        finally:
            news.cancel()
            quiet.cancel()
        self._news.clear()
        self._raise()

    def _raise(self) -> None:
        """Raise what a group's making raised."""
        for task in [t for t in self._tasks if t.done()]:
            self._tasks.discard(task)
            task.result()

    async def _give_up(self, place: tuple[int, int]) -> None:
        await self.discard()
        self.cursor, self.admissions = place
        self._seen, self._unused, self._heard = [], [], 0

    def _hear(self) -> None:
        self._heard += 1
        near = islice(self.schedule.running, 2 * self.schedule.prompts_per_step)  # the next steps, of what may be many
        running = (self._makings[a] for a in near)
        self.progress(self._heard, self._heard + sum(len(m.missing) for m in running))

    def _unfinished(self, partials: dict[int, dict[int, Rollout]], version: int) -> InFlight:
        if self.schedule.max_staleness == 0:
            return InFlight()  # a step that failed begins again with its prompts
        running = [
            Unfinished(with_partials(self._makings[a], partials.get(a, {}), self.asking), place, "running")
            for a, place in sorted(self.schedule.running.items())
        ]
        complete = self._complete_ones(self.schedule.ready, [*self.schedule.ready])
        if self.schedule.version > version:
            return InFlight((*running, *self._taken.groups, *complete), self._taken.extra)
        return InFlight((*running, *complete), self.schedule.extra)

    def _complete_ones(self, ready: Mapping[int, Place], admissions: Sequence[int]) -> tuple[Unfinished, ...]:
        """The complete groups ``admissions``, and those that were set aside since the last step."""
        fresh = {m.admission for m in self._seen}
        kept = [Unfinished(self._makings[a], ready[a], "ready", a in fresh) for a in admissions]
        aside = [Unfinished(m, None, "unused", True) for m in self._seen if m.admission not in self._makings]
        return (*kept, *aside)
