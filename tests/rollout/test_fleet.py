import asyncio
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedEngine

from assay.errors import AssayError, UserError
from assay.records import Prompt, Rollout, Segment
from assay.rollout.engine import EngineFailed, Request, Stats
from assay.rollout.fleet import Fleet, Replica
from assay.rollout.ledger import Flight, requests_for
from assay.rollout.sampling import Sampling

PATIENCE = 20.0
"""Seconds after which a scenario of in-memory engines is taken to hang."""


def request(id: int, n: int = 2, max_tokens: int = 3, first_index: int = 0, **more) -> Request:
    prompt = Prompt(f"p{id}", (), "", (1, 2))
    return Request(id, prompt, n, Sampling(max_tokens=max_tokens), first_index=first_index, **more)


def steady(act: str = "token"):
    return lambda: act


def acts(*first: str, then: str = "token"):
    return itertools.chain(first, itertools.repeat(then)).__next__


def heirs_of(engines):
    """A replica's restart: each call gives the next of ``engines``, or raises it."""
    left = iter(engines)

    async def restart():
        await asyncio.sleep(0)
        made = next(left)
        if isinstance(made, Exception):
            raise made
        return made

    return restart


def fleet_of(*engines: ScriptedEngine, restarts=(), **more) -> Fleet:
    heirs = [heirs_of(some) for some in restarts] + [None] * (len(engines) - len(restarts))
    members = [Replica(f"replica {i}", e, h) for i, (e, h) in enumerate(zip(engines, heirs, strict=True))]
    return Fleet(members, **{"retries": 1, "warn": lambda _: None, **more})


def play(scenario):
    return asyncio.run(asyncio.wait_for(scenario, PATIENCE))


async def drain(fleet: Fleet) -> list[tuple[int, Rollout]]:
    return [pair async for pair in fleet.finished()]


def test_requests_go_to_the_replica_with_the_fewest_rows():
    a, b = ScriptedEngine(steady()), ScriptedEngine(steady())
    fleet = fleet_of(a, b)

    async def scenario():
        for i, n in enumerate((5, 1, 2, 1)):
            await fleet.submit(request(i, n))
        return await drain(fleet)

    seen = play(scenario())
    assert [r.id for r in a.asked] == [0]
    assert [r.id for r in b.asked] == [1, 2, 3]
    assert Counter((i, r.index) for i, r in seen) == Counter(
        (i, k) for i, n in enumerate((5, 1, 2, 1)) for k in range(n)
    )
    assert fleet.stats == a.stats.plus(b.stats) == Stats(generated_tokens=3 * 9)
    assert fleet.limits.max_running == 16


def test_a_dead_replicas_answers_go_on_behind_their_tokens():
    warnings = []
    a, b = ScriptedEngine(acts("token", "token", then="die")), ScriptedEngine(steady())
    fleet = fleet_of(a, b, warn=warnings.append)

    async def scenario():
        await fleet.submit(request(0, n=1, max_tokens=5))
        return await drain(fleet)

    ((_, rollout),) = play(scenario())
    assert rollout.token_ids == (0, 1, 2, 3, 4)
    assert rollout.finish == "length"
    assert [len(s.token_ids) for r in b.asked for s in r.begun] == [1, 1]
    assert a.closed
    assert warnings == ["replica 0 is lost: it died; 1 unfinished answers go on elsewhere"]


def test_what_is_lost_too_often_ends_as_an_error_with_its_sound_tokens():
    engines = [ScriptedEngine(acts("token", then="die")) for _ in range(4)]
    fleet = fleet_of(*engines, retries=2)

    async def scenario():
        await fleet.submit(request(0, n=1, max_tokens=9))
        return await drain(fleet)

    ((_, rollout),) = play(scenario())
    assert rollout.finish == "error"
    assert rollout.token_ids == (0, 1, 2)
    assert fleet.serving == 1


def test_an_answer_that_errs_is_asked_of_another():
    a, b = ScriptedEngine(acts("error")), ScriptedEngine(steady())
    fleet = fleet_of(a, b)

    async def scenario():
        await fleet.submit(request(0, n=2))
        return await drain(fleet)

    seen = play(scenario())
    assert sorted((r.index, r.finish) for _, r in seen) == [(0, "length"), (1, "length")]
    assert [r.first_index for r in b.asked] == [0]
    assert fleet.serving == 2


