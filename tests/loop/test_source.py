"""Groups stay what they were asked for, however their answers and verdicts arrive."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from loop_helpers import TalkingEngine, TalkingScorer, next_step, talking_source

from assay.data.sampler import PromptSampler
from assay.errors import AssayError
from assay.loop.interrupt import Interrupted, StopRequest
from assay.records import Group, Verdict


def echo(text: str) -> Verdict:
    """A verdict that says whose it is."""
    return Verdict(1.0, "scored", answer=text)


def alternating(bad: set[str]):
    """A judge whose verifier breaks on the answers named."""
    return lambda text: (
        Verdict(None, "verifier_error", message="broke") if text in bad else Verdict(1.0, "scored", answer=text)
    )


@given(seed=st.integers(0, 10**6), per_group=st.booleans())
@examples(deadline=None, max_examples=40)
def test_verdicts_stay_with_their_rollouts_in_any_order_of_completion(seed: int, per_group: bool) -> None:
    engine, scorer = TalkingEngine(seed), TalkingScorer(echo, seed + 1, per_group)
    source = talking_source(engine, scorer)

    async def steps():
        return [await next_step(source) for _ in range(3)]

    harvests = asyncio.run(steps())
    groups = [g for h in harvests for g in h.groups]
    assert [g.admission for g in groups] == list(range(12))
    order, _ = PromptSampler(50, seed=3).take(0, 12)
    assert [g.prompt.id for g in groups] == [f"p{k}" for k in order]
    for group in groups:
        assert [r.index for r in group.rollouts] == [0, 1, 2]
        for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True):
            assert rollout.text == verdict.answer == f"{group.prompt.id}/{group.admission}/{rollout.index}"
    assert (source.cursor, source.admissions) == (12, 12)


def test_whole_groups_are_judged_at_once_where_a_verifier_compares_them() -> None:
    scorer = TalkingScorer(echo, per_group=True)
    harvest = asyncio.run(talking_source(TalkingEngine(5), scorer).next_groups())
    assert sorted(scorer.shown) == sorted((g.prompt.id, tuple(r.text for r in g.rollouts)) for g in harvest.groups)
    alone = TalkingScorer(echo)
    asyncio.run(talking_source(TalkingEngine(5), alone).next_groups())
    assert all(len(texts) == 1 for _, texts in alone.shown)


@pytest.mark.parametrize("per_group", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_retry_replaces_invalid_rollouts_and_nothing_else(seed: int, per_group: bool) -> None:
    order, _ = PromptSampler(50, seed=3).take(0, 4)
    first, second = (f"p{order[0]}/0/", f"p{order[2]}/2/")
    bad = {f"{first}1", f"{second}0", f"{second}2", f"{second}3"}  # the last is the retry of index 0
    engine, scorer = TalkingEngine(seed), TalkingScorer(alternating(bad), seed, per_group)
    source = talking_source(engine, scorer, max_retries=1)
    harvest = asyncio.run(source.next_groups())
    assert harvest.retried == 3
    texts = {g.admission: [r.text for r in g.rollouts] for g in harvest.groups}
    assert texts[0] == [f"{first}0", f"{first}3", f"{first}2"]
    assert texts[2] == [f"{second}3", f"{second}1", f"{second}4"]
    assert texts[1] == [f"p{order[1]}/1/{i}" for i in range(3)]
    assert [[r.index for r in g.rollouts] for g in harvest.groups] == [[0, 1, 2]] * 4
    assert [v.valid for v in harvest.groups[2].verdicts] == [False, True, True]
    lost = {
        g.admission: [(r.text, v.valid) for r, v in zip(g.rollouts, g.verdicts, strict=True)] for g in harvest.replaced
    }
    assert lost == {0: [(f"{first}1", False)], 2: [(f"{second}0", False), (f"{second}2", False)]}
    again = [r for r in engine.asked if r.first_index]
    assert {(r.id, r.n, r.first_index) for r in again} == {(0, 1, 3), (2, 2, 3)}
    assert (source.cursor, source.admissions) == (4, 4)
    if per_group:  # the fresh answer is compared with the siblings that stay
        assert (f"p{order[0]}", (f"{first}0", f"{first}2", f"{first}3")) in scorer.shown


def test_retries_are_bounded() -> None:
    engine = TalkingEngine()
    source = talking_source(engine, TalkingScorer(lambda text: Verdict(None, "unavailable")), max_retries=2)
    harvest = asyncio.run(source.next_groups())
    assert harvest.retried == 2 * 12
    assert len(engine.asked) == 3 * 4
    assert len({(r.id, i) for r in engine.asked for i in range(r.first_index, r.first_index + r.n)}) == 36


@given(signal=st.lists(st.booleans(), min_size=40, max_size=40), bound=st.integers(1, 9), seed=st.integers(0, 1000))
@examples(deadline=None, max_examples=50)
def test_dynamic_sampling_fills_the_step_or_stops_at_its_bound(signal: list[bool], bound: int, seed: int) -> None:
    def has_signal(group: Group) -> bool:
        return signal[group.admission]

    source = talking_source(TalkingEngine(seed), TalkingScorer(echo, seed), max_extra=bound, has_signal=has_signal)
    harvest = asyncio.run(source.next_groups())
    started = source.admissions
    assert started == 4 + harvest.extra == len(harvest.groups) + len(harvest.unused)
    assert source.cursor == started
    assert harvest.extra <= bound
    assert len(harvest.groups) <= 4
    assert len(harvest.groups) == 4 or harvest.extra == bound
    assert [g.admission for g in harvest.groups] == [a for a in range(started) if signal[a]]
    assert [g.admission for g in harvest.unused] == [a for a in range(started) if not signal[a]]


def test_a_small_replacement_round_is_judged_with_its_whole_step() -> None:
    """One broken verdict of three would pass a bound of a quarter; of the step's fifteen it does not."""
    order, _ = PromptSampler(50, seed=3).take(0, 5)
    bad = {f"p{order[4]}/4/1"}
    source = talking_source(
        TalkingEngine(),
        TalkingScorer(alternating(bad)),
        max_extra=1,
        max_invalid=0.25,
        has_signal=lambda g: g.admission != 2,
    )
    assert len(asyncio.run(source.next_groups()).groups) == 4


