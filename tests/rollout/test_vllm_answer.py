"""One answer in the making, without vLLM: what is asked for, what is kept, whose version a token is."""

from __future__ import annotations

import math

import pytest
from rollout_helpers import TOKENIZER, prompt

from assay.records import Segment
from assay.rollout.answer import Answer, of_the_draw
from assay.rollout.engine import Request
from assay.rollout.sampling import Sampling
from assay.rollout.seeds import seed_of
from assay.rollout.vllm.answer import ask_for, take
from assay.rollout.vllm.port import Piece

STOP = frozenset({2, 5})


def answer(begun: tuple[Segment, ...] = (), **sampling) -> Answer:
    request = Request(3, prompt("12+3="), 1, Sampling(**{"max_tokens": 10, **sampling}), seed=5, begun=begun)
    return Answer(request, 0, 10 - sum(len(s.token_ids) for s in begun))


def rollout(of: Answer):
    return of.rollout(of_the_draw(of.request.sampling), STOP, TOKENIZER.decode)


def test_the_first_ask_is_for_everything_and_the_next_for_the_rest():
    a = answer()
    first = ask_for(a, STOP, "version-0")
    assert first.token_ids == a.request.prompt.token_ids
    assert first.sampling["max_tokens"] == 10
    assert first.sampling["stop_token_ids"] == [2, 5]
    take(a, Piece((7, 8, 9), (-1.0, -2.0, -0.5)), 0)
    a.attempts += 1
    again = ask_for(a, STOP, "version-1")
    assert again.token_ids == (*a.request.prompt.token_ids, 7, 8, 9)
    assert again.sampling["max_tokens"] == 7
    assert again.name != first.name
    assert again.sampling["seed"] != first.sampling["seed"]


def test_seeds_differ_by_everything_that_names_a_rollout():
    request = Request(3, prompt("7"), 2, Sampling(), seed=5)
    others = [
        seed_of(request, 1, 0),
        seed_of(request, 0, 1),
        seed_of(Request(4, prompt("7"), 2, Sampling(), seed=5), 0, 0),
        seed_of(Request(3, prompt("7"), 2, Sampling(), seed=6), 0, 0),
        seed_of(Request(3, prompt("8"), 2, Sampling(), seed=5), 0, 0),
    ]
    assert len({seed_of(request, 0, 0), *others}) == 6
    assert all(0 <= seed < 2**63 for seed in others)


def test_the_last_piece_corrects_the_versions():
    a = answer()
    ask_for(a, STOP, "version-3")
    take(a, Piece((7, 8), (-1.0, -1.0)), 3)
    take(a, Piece((9, 2), (-1.0, -1.0), "stop", (("3", 0, 3), ("4", 3, 4))), 3)
    (segment,) = rollout(a).segments
    assert segment.versions == (3, 3, 3, 4)


def test_versions_of_a_second_ask_are_counted_from_its_first_token():
    a = answer()
    ask_for(a, STOP, "version-3")
    take(a, Piece((7, 8), (-1.0, -1.0)), 3)
    ask_for(a, STOP, "version-4")
    take(a, Piece((9, 2), (-1.0, -1.0), "stop", (("4", 0, 1), ("5", 1, 2))), 4)
    assert rollout(a).segments[0].versions == (3, 3, 4, 5)


def test_what_comes_before_a_log_prob_that_is_no_number_is_kept():
    a = answer()
    ask_for(a, STOP, "version-0")
    assert not take(a, Piece((7, 8, 9), (-1.0, math.nan, -1.0)), 0)
    made = rollout(a)
    assert (made.finish, made.token_ids, made.sampler_logprobs) == ("error", (7,), (-1.0,))


def test_it_goes_on_behind_what_was_begun_and_is_one_segment_with_it():
    begun = (Segment("policy", (7, 8), (-1.0, -2.0), (0, 0)),)
    a = answer(begun)
    assert ask_for(a, STOP, "version-1").token_ids == (*a.request.prompt.token_ids, 7, 8)
    take(a, Piece((9, 2), (-0.5, -0.25), "stop", (("1", 0, 2),)), 1)
    (segment,) = rollout(a).segments
    assert segment == Segment("policy", (7, 8, 9, 2), (-1.0, -2.0, -0.5, -0.25), (0, 0, 1, 1))
    assert rollout(a).text == TOKENIZER.decode([7, 8, 9])


def test_behind_forced_tokens_it_is_a_segment_of_its_own():
    begun = (Segment("policy", (7,), (-1.0,), (0,)), Segment("forced", (8, 8)))
    a = answer(begun)
    ask_for(a, STOP, "version-1")
    take(a, Piece((9,), (-0.5,), "length"), 1)
    assert [s.kind for s in rollout(a).segments] == ["policy", "forced", "policy"]


@pytest.mark.parametrize(
    ("sampling", "full", "kept"),
    [
        ({"temperature": 0.7}, True, False),
        ({"top_p": 0.9}, False, True),
        ({"greedy": True}, True, False),
        ({"greedy": True, "temperature": 0.7}, False, False),
    ],
)
def test_log_probs_that_are_not_known_are_no_numbers(sampling, full, kept):
    a = answer(**sampling)
    ask_for(a, STOP, "version-0")
    take(a, Piece((7,), (-1.0,), "length"), 0)
    (segment,) = rollout(a).segments
    assert (segment.sampler_logprobs == (-1.0,)) is full
    assert full or math.isnan(segment.sampler_logprobs[0])
    assert segment.kept_logprobs == ((-1.0,) if kept else None)


@pytest.mark.parametrize(("cancelled", "finish"), [(True, "cancelled"), (False, "error")])
def test_an_abort_that_nobody_asked_for_is_an_error(cancelled, finish):
    a = answer()
    a.cancelled = cancelled
    ask_for(a, STOP, "version-0")
    take(a, Piece((7,), (-1.0,), "abort"), 0)
    assert rollout(a).finish == finish