def test_answers_that_an_engine_forgets_are_asked_for_again():
    a, b = ScriptedEngine(acts("lose", "lose")), ScriptedEngine(steady())
    fleet = fleet_of(a, b)

    async def scenario():
        await fleet.submit(request(0, n=3))
        return await drain(fleet)

    seen = play(scenario())
    assert sorted((r.index, r.finish) for _, r in seen) == [(i, "length") for i in range(3)]


def test_with_all_engines_gone_it_says_so_and_never_hangs():
    fleet = fleet_of(ScriptedEngine(steady("die")), ScriptedEngine(steady("die")), retries=5)

    async def scenario():
        await fleet.submit(request(0))
        with pytest.raises(AssayError, match=r"all 2 engines are lost; the last error: it died"):
            await drain(fleet)
        for call in (fleet.submit(request(1)), fleet.publish(1)):
            with pytest.raises(AssayError, match="all 2 engines are lost"):
                await call

    play(scenario())


def test_a_restarted_replica_has_the_present_version_before_it_serves():
    heir = ScriptedEngine(steady())
    fleet = fleet_of(ScriptedEngine(steady("die")), restarts=[[AssayError("no port"), heir]])

    async def scenario():
        await fleet.publish(7)
        await fleet.submit(request(0))
        return await drain(fleet)

    seen = play(scenario())
    assert heir.published == [7]
    assert {v for _, r in seen for s in r.segments for v in s.versions} == {7}
    assert len(seen) == 2


def test_restarts_are_bounded():
    heirs = [ScriptedEngine(steady("die")) for _ in range(9)]
    fleet = fleet_of(ScriptedEngine(steady("die")), restarts=[heirs], retries=99, restarts_of_each=2)

    async def scenario():
        await fleet.submit(request(0))
        with pytest.raises(AssayError, match="the engine is lost; the last error: it died"):
            await drain(fleet)

    play(scenario())
    assert [h.closed for h in heirs] == [True] * 2 + [False] * 7


def test_a_fault_that_all_would_share_is_no_loss():
    def diverge():
        raise EngineFailed("the weights have diverged")

    fleet = fleet_of(ScriptedEngine(diverge), ScriptedEngine(steady()))

    async def scenario():
        await fleet.submit(request(0))
        with pytest.raises(EngineFailed, match="the weights have diverged"):
            await drain(fleet)
        assert fleet.serving == 2

    play(scenario())


def test_a_prompt_that_is_refused_leaves_nothing_in_flight():
    class Strict(ScriptedEngine):
        async def submit(self, request):
            raise UserError("too long")

    fleet = fleet_of(Strict(steady()))

    async def scenario():
        with pytest.raises(UserError, match="too long"):
            await fleet.submit(request(0))
        return await drain(fleet)

    assert play(scenario()) == []
    assert fleet.serving == 1


def test_a_rollout_is_in_flight_once():
    fleet = fleet_of(ScriptedEngine(steady()))

    async def scenario():
        await fleet.submit(request(0, n=3))
        with pytest.raises(ValueError, match="rollout 2 of request 0 is in flight already"):
            await fleet.submit(request(0, n=2, first_index=2))
        return await drain(fleet)

    assert len(play(scenario())) == 3


def test_sleep_waits_for_nobody_and_refuses_answers_in_flight():
    fleet = fleet_of(ScriptedEngine(steady()))

    async def scenario():
        await fleet.sleep()
        await fleet.submit(request(0))
        with pytest.raises(RuntimeError, match="answers are in flight"):
            await fleet.sleep()
        await drain(fleet)

    play(scenario())


def test_partials_are_of_all_that_is_unfinished_and_unseen():
    a, b = (
        ScriptedEngine(acts("token", "token", then="wait")),
        ScriptedEngine(acts("token", "token", "token", then="wait")),
    )
    fleet = fleet_of(a, b)

    async def scenario():
        await fleet.submit(request(0, n=1, max_tokens=4))
        await fleet.submit(request(1, n=1, max_tokens=3))
        for _ in range(60):
            await asyncio.sleep(0)
        held = {i: (len(r), r.finish) for i, r in await fleet.partials()}
        await fleet.close()
        return held

    assert play(scenario()) == {0: (2, "cancelled"), 1: (3, "cancelled")}


