"""Verdicts: sums, outcomes, order, the unverifiable rule, and what a user can mend."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_helpers import MAX_TOKENS, is_running, prompt, recipe, rollout, rollouts, write

from assay.errors import UserError
from assay.recipe.schema import RewardPart, RewardRecipe, WatchPart
from assay.records import Prompt, Rollout, Verdict
from assay.reward.pool import Answered, Crashed, Reply, TimedOut
from assay.reward.scorer import Scorer
from assay.reward.trial import judge
from assay.reward.verifier import Case, Judgement

REWARDS = """
import os

def hangs(prompts, completions, **columns):  # on a bomb only; a group function
    for completion in completions:
        if "bomb" in completion:
            while True: pass
        if "exit" in completion: os._exit(1)
    return [float(len(c)) for c in completions]

def hangs_alone(data_source, solution_str, ground_truth, extra_info):
    if "bomb" in solution_str:
        while True: pass
    if "exit" in solution_str: os._exit(1)
    return 1.0 if solution_str == ground_truth else 0.25

def broken(completions, **columns):  # whatever it is given
    while True: pass

def rank(completions, **columns):
    ordered = sorted(completions)
    return [float(ordered.index(c)) for c in completions]

def picky(completions, **columns):
    return [None if "skip" in c else 1.0 for c in completions]

def raises(completions, **columns):
    raise KeyError("gone")
"""


def verdicts(recipe: RewardRecipe, answers: Sequence[Rollout], question: Prompt | None = None) -> list[Verdict]:
    with Scorer(recipe, MAX_TOKENS) as scorer:
        return asyncio.run(scorer.score(question or prompt(), answers))


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("rewards"), REWARDS)


@pytest.fixture(scope="module")
def mixed(functions: str) -> Iterator[Scorer]:
    """A verifier per case and a function per group."""
    parts = RewardPart(verifier=f"{functions}:rank", weight=0.1)
    with Scorer(recipe("number", parts, overlong_buffer=0.5, workers=2), MAX_TOKENS) as scorer:
        yield scorer


def test_the_reward_is_the_weighted_sum_and_keeps_its_parts(mixed: Scorer) -> None:
    answers = [rollout(0, "4"), rollout(1, "5", tokens=15), rollout(2, "six")]
    first, second, third = asyncio.run(mixed.score(prompt(), answers))
    assert mixed.per_group
    assert mixed.names == ("number", "rank", "overlong")
    assert first.parts == {"number": 1.0, "rank": 0.0, "overlong": 0.0}
    assert (first.reward, first.outcome, first.answer, first.correct) == (1.0, "scored", "4", 1.0)
    assert second.parts == {"number": 0.0, "rank": 1.0, "overlong": -0.5}
    assert second.reward == pytest.approx(0.1 - 0.5)
    assert (third.outcome, third.reward, third.correct, third.answer) == (
        "no_answer",
        pytest.approx(0.2),
        0.0,
        None,
    )
    assert asyncio.run(mixed.score(prompt(), [])) == []


@given(st.permutations(range(7)))
@settings(deadline=None, max_examples=15)
def test_permuting_rollouts_permutes_verdicts(mixed: Scorer, order: list[int]) -> None:
    answers = rollouts("4", "5", "six", "4", "-4", "4.0", "")

    def found(some: Sequence[Rollout]) -> list[tuple]:
        return [
            (v.reward, v.outcome, v.answer, tuple(v.parts.items())) for v in asyncio.run(mixed.score(prompt(), some))
        ]

    straight = found(answers)
    assert found([answers[i] for i in order]) == [straight[i] for i in order]


def test_verdicts_do_not_depend_on_the_order_in_which_groups_are_asked(mixed: Scorer) -> None:
    questions = [(prompt(answer=str(i), text=f"{i}?"), rollouts(str(i), "4", "none")) for i in range(24)]

    async def ask(order: Sequence[int]) -> list[list[float | None]]:
        found = await asyncio.gather(*(mixed.score(*questions[i]) for i in order))
        return [[v.reward for v in group] for _, group in sorted(zip(order, found, strict=True))]

    order = list(range(24))
    straight = asyncio.run(ask(order))
    random.Random(0).shuffle(order)
    assert asyncio.run(ask(order)) == straight
    assert [group[0] for group in straight] == [pytest.approx(1 + 0.1 * (str(i) > "4")) for i in range(24)]


def test_invalid_parts_leave_no_reward_and_say_which(functions: str) -> None:
    parts = ["number", f"{functions}:picky", f"{functions}:raises"]
    (skipped,) = verdicts(recipe(*parts[:2]), rollouts("4, skip"))
    assert (skipped.reward, skipped.outcome, skipped.message) == (
        None,
        "unavailable",
        "picky: function returned None",
    )
    (worst,) = verdicts(recipe(*parts), rollouts("4, skip"))
    assert (worst.outcome, worst.message.split(":")[:2]) == ("verifier_error", ["raises", " KeyError"])
    assert worst.parts == {"number": 1.0, "picky": None, "raises": None}


def test_gold_answers_that_cannot_be_read_are_no_zero() -> None:
    for gold in ("many", None):
        (verdict,) = verdicts(recipe("number"), rollouts("4"), prompt(answer=gold))
        assert (verdict.reward, verdict.outcome) == (None, "verifier_error")
    nested = prompt(reward_model={"ground_truth": "4"})
    (verdict,) = verdicts(recipe("number", gold="reward_model.ground_truth"), rollouts("4"), nested)
    assert verdict.reward == 1.0


def test_a_bomb_is_the_policys_doing_and_costs_only_itself(functions: str) -> None:
    part = RewardPart(verifier=f"{functions}:hangs_alone", weight=2.0)
    found = verdicts(recipe("number", part, timeout_s=2.0, workers=2), rollouts("4", "4 bomb", "5", "4 exit"))
    assert [(v.reward, v.outcome) for v in found] == [
        (3.0, "scored"),
        (0.0, "unverifiable"),
        (0.5, "scored"),
        (0.0, "unverifiable"),
    ]
    assert found[1].message == "hangs_alone: timed out twice while a right answer passed"
    assert found[3].message == "hangs_alone: the worker exited with status 1 twice while a right answer passed"


def test_a_bomb_gets_less_than_any_wrong_answer(functions: str) -> None:
    part = RewardPart(verifier=f"{functions}:hangs_alone", weight=2.0)
    rude = RewardPart(verifier="regex", options={"pattern": "rude", "score": -1.5})
    hedging = RewardPart(verifier="regex", name="hedging", weight=-0.25, options={"pattern": "maybe"})
    found = verdicts(
        recipe("number", part, rude, hedging, timeout_s=2.0, workers=2), rollouts("5 rude maybe", "4 bomb")
    )
    assert found[1].outcome == "unverifiable"
    assert found[1].reward == -1.75
    assert found[1].parts == {"number": 0.0, "hangs_alone": 0.0, "regex": -1.5, "hedging": 1.0}
    assert (found[0].reward or 0.0) > found[1].reward


def test_what_a_function_returns_lowers_what_a_bomb_gets(tmp_path: Path) -> None:
    source = """