def test_broken_verifiers_stop_the_run_with_the_commonest_reason() -> None:
    def judge(text: str) -> Verdict:
        index = int(text[-1])
        return echo(text) if index == 0 else Verdict(None, "verifier_error", message=f"KeyError: {index // 2}")

    source = talking_source(TalkingEngine(), TalkingScorer(judge), max_invalid=0.5)
    with pytest.raises(AssayError, match=r"8 of 12 verdicts are invalid.*4 times verifier_error: KeyError: [01]"):
        asyncio.run(source.next_groups())
    assert (source.cursor, source.admissions) == (0, 0)
    at_the_bound = talking_source(TalkingEngine(), TalkingScorer(judge), max_invalid=8 / 12)
    assert len(asyncio.run(at_the_bound.next_groups()).groups) == 4


def test_a_cancelled_step_leaves_nothing_in_flight_and_comes_again() -> None:
    engine, scorer = TalkingEngine(2), TalkingScorer(echo, 3)
    source = talking_source(engine, scorer)

    async def scenario():
        await next_step(source)
        engine.hanging = True
        step = asyncio.create_task(source.next_groups())
        for _ in range(20):
            await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert sorted(engine.cancelled) == [4, 5, 6, 7]
        assert [r async for r in engine.finished()] == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
        engine.hanging = False
        return await source.next_groups()

    assert [g.admission for g in asyncio.run(scenario()).groups] == [4, 5, 6, 7]


def test_a_request_to_stop_abandons_work_and_waits_for_it_to_end() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async def scenario() -> None:
        stop = StopRequest(lambda: None)
        task = asyncio.create_task(stop.unless_asked(endless()))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()  # as a second Ctrl-C does
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cleaned up"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_a_request_to_stop_is_heard_though_the_work_would_be_done_at_once() -> None:
    async def scenario() -> None:
        stop = StopRequest(lambda: None)
        assert await stop.unless_asked(asyncio.sleep(0, "ready")) == "ready"
        stop._asked.set()
        with pytest.raises(Interrupted):
            await stop.unless_asked(asyncio.sleep(0, "ready"))

    asyncio.run(scenario())


def test_an_engine_that_loses_rollouts_is_found_out() -> None:
    class Forgetful(TalkingEngine):
        async def submit(self, request) -> None:
            await super().submit(request)
            if request.id == 1:
                self._waiting.pop()

    source = talking_source(Forgetful(), TalkingScorer(echo))
    with pytest.raises(AssayError, match="lost 1 rollouts"):
        asyncio.run(source.next_groups())


def test_progress_counts_answers() -> None:
    seen: list[tuple[int, int]] = []
    source = talking_source(TalkingEngine(), TalkingScorer(echo), progress=lambda done, of: seen.append((done, of)))
    asyncio.run(source.next_groups())
    assert seen == [(i, 12) for i in range(1, 13)]
