"""Estimates against brute force, published values, and their own promise to cover."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from assay.loop.statistics import bootstrap, effective_number, majority, pass_at_k, proportion, widening, wilson


@given(answers=st.lists(st.booleans(), min_size=1, max_size=9), data=st.data())
@examples(deadline=None, max_examples=50)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(answers: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answers)))
    subsets = list(itertools.combinations(answers, k))
    brute = sum(any(s) for s in subsets) / len(subsets)
    assert pass_at_k(len(answers), sum(answers), k) == pytest.approx(brute, abs=1e-12)


def test_pass_at_k_of_more_than_there_are() -> None:
    with pytest.raises(ValueError, match="pass@5 of 4"):
        pass_at_k(4, 1, 5)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [  # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_agrees_with_a_published_table(successes: int, n: int, low: float, high: float) -> None:
    found = wilson(successes, n)
    assert (found.value, found.n) == (successes / n, n)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@given(n=st.integers(1, 400), data=st.data())
@examples(deadline=None, max_examples=50)
def test_wilson_ends_where_the_score_test_rejects(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    found = wilson(k, n)
    for p in {found.low, found.high} - {0.0, 1.0}:
        assert (k / n - p) ** 2 == pytest.approx(1.959963984540054**2 * p * (1 - p) / n, rel=1e-9, abs=1e-15)


def test_wilson_of_nothing_knows_nothing() -> None:
    found = wilson(0, 0)
    assert math.isnan(found.value)
    assert (found.low, found.high, found.n) == (0.0, 1.0, 0)


@given(n=st.integers(1, 300), data=st.data())
@examples(deadline=None, max_examples=50)
def test_wilson_stays_within_bounds_and_mirrors(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    found, mirrored = wilson(k, n), wilson(n - k, n)
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1
    assert found.low == pytest.approx(1 - mirrored.high, abs=1e-12)


def test_bootstrap_covers_the_mean_it_estimates() -> None:
    """Per-prompt means of 4 coin flips with p = 0.3: 95 % intervals over 60 prompts should cover 0.3 about so often."""
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(300):
        estimate = bootstrap(rng.binomial(4, 0.3, size=60) / 4, seed=trial, resamples=400)
        covered += estimate.low <= 0.3 <= estimate.high
    assert 0.90 <= covered / 300 <= 0.98


@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=30))
@examples(deadline=None, max_examples=30)
def test_bootstrap_is_repeatable_and_within_the_values(values: list[float]) -> None:
    found = bootstrap(values, resamples=200)
    assert found == bootstrap(values, resamples=200)
    assert found.n == len(values)
    assert found.value == pytest.approx(sum(values) / len(values))
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9


def test_bootstrap_of_many_values_draws_in_blocks() -> None:
    values = np.random.default_rng(0).random(700_000)
    found = bootstrap(values, resamples=5)
    assert found.low == pytest.approx(0.5, abs=0.01)
    assert found.high == pytest.approx(0.5, abs=0.01)


def test_bootstrap_of_nothing() -> None:
    found = bootstrap([])
    assert math.isnan(found.value)
    assert found.n == 0


@given(right=st.lists(st.booleans(), min_size=1, max_size=40), seed=st.integers(0, 5))
@examples(deadline=None, max_examples=50)
def test_where_every_prompt_is_its_own_problem_intervals_are_over_prompts(right: list[bool], seed: int) -> None:
    own = [f"p{i}" for i in range(len(right))]
    assert proportion(right, own) == wilson(sum(right), len(right))
    values = [0.37 * r + 0.1 * (i % 3) for i, r in enumerate(right)]
    found = bootstrap(values, own, seed, resamples=50)
    assert found == bootstrap(values, None, seed, resamples=50)
    draws = np.random.default_rng(seed).integers(0, len(values), size=(50, len(values)))
    means = np.asarray(values)[draws].mean(axis=1)
    if len(values) > 1:
        assert (found.low, found.high) == tuple(np.quantile(means, [0.025, 0.975]))


@given(data=st.data(), n=st.integers(2, 30))
@examples(deadline=None, max_examples=100)
def test_problems_in_several_wordings_only_ever_widen(data: st.DataObject, n: int) -> None:
    right = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    problems = data.draw(st.lists(st.sampled_from("abcdef"), min_size=n, max_size=n))
    found, over_prompts = proportion(right, problems), wilson(sum(right), n)
    assert (found.value, found.n) == (over_prompts.value, n)
    assert 0 <= found.low <= over_prompts.low + 1e-12
    assert over_prompts.high - 1e-12 <= found.high <= 1
    order = data.draw(st.permutations(range(n)))
    moved = proportion([right[i] for i in order], [problems[i] for i in order])
    assert (moved.low, moved.high) == (pytest.approx(found.low), pytest.approx(found.high))
    shares = bootstrap([float(r) for r in right], problems, resamples=100)
    assert shares == bootstrap([float(r) for r in right], problems, resamples=100)
    assert min(right) <= shares.low <= shares.high <= max(right)


def test_copies_of_a_prompt_tell_nothing_new() -> None:
    right = [True, False, True, True, False, True, False, True]
    once = [f"p{i}" for i in range(8)]
    twice = effective_number(right * 2, once * 2)
    assert twice == pytest.approx(8 / widening(8, 16) ** 2)
    assert effective_number([True] * 12, [f"p{i // 3}" for i in range(12)]) == pytest.approx(4 / widening(4, 12) ** 2)


@pytest.mark.parametrize(("n", "t"), [(2, 12.7062), (3, 4.3027), (5, 2.7764), (6, 2.5706), (11, 2.2281), (31, 2.0423)])
def test_widening_has_the_degrees_of_freedom_of_the_problems(n: int, t: float) -> None:
    """Against the table of Student's t, beside a number of prompts so large that theirs is the normal's."""
    assert widening(n, 10**5) == pytest.approx(math.sqrt(n / (n - 1)) * t / 1.96, rel=2e-4)


@pytest.mark.parametrize("problems", [8, 40])
def test_intervals_cover_where_wordings_of_a_problem_go_together_and_those_over_prompts_do_not(problems: int) -> None:
    """The chance of a right answer is uniform over problems, and each is asked in 2 to 12 wordings."""
    rng = np.random.default_rng(5)
    covered, trials = {"proportion": 0, "bootstrap": 0, "over prompts": 0, "bootstrap over prompts": 0}, 300
    for trial in range(trials):
        asked = rng.integers(2, 13, size=problems)
        names = [f"p{i}" for i, n in enumerate(asked) for _ in range(n)]
        right = [bool(r) for p, n in zip(rng.random(problems), asked, strict=True) for r in rng.random(n) < p]
        shares = [float(r) for r in right]
        for name, found in (
            ("proportion", proportion(right, names)),
            ("bootstrap", bootstrap(shares, names, trial, 400)),
            ("over prompts", wilson(sum(right), len(right))),
            ("bootstrap over prompts", bootstrap(shares, None, trial, 400)),
        ):
            covered[name] += found.low <= 0.5 <= found.high
    rates = {name: count / trials for name, count in covered.items()}
    assert 0.92 <= rates["proportion"] <= 0.98, rates
    assert 0.92 <= rates["bootstrap"] <= 0.98, rates
    assert rates["over prompts"] < 0.8, rates
    assert rates["bootstrap over prompts"] < 0.8, rates


@pytest.mark.parametrize(
    ("answers", "right", "expected"),
    [
        (["4", "4", "5"], {"4"}, 1.0),
        (["4", "5", "5"], {"4"}, 0.0),
        (["4", "5"], {"4"}, 0.5),
        (["4", "5", "6"], {"4"}, 1 / 3),
        (["4", "5", "5", "4", "6"], {"4"}, 0.5),
        ([None, None, "4"], {"4"}, 1.0),  # what was not extracted has no vote
        ([None, None], set(), 0.0),
    ],
)
def test_majority_shares_ties(answers: list[str | None], right: set[str], expected: float) -> None:
    assert majority(answers, [a in right for a in answers]) == pytest.approx(expected)


@given(votes=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=8), seed=st.randoms())
@examples(deadline=None, max_examples=50)
def test_majority_ignores_order(votes: list[str | None], seed) -> None:
    shuffled = list(votes)
    seed.shuffle(shuffled)
    assert majority(votes, [v == "a" for v in votes]) == majority(shuffled, [v == "a" for v in shuffled])
