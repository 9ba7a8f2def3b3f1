"""The real source on a virtual clock, over engines and verifiers of any slowness: no bound is broken, nothing hangs.

200 schedules in an ordinary run; ``make soak`` asks for 10,000 by ``ASSAY_SCHEDULES``.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from loop_helpers import prompts
from virtual import Deadlock, SlowEngine, SlowScorer, run_virtually

from assay.data.sampler import PromptSampler
from assay.errors import AssayError
from assay.loop.harvest import Harvest
from assay.loop.in_flight import InFlight, read_in_flight
from assay.loop.making import Asking
from assay.loop.schedule import Schedule
from assay.loop.source import GroupSource
from assay.rollout.dispatch import Dispatcher
from assay.rollout.fleet import Fleet, Replica
from assay.rollout.sampling import Sampling
from assay.rollout.thinking import ThinkingBudget
from assay.track.phases import Phases

SCHEDULES = int(os.environ.get("ASSAY_SCHEDULES", "200"))
CAP = 4000


@dataclass
class World:
    """A random recipe with random timings."""

    seed: int
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self.prompts = rng.randint(1, 4)
        self.group_size = rng.randint(2, 4)
        self.eta: int | None = rng.choice([0, 0, 1, 1, 2, 3, 5, None])
        self.groups = self.prompts * rng.randint(1, 5) if self.eta is None or rng.random() < 0.2 else None
        self.extra = rng.choice([None, None, 2, 5])
        self.every = 1 if self.eta == 0 else rng.randint(1, (self.eta or 2) + 1)
        self.steps = rng.randint(3, 8)
        self.oversample = rng.choice([0, 0, 0, 2])
        self.in_flight = rng.random() < 0.7
        self.thinking = ThinkingBudget(20, "</t>", (9, 9)) if rng.random() < 0.3 else None
        self.update = rng.random() * 60
        self.dead = rng.random() < 0.2
        """Do all engines die within the run?"""

    def length(self) -> int:
        """Most answers are short, one in thirty is very long."""
        return self.rng.randint(1000, CAP) if self.rng.random() < 1 / 30 else self.rng.randint(1, 60)

    def engine(self) -> Fleet:
        def replica(name: str) -> Replica:
            dies = self.rng.random() * 4000 if self.dead or self.rng.random() < 0.2 else None
            if name == "0" and not self.dead:
                dies = None
            return Replica(name, SlowEngine(self.length, self.rng.randint(1, 12), self.rng.random(), dies))

        return Fleet([replica(str(i)) for i in range(self.rng.randint(1, 3))], retries=3, warn=lambda _: None)

    def source(self, engine: Any, **more: Any) -> GroupSource:
        return GroupSource(
            dispatcher=Dispatcher(engine),
            scorer=SlowScorer(self.rng, self.rng.choice([1, 300]), self.rng.choice([0, 0.05]), self.rng.random() < 0.2),
            prompts=prompts(40),
            sampler=PromptSampler(40, seed=self.seed),
            asking=Asking(Sampling(max_tokens=CAP), 1, 2, self.thinking),
            schedule=Schedule(
                self.prompts, self.eta, self.groups, self.extra, last_version=self.steps, **more.pop("schedule", {})
            ),
            group_size=self.group_size,
            max_invalid=1.0,
            has_signal=lambda g: g.kind == "mixed",
            phases=Phases(),
            oversample=self.oversample,
            **more,
        )


async def step(world: World, source: GroupSource) -> Harvest:
    """One turn of the loop: groups, an update, a publish when one is due."""
    harvest = await asyncio.wait_for(source.next_groups(), 1e7)
    await asyncio.sleep(world.update)
    engine, version = source.dispatcher.engine, source.schedule.version
    behind = world.eta is not None and version - engine.version > world.eta
    if version % world.every == 0 or behind:
        if not world.in_flight:
            await source.drained()
        await engine.publish(version)
    return harvest


async def whole_run(world: World) -> tuple[list[Harvest], GroupSource]:
    source = world.source(world.engine())
    try:
        return [await step(world, source) for _ in range(world.steps)], source
    finally:
        await source.close()


def check(world: World, harvests: list[Harvest], source: GroupSource) -> None:
    trained = [g for h in harvests for g in h.groups]
    admissions = [g.admission for g in trained] + [g.admission for h in harvests for g in h.unused]
    assert len(admissions) == len(set(admissions)), "a group was trained on twice"
    assert {*admissions} | {*source.schedule.running} | {*source.schedule.ready} == set(range(source.admissions))
    order, _ = source.sampler.take(0, source.admissions)
    assert [g.prompt.id for g in trained] == [f"p{order[g.admission]}" for g in trained]
    assert source.cursor == source.admissions
    for harvest in harvests:
        ages = [harvest.version - (r.oldest_version or 0) for g in harvest.groups for r in g.rollouts if len(r)]
        if world.eta is not None:
            assert max(ages, default=0) <= world.eta
        assert len(harvest.groups) <= world.prompts
        if world.extra is None:
            assert len(harvest.groups) == world.prompts
        for group in harvest.groups:
            assert [r.index for r in group.rollouts] == list(range(world.group_size))


def play(seed: int) -> str:
    """Play one schedule; how it ended."""
    world = World(seed)
    try:
        harvests, source = run_virtually(whole_run(world))
    except AssayError:
        assert world.dead
        return "engines gone"
    check(world, harvests, source)
    return "done"


def test_no_schedule_hangs_breaks_the_bound_loses_or_repeats_a_prompt() -> None:
    ends = []
    for seed in range(SCHEDULES):
        try:
            ends.append(play(seed))
        except (Deadlock, AssertionError) as error:
            raise AssertionError(f"schedule {seed}") from error
    assert ends.count("done") > SCHEDULES / 2
    assert ends.count("engines gone") > 0


@pytest.mark.parametrize("eta", [0, 1, 3])
def test_one_group_arbitrarily_slow_never_breaks_the_bound_and_never_stalls_what_need_not_wait(eta: int) -> None:
    world = World(0)
    world.eta, world.prompts, world.group_size, world.steps, world.extra = eta, 2, 2, 30, None
    world.groups, world.every, world.in_flight, world.update, world.oversample = None, 1, True, 10, 0
    world.thinking = None
    lengths = iter([CAP, *[5] * 10_000])

    async def scenario() -> tuple[list[Harvest], list[float], GroupSource]:
        source = world.source(SlowEngine(lambda: next(lengths), slots=64))
        source.scorer = SlowScorer(world.rng, 1)
        harvests, times = [], []
        for _ in range(world.steps):
            harvests.append(await step(world, source))
            times.append(asyncio.get_running_loop().time())
        return harvests, times, source

    harvests, times, source = run_virtually(scenario())
    check(world, harvests, source)
    assert next(i for i, h in enumerate(harvests) for g in h.groups if g.admission == 0) <= eta
    waits = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert sum(w > CAP / 2 for w in waits) == 1, "the one slow group is waited for once, at its deadline"


def test_drained_without_cancellation_the_lengths_trained_on_are_the_lengths_generated() -> None:
    world = World(5)
    world.eta, world.prompts, world.group_size, world.steps = 3, 3, 4, 40
    world.groups, world.extra, world.oversample, world.dead, world.every = None, None, 0, False, 1
    world.thinking = None
    engine = SlowEngine(world.length, slots=10, pace=0.3)

    async def scenario() -> list[Harvest]:
        source = world.source(engine)
        source.scorer = SlowScorer(world.rng, 20)
        return [await step(world, source) for _ in range(world.steps)]

    harvests = run_virtually(scenario())
    trained = {(g.admission, r.index): len(r) for h in harvests for g in h.groups for r in g.rollouts}
    assert trained == engine.generated
    assert max(trained.values()) > 1000


def stored(in_flight: InFlight, source: GroupSource) -> InFlight:
    """What is in flight, after a way through its file."""
    with tempfile.TemporaryDirectory() as folder:
        in_flight.write(Path(folder))
        return read_in_flight(Path(folder), source.prompts)


def test_a_run_stopped_and_restored_at_any_moment_loses_and_repeats_nothing() -> None:
    """Partial answers are kept, a batch whose update failed is trained on after all, and the bound still holds."""
    kept = 0
    for seed in range(60):
        world = World(1000 + seed)
        world.eta, world.dead = world.rng.choice([1, 2, 4]), False
        world.every, world.groups = 1, None
        stops = sorted(world.rng.sample(range(1, world.steps + 1), k=min(2, world.steps)))

        async def life(world: World, state: dict[str, Any], until: int) -> list[Harvest]:
            source = world.source(SlowEngine(world.length, 6, 0.5, version=state["version"]))
            source.cursor, source.admissions = state["cursor"], state["admissions"]
            source.restore(state["in flight"], state["version"])
            harvests = [await step(world, source) for _ in range(until - state["version"])]
            await asyncio.sleep(world.rng.random() * 50)
            if until < world.steps and world.rng.random() < 0.5:
                await source.next_groups()  # its update fails
            state["in flight"] = stored(await source.in_flight(until), source)
            state |= {"cursor": source.cursor, "admissions": source.admissions, "version": until}
            state["last"] = source
            await source.close()
            return harvests

        state: dict[str, Any] = {"cursor": 0, "admissions": 0, "version": 0, "in flight": InFlight()}
        harvests: list[Harvest] = []
        for until in [*stops, world.steps]:
            harvests += run_virtually(life(world, state, until))
            kept += sum(bool(u.making.begun) for u in state["in flight"].groups)
        assert len(harvests) == world.steps
        check(world, harvests, state["last"])
    assert kept > 20, "partial answers were kept"


def test_an_engine_that_dies_for_good_ends_the_wait_with_its_reason() -> None:
    world = World(3)
    world.eta, world.prompts = 1, 2

    async def endless(source: GroupSource) -> None:
        while True:
            await step(world, source)

    async def scenario() -> None:
        source = world.source(SlowEngine(lambda: 50, 4, dies_at=20))
        with pytest.raises(AssayError, match="the engine has died"):
            await endless(source)
        assert source.known(source.schedule.version).groups, "what was begun is known without the engine"
        with pytest.raises(AssayError, match="the engine has died"):
            await source.in_flight(source.schedule.version)
        await source.close()

    run_virtually(scenario())
