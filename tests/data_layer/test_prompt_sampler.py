"""The order of prompts: any interruption gives the same sequence, and an epoch shows every prompt once."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.sampler import PromptSampler

samplers = st.builds(PromptSampler, st.integers(1, 12), st.integers(0, 5), st.booleans())


@settings(deadline=None, max_examples=50)
@given(samplers, st.lists(st.integers(0, 9), max_size=12))
def test_any_cuts_give_the_same_sequence(sampler: PromptSampler, steps: list[int]) -> None:
    whole, end = sampler.take(0, sum(steps))
    parts: list[int] = []
    cursor = 0
    for k in steps:
        fresh = PromptSampler(sampler.n, sampler.seed, sampler.shuffle)  # as after a restart
        indices, cursor = fresh.take(cursor, k)
        parts += indices
    assert (tuple(parts), cursor) == (whole, end)


@settings(deadline=None, max_examples=50)
@given(samplers, st.integers(0, 4))
def test_an_epoch_shows_every_prompt_once(sampler: PromptSampler, epoch: int) -> None:
    start = epoch * sampler.n
    indices, end = sampler.take(start, sampler.n)
    assert sorted(indices) == list(range(sampler.n))
    assert indices == sampler.order(epoch)
    assert sampler.epoch(start) == epoch
    assert sampler.epoch(end) == epoch + 1


def test_a_step_may_be_longer_than_the_data() -> None:
    indices, cursor = PromptSampler(3, seed=1).take(2, 8)
    assert (len(indices), cursor) == (8, 10)
    assert sorted(indices[1:4]) == sorted(indices[4:7]) == [0, 1, 2]


def test_orders_differ_by_epoch_and_seed_and_not_without_shuffling() -> None:
    sampler = PromptSampler(50, seed=3)
    assert sampler.order(0) != sampler.order(1)
    assert sampler.order(0) != PromptSampler(50, seed=4).order(0)
    assert PromptSampler(5, seed=3, shuffle=False).take(3, 4)[0] == (3, 4, 0, 1)


def test_the_order_is_the_same_in_another_process() -> None:
    code = "from assay.data.sampler import PromptSampler; print(PromptSampler(9, seed=5).take(7, 9)[0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(PromptSampler(9, seed=5).take(7, 9)[0])
    assert PromptSampler(9, seed=5).take(7, 9)[0] == PINNED, "a changed order would break every checkpoint"


PINNED = (4, 8, 5, 8, 6, 3, 2, 4, 0)


def test_no_prompts_or_a_negative_position_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PromptSampler(0)
    with pytest.raises(ValueError, match="negative"):
        PromptSampler(3).take(-1, 2)
