"""The schedule by itself: whatever completes when, nothing is older than the bound and no batch waits for ever."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.loop.schedule import Schedule


def play(schedule: Schedule, rng: random.Random, batches: int, every: int = 1, patience: float = 0.5):
    """Complete groups in random order; a batch as soon as there is one. Returns [(version, its admissions)], versions
    at admission. ``patience``: how likely a slow group is passed over once more."""
    admitted: dict[int, int] = {}
    published, consumed, count = schedule.version, [], 0
    slow: set[int] = set()
    while len(consumed) < batches:
        while schedule.room(published) > 0:
            schedule.admit(count, published)
            admitted[count] = published
            if rng.random() < 0.2:
                slow.add(count)
            count += 1
        batch = schedule.next_batch()
        if batch is not None:
            consumed.append((schedule.version - 1, batch))
            if schedule.version % every == 0 or (
                schedule.max_staleness is not None and schedule.version - published > schedule.max_staleness
            ):
                published = schedule.version
            continue
        assert schedule.running, "nothing runs, nothing may start, and there is no batch"
        pick = rng.choice(sorted(schedule.running))
        if pick in slow and len(schedule.running) > len(slow & schedule.running.keys()) and rng.random() < patience:
            continue
        schedule.complete(pick, signal=rng.random() < 0.7)
    return consumed, admitted


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 5),
    st.integers(0, 5),
    st.none() | st.integers(0, 6),
    st.integers(1, 6),
    st.booleans(),
)
def test_no_group_is_older_than_the_bound_and_none_is_lost_or_trained_twice(seed, prompts, eta, extra, every, in_order):
    schedule = Schedule(prompts, eta, max_extra=extra, in_order=in_order)
    consumed, admitted = play(schedule, random.Random(seed), batches=25, every=min(every, eta + 1), patience=0.99)
    ages = [version - admitted[a] for version, batch in consumed for a in batch]
    assert max(ages, default=0) <= eta
    trained = [a for _, batch in consumed for a in batch]
    assert len(trained) == len(set(trained))
    assert all(len(batch) <= prompts for _, batch in consumed)
    if extra is None:
        assert all(len(batch) == prompts for _, batch in consumed)
        left = {*schedule.running, *schedule.ready}
        assert {*trained} | left == set(admitted)
        assert not {*trained} & left


def test_one_group_that_never_ends_is_waited_for_at_its_deadline_and_never_overtaken_beyond_it():
    schedule, published, count = Schedule(2, 1), 0, 0
    for _ in range(20):
        while schedule.room(published) > 0:
            schedule.admit(count, published)
            count += 1
        batch = schedule.next_batch()
        if batch is not None:
            published = schedule.version
            continue
        fast = [a for a in schedule.running if a != 0]
        if not fast:
            break
        schedule.complete(fast[0])
    assert schedule.version == 1
    assert schedule.waits_for() == [0]
    assert schedule.room(published) == 0
    assert [*schedule.running] == [0]
    schedule.complete(0)
    assert 0 in (schedule.next_batch() or [])


def test_a_young_group_may_not_take_the_place_of_one_that_falls_due_later():
    schedule = Schedule(prompts_per_step=1, max_staleness=2)
    for admission in range(3):
        schedule.admit(admission, 0)
    schedule.complete(0)
    assert schedule.next_batch() == [0]
    schedule.admit(3, 1)
    schedule.complete(3)
    assert schedule.next_batch() is None  # 1 and 2 are both due in batch 2 at the latest, so one of them is in batch 1
    schedule.complete(2)
    assert schedule.next_batch() == [2]
    assert schedule.waits_for() == [1]


def test_batches_go_by_completion_where_no_deadline_forbids_it_and_by_index_in_order():
    for in_order, expected in ((False, [3, 1]), (True, [0, 1])):
        schedule = Schedule(2, 1, in_order=in_order)
        for admission in range(4):
            schedule.admit(admission, 0)
        for admission in (3, 1, 0, 2):
            schedule.complete(admission)
        assert schedule.next_batch() == expected


def test_groups_without_signal_are_replaced_up_to_the_bound_and_then_leave_a_blank_place():
    schedule = Schedule(2, 0, max_extra=1)
    schedule.admit(0, 0)
    schedule.admit(1, 0)
    schedule.complete(0, signal=False)
    assert schedule.room(0) == 1
    assert schedule.extra == 1
    schedule.admit(2, 0)
    schedule.complete(2, signal=False)
    assert schedule.room(0) == 0
    assert schedule.next_batch() is None
    schedule.complete(1)
    assert schedule.next_batch() == [1]
    assert schedule.extra == 0
    assert schedule.untrained == 0


def test_a_bound_on_groups_holds_without_one_on_staleness():
    schedule = Schedule(2, None, max_groups=5)
    consumed, _ = play(schedule, random.Random(0), batches=50)
    assert len(consumed) == 50
    assert schedule.untrained <= 5
    with pytest.raises(ValueError, match="bound"):
        Schedule(2, None)
    with pytest.raises(ValueError, match="never fill"):
        Schedule(2, 0, max_groups=1)


def test_nothing_is_started_that_no_batch_of_the_run_could_take():
    schedule = Schedule(3, 4, last_version=2)
    assert schedule.room(0) == 6
    _consumed, admitted = play(schedule, random.Random(1), batches=2)
    assert len(admitted) == 6
    assert schedule.untrained == 0
    assert schedule.room(2) == 0


def test_admission_beyond_the_room_is_an_error():
    schedule = Schedule(1, 0)
    schedule.admit(0, 0)
    with pytest.raises(ValueError, match="no room for group 1"):
        schedule.admit(1, 0)