def flight(owner: Request, index: int, tokens: int = 0) -> Flight:
    segments = (Segment("policy", (5,) * tokens, (-1.0,) * tokens, (0,) * tokens),) if tokens else ()
    return Flight(owner, index, known=Rollout(owner.prompt.id, index, segments, "cancelled", ""))


def test_lost_neighbours_are_asked_for_together_and_begun_ones_alone():
    one, two = request(0, n=6), request(1, n=2)
    lost = [flight(one, 0), flight(one, 1), flight(one, 2, tokens=4), flight(one, 4), flight(two, 0), flight(two, 1)]
    asked = [(r.id, r.first_index, r.n, sum(len(s.token_ids) for s in r.begun)) for r, _ in requests_for(lost)]
    assert sorted(asked) == [(0, 0, 2, 0), (0, 2, 1, 4), (0, 4, 1, 0), (1, 0, 2, 0)]
    assert sorted(f.name for _, some in requests_for(lost) for f in some) == sorted(f.name for f in lost)


ACTS = st.sampled_from(["token"] * 12 + ["wait"] * 4 + ["error", "lose", "die"])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whatever_happens_every_rollout_comes_exactly_once(data):
    """Engines that die, err and forget at any moment, cancellations and publishes in between."""
    replicas = data.draw(st.integers(1, 3))
    retries = data.draw(st.integers(0, 3))
    moves = data.draw(
        st.lists(st.tuples(st.sampled_from(["submit", "cancel", "publish", "look", "turn"]), st.integers(0, 5)))
    )

    def engine():
        plan = iter(data.draw(st.lists(ACTS, max_size=25)))
        return ScriptedEngine(lambda: next(plan, "token"))

    def heirs():
        return [engine() if data.draw(st.booleans()) else AssayError("no") for _ in range(data.draw(st.integers(0, 2)))]

    async def scenario():
        spares = [heirs() for _ in range(replicas)]
        engines = [engine() for _ in range(replicas)]
        fleet = fleet_of(*engines, restarts=spares, retries=retries, restarts_of_each=min(map(len, spares)))
        wanted, cancelled, seen, version = {}, set(), [], 0

        async def consume():
            seen.extend(await drain(fleet))

        consumer = None
        try:
            for number, (move, size) in enumerate(moves):
                if move == "submit":
                    await fleet.submit(request(number, n=size + 1, max_tokens=3))
                    wanted[number] = size + 1
                elif move == "cancel" and wanted:
                    cancelled.add(target := list(wanted)[size % len(wanted)])
                    await fleet.cancel(target)
                elif move == "publish":
                    version += 1
                    await fleet.publish(version)
                    assert all(m.engine.version == version for m in fleet._serving())
                elif move == "look":
                    for i, rollout in await fleet.partials():
                        assert rollout.index < wanted[i]
                if consumer is None or consumer.done():
                    if consumer:
                        consumer.result()
                    consumer = asyncio.ensure_future(consume())
                for _ in range(size):
                    await asyncio.sleep(0)
            if consumer:
                await consumer
            await consume()
        except AssayError:
            assert fleet.serving == 0
            names = [(i, r.index) for i, r in seen]
            assert len(set(names)) == len(names)
            return
        finally:
            if consumer and not consumer.done():
                consumer.cancel()
            await fleet.close()
        assert Counter((i, r.index) for i, r in seen) == Counter((i, k) for i, n in wanted.items() for k in range(n))
        for i, rollout in seen:
            assert rollout.token_ids == tuple(range(len(rollout)))
            assert rollout.prompt_id == f"p{i}"
            assert rollout.finish in ("length", "error", "cancelled")
            assert (rollout.finish == "length") == (len(rollout) == 3) or rollout.finish == "cancelled"
            assert rollout.finish != "cancelled" or i in cancelled

    play(scenario())