def f(data_source, solution_str, ground_truth):
    if "bomb" in solution_str:
        while True: pass
    return float(solution_str)
"""
    scoring = recipe(f"{write(tmp_path, source)}:f", timeout_s=2.0)
    assert [v.reward for v in verdicts(scoring, rollouts("-3", "2", "bomb"))] == [-3.0, 2.0, -3.0]


def test_a_bomb_in_a_group_is_found_and_its_siblings_are_judged_without_it(functions: str) -> None:
    settings = {"timeout_s": 2.0, "workers": 2}
    found = verdicts(recipe(f"{functions}:hangs", **settings), rollouts("a", "bomb", "ccc", "exit"))
    assert [(v.reward, v.outcome) for v in found] == [
        (1.0, "scored"),
        (0.0, "unverifiable"),
        (3.0, "scored"),
        (0.0, "unverifiable"),
    ]


def test_a_verifier_that_hangs_on_right_answers_too_is_to_blame(functions: str) -> None:
    (verdict,) = verdicts(recipe(f"{functions}:broken", timeout_s=0.4), rollouts("4"))
    assert (verdict.reward, verdict.outcome) == (None, "verifier_timeout")
    assert "broken: no verdict within" in verdict.message


def test_two_hundred_verdicts_at_once_with_bombs_among_them(functions: str) -> None:
    faults = {3: "bomb", 77: "exit", 150: "bomb"}

    async def ask(scorer: Scorer) -> list[list[Verdict]]:
        groups = [
            (prompt(answer=str(i)), rollouts(f"{i}" if i not in faults else f"{i} {faults[i]}")) for i in range(200)
        ]
        return await asyncio.gather(*(scorer.score(*group) for group in groups))

    scoring = recipe("number", f"{functions}:hangs_alone", timeout_s=2.0, workers=2)
    with Scorer(scoring, MAX_TOKENS) as scorer:
        found = asyncio.run(ask(scorer))
    for i, (verdict,) in enumerate(found):
        expected = (0.0, "unverifiable") if i in faults else (2.0, "scored")
        assert (verdict.reward, verdict.outcome) == expected
        assert verdict.answer == str(i)


def test_a_math_bomb_does_not_take_the_machine() -> None:
    tower = r"\boxed{9^{9^{9}}+x}"
    found = verdicts(recipe("math", timeout_s=3.0), rollouts(tower, r"\boxed{4}"), prompt(answer="4"))
    assert found[0].reward == 0.0
    assert found[1].reward == 1.0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([RewardPart(verifier="numbr")], "unknown verifier 'numbr' (did you mean 'number'?)"),
        ([RewardPart(verifier="number", options={"tag": 3})], "verifier 'number', option 'tag'"),
        ([RewardPart(verifier="nowhere.py:f")], "cannot read"),
        (
            [RewardPart(verifier="math"), RewardPart(verifier="number", name="math")],
            "two reward parts are called 'math'",
        ),
        ([RewardPart(verifier="number", name="overlong")], "two reward parts are called 'overlong'"),
    ],
)
def test_recipes_that_cannot_be_judged_by_are_refused(parts: list[RewardPart], message: str) -> None:
    with pytest.raises(UserError) as error:
        Scorer(recipe(*parts, overlong_buffer=0.1), MAX_TOKENS)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_leaving_the_scorer_leaves_no_process() -> None:
    async def use() -> list[int]:
        async with Scorer(recipe("number", workers=2), MAX_TOKENS) as scorer:
            await scorer.score(prompt(), rollouts("4"))
            return scorer.processes()

    assert not any(is_running(pid) for pid in asyncio.run(use()))


def trial(replies: dict[tuple[tuple[str, ...], bool], list[Reply]], *texts: str) -> list[tuple]:
    """Judge with scripted replies, by what is asked and whether it is the canary."""

    async def ask(cases: Sequence[Case], canary: bool) -> Reply:
        return replies[(tuple(case.completion for case in cases), canary)].pop(0)

    cases = [Case(completion=text) for text in texts]
    found = [f.judgement for f in asyncio.run(judge(ask, cases))]
    assert not any(replies.values()), "asked for less than was scripted"
    return [(j.score, j.outcome) for j in found]


def ok(*scores: float | None) -> Answered:
    return Answered([Judgement(s, "scored" if s is not None else "unavailable") for s in scores], 0.1)


HANG, CRASH = TimedOut(1.0), Crashed("died", 0.1)


@pytest.mark.parametrize(
    ("tries", "canary", "expected"),
    [
        ([ok(1.0)], [], (1.0, "scored")),
        ([HANG, ok(1.0)], [], (1.0, "scored")),
        ([CRASH, ok(0.5)], [], (0.5, "scored")),
        ([HANG, HANG], [ok(1.0)], (0.0, "unverifiable")),
        ([HANG, HANG], [HANG], (None, "verifier_timeout")),
        ([HANG, HANG], [CRASH], (None, "verifier_timeout")),
        ([HANG, HANG], [ok(None)], (None, "verifier_timeout")),
        ([CRASH, HANG], [HANG], (None, "verifier_timeout")),
        ([HANG, CRASH], [ok(1.0)], (0.0, "unverifiable")),
        ([CRASH, CRASH], [ok(1.0)], (0.0, "unverifiable")),
        ([CRASH, CRASH], [CRASH], (None, "verifier_error")),
    ],
)
def test_the_rule_for_a_single_case(tries: list[Reply], canary: list[Reply], expected: tuple) -> None:
    assert trial({(("a",), False): tries, (("a",), True): canary}, "a") == [expected]


def test_the_rule_for_a_group() -> None:
    both, first, second = ("a", "b"), ("a",), ("b",)
    replies = {
        (both, False): [HANG, HANG],
        (first, False): [ok(0.3), ok(1.0)],
        (second, False): [HANG],
        (second, True): [ok(1.0)],
    }
    assert trial(replies, "a", "b") == [(1.0, "scored"), (0.0, "unverifiable")]
    together = {(both, False): [HANG, HANG], (first, False): [ok(1.0)], (second, False): [ok(1.0)]}
    assert trial(together, "a", "b") == [(None, "verifier_timeout")] * 2


def test_a_watched_verifier_is_scored_and_moves_nothing() -> None:
    watched = [WatchPart(verifier="number", name="strict", options={"extract": "only"})]
    answers = rollouts("4", "2+2=4", "none")
    plain = verdicts(recipe("number"), answers)
    found = verdicts(recipe("number", watch=watched, overlong_buffer=0.5), answers)
    assert [v.reward for v in found] == [v.reward for v in plain] == [1.0, 1.0, 0.0]
    assert [v.outcome for v in found] == [v.outcome for v in plain]
    assert [v.parts["watch/strict"] for v in found] == [1.0, 0.0, 0.0]
    assert list(found[0].parts) == ["number", "overlong", "watch/strict"]
    broken = [WatchPart(verifier="number", options={"extract": "boxed"}), WatchPart(verifier="math")]
    lost = verdicts(recipe("number", watch=broken), rollouts("5"), prompt(answer="[asy] draw((0,0)); [/asy]", text="?"))
    assert lost[0].parts["watch/math"] is None
