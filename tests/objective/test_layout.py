"""Flat arrays: reductions that never read excluded places, and selection of whole sequences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from assay.objective.layout import Layout, only, wide

NAN = math.nan


def test_excluded_places_may_hold_nan_forward_and_backward():
    layout = Layout.of_lengths([2, 0, 3], [0, 0, 2], n_groups=4)
    values = torch.tensor([1.0, NAN, 2.0, NAN, 4.0], requires_grad=True)
    where = torch.tensor([True, False, True, False, True])
    means = layout.mean_by_sequence(values, where)
    assert means.tolist() == [1.0, 0.0, 3.0]
    (means * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert values.grad.tolist() == [1.0, 0.0, 50.0, 0.0, 50.0]
    per_sequence = torch.tensor([1.0, NAN, 5.0], requires_grad=True)
    kept = torch.tensor([True, False, True])
    assert layout.sum_by_group(per_sequence, kept).tolist() == [1.0, 0.0, 5.0, 0.0]
    assert layout.mean_by_group(per_sequence, kept).tolist() == [1.0, 0.0, 5.0, 0.0]
    assert layout.count_by_group(kept).tolist() == [1, 0, 1, 0]
    assert layout.max_by_group(per_sequence.detach(), kept).tolist() == [1.0, -math.inf, 5.0, -math.inf]


def test_last_token_and_walk_from_the_end():
    layout = Layout(torch.tensor([1, 0, 1, 0, 1]), torch.tensor([0, 0, 0]), 1)
    where = torch.tensor([True, True, True, False, True])
    assert layout.last_token(where).tolist() == [1, 4, -1]
    assert [sorted(item.tolist()) for item in layout.from_the_end(where)] == [[1, 4], [2], [0]]
    assert layout.from_the_end(torch.zeros(5, dtype=torch.bool)) == []


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_selected_sequences_keep_their_tokens_in_order(lengths: list[int], rng):
    layout = Layout.of_lengths(lengths, [rng.randrange(3) for _ in lengths], n_groups=3)
    shuffled = torch.tensor(sorted(range(layout.n_tokens), key=lambda _: rng.random()), dtype=torch.long)
    layout = Layout(layout.sequence[shuffled], layout.group, 3)
    chosen = rng.sample(range(len(lengths)), rng.randint(0, len(lengths)))
    part, places = layout.select(torch.tensor(chosen, dtype=torch.long))
    assert part.n_groups == 3
    assert part.group.tolist() == [layout.group[s].item() for s in chosen]
    for new, old in enumerate(chosen):
        mine = places[part.sequence == new].tolist()
        assert mine == [t for t in range(layout.n_tokens) if layout.sequence[t] == old]
    values = torch.rand(layout.n_tokens, dtype=torch.float64)
    everything = torch.ones(layout.n_tokens, dtype=torch.bool)
    sums = layout.sum_by_sequence(values, everything)
    assert_close(part.sum_by_sequence(values[places], everything[places]), sums[chosen])


@pytest.mark.parametrize(
    ("given_type", "result"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.int64, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_sums_are_float32_or_wider(given_type: torch.dtype, result: torch.dtype):
    assert wide(torch.ones(2, dtype=given_type)).dtype == result


def test_only_keeps_the_type():
    assert only(torch.tensor([1, 2]), torch.tensor([False, True])).tolist() == [0, 2]


def test_an_empty_batch_has_no_groups():
    layout = Layout.of_lengths([], [])
    assert (layout.n_tokens, layout.n_sequences, layout.n_groups) == (0, 0, 0)
    assert layout.sum_by_sequence(torch.zeros(0), torch.zeros(0, dtype=torch.bool)).tolist() == []
