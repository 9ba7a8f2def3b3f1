"""The engine that is numbers, against what can be worked out by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import UserError
from assay.plan.costs import Costs, DecodeCost, PrefillCost, UpdateCost
from assay.plan.engine_model import Answer, EngineModel


def costs(**changes):
    values = {
        "prefill": PrefillCost(fixed_s=0.5, per_token_s=0.01),
        "decode": DecodeCost(steps={1: 1.0, 5: 3.0}),
        "update": UpdateCost(),
    }
    return Costs(**(values | changes))


def drain(engine, now=0.0):
    """Advance until idle: [(time, answer)]."""
    ended = []
    while engine.next < math.inf:
        assert engine.next >= now
        now = engine.next
        ended += [(now, answer) for answer in engine.advance(now)]
    return ended


def begin(engine):
    """To the end of its first prefill."""
    while engine.busy["prefill"] == 0:
        engine.advance(engine.next)


def answer(length, group=0, index=0, prompt=10):
    return Answer(group, index, prompt, length)


@given(st.integers(1, 500), st.integers(1, 500))
def test_one_answer_takes_a_prefill_and_a_step_for_each_further_token(length, prompt):
    engine = EngineModel(costs(), slots=1)
    engine.submit([answer(length, prompt=prompt)], 0.0)
    ((end, _),) = drain(engine)
    assert end == pytest.approx(0.5 + 0.01 * prompt + (length - 1))


@given(st.integers(1, 8), st.integers(1, 60))
def test_with_one_slot_answers_come_one_after_another(count, length):
    engine = EngineModel(costs(), slots=1)
    engine.submit([answer(length, group=i) for i in range(count)], 0.0)
    each = 0.5 + 0.01 * 10 + (length - 1)
    assert [end for end, _ in drain(engine)] == pytest.approx([each * (i + 1) for i in range(count)])


def test_a_groups_prompt_is_prefilled_once():
    engine = EngineModel(costs(), slots=2)
    engine.submit([answer(3, index=i) for i in range(4)], 0.0)
    ends = [end for end, _ in drain(engine)]
    first = 0.5 + 0.01 * 10 + 2 * 1.5  # two rows take 1.5 s a step
    assert ends == pytest.approx([first, first, first + 3.0, first + 3.0])


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 6), st.floats(0, 0.01))
def test_every_token_is_decoded_once_and_no_time_is_lost(lengths, slots, cached_s):
    """Against a plain loop over single steps."""
    decode = DecodeCost(steps={1: 1.0, 5: 3.0}, per_cached_token_s=cached_s)
    engine = EngineModel(costs(decode=decode), slots)
    engine.submit([answer(n, group=i, prompt=5 + i) for i, n in enumerate(lengths)], 0.0)
    found = sorted(end for end, _ in drain(engine))

    waiting, running, now, ends = [(5 + i, n) for i, n in enumerate(lengths)], [], 0.0, []
    while waiting or running:
        entering = [waiting.pop(0) for _ in range(min(len(waiting), slots - len(running)))]
        if entering:
            now += 0.5 + 0.01 * sum(prompt for prompt, _ in entering)
            running += [[prompt + 1, n - 1] for prompt, n in entering]
        else:
            now += decode.step_s(len(running)) + cached_s * sum(tokens for tokens, _ in running)
            running = [[tokens + 1, left - 1] for tokens, left in running]
        ends += [now] * sum(left == 0 for _, left in running)
        running = [row for row in running if row[1] > 0]
    assert found == pytest.approx(ends)
    assert engine.generated == sum(lengths)
    assert sum(engine.busy.values()) == pytest.approx(now)


def test_who_comes_later_enters_between_two_steps():
    engine = EngineModel(costs(), slots=2)
    engine.submit([answer(10)], 0.0)
    begin(engine)  # prefilled at 0.6; its steps end at 1.6, 2.6, ...
    engine.submit([answer(1, group=1)], 2.0)
    assert engine.next == pytest.approx(2.6)
    ends = drain(engine, 2.0)
    assert [a.group for _, a in ends] == [1, 0]
    assert [end for end, _ in ends] == pytest.approx([2.6 + 0.6, 2.6 + 0.6 + 7])


@pytest.mark.parametrize(("keep", "expected"), [(False, 5.6 + 3 + 0.5 + 0.01 * 16 + 3), (True, 5.6 + 3 + 4)])
def test_new_weights_pause_the_engine_and_have_caches_computed_anew_unless_they_are_kept(keep, expected):
    engine = EngineModel(costs(), slots=2, keep_cache=keep)
    engine.submit([answer(10)], 0.0)
    begin(engine)
    engine.publish(1, 5.0, seconds=3.0)  # taken at 5.6, with 6 tokens made and 4 to go
    ((end, done),) = drain(engine, 5.0)
    assert end == pytest.approx(expected)
    assert done.version == 0
    assert engine.version == 1
    assert engine.busy["pause"] == 3.0


def test_who_is_urgent_goes_first_and_beyond_the_slots():
    engine = EngineModel(costs(), slots=1)
    engine.submit([answer(10), answer(10, group=1)], 0.0)
    begin(engine)  # at 0.6
    engine.submit([Answer(-1, 0, 10, 4, urgent=True)], 1.0)
    ends = drain(engine, 1.0)
    assert [a.group for _, a in ends] == [-1, 0, 1]
    assert ends[0][0] == pytest.approx(1.6 + 0.6 + 3 * 1.5)  # two rows take 1.5 s a step


def test_a_cancelled_group_leaves_with_the_tokens_it_has():
    engine = EngineModel(costs(), slots=3)
    engine.submit([answer(10), answer(10, group=1), answer(10, group=1, index=1), answer(10, group=1, index=2)], 0.0)
    begin(engine)
    gone = engine.cancel(1, 0.7)
    assert sorted(a.made for a in gone) == [0, 1, 1]
    assert engine.load == 1
    ((_, left),) = drain(engine, 0.7)
    assert left.group == 0


@settings(max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(45, 200))
def test_a_full_cache_sends_answers_back_and_none_is_lost(lengths, room):
    engine = EngineModel(costs(kv_tokens=room), slots=8)
    engine.submit([answer(n, group=i) for i, n in enumerate(lengths)], 0.0)
    ended = drain(engine)
    assert sorted(a.group for _, a in ended) == list(range(len(lengths)))
    assert all(a.made == a.length for _, a in ended)
    roomy = EngineModel(costs(), slots=8)
    roomy.submit([answer(n, group=i) for i, n in enumerate(lengths)], 0.0)
    if sum(lengths) + 10 * len(lengths) < room:
        assert ended[-1][0] == pytest.approx(drain(roomy)[-1][0])


def test_an_answer_that_no_cache_could_hold_is_refused():
    engine = EngineModel(costs(kv_tokens=20), slots=8)
    engine.submit([answer(11)], 0.0)
    with pytest.raises(UserError, match="does not fit into the cache of 20 tokens"):
        drain(engine)
