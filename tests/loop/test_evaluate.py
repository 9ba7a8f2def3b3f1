"""Held-out evaluation: what is asked, and what the estimates are over."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from loop_helpers import TalkingEngine, TalkingScorer, prompts

from assay.errors import AssayError
from assay.loop.evaluate import EVAL_ADMISSIONS, Evaluation, estimates_over, evaluate
from assay.loop.statistics import Estimate
from assay.loop.summary import estimates_of
from assay.recipe.schema import Recipe
from assay.records import Group, Rollout, Segment, Verdict
from assay.rollout.dispatch import Dispatcher


def answers(*scores: float | None, said: tuple[str | None, ...] = ()) -> Group:
    """A group of these scores, the greedy one first; ``None`` is a broken verifier."""
    prompt = prompts(1).prompts[0]
    segment = Segment("policy", (1,), (-1.0,), (0,))
    verdicts = tuple(
        Verdict(None, "verifier_error")
        if score is None
        else Verdict(score, "scored", correct=score, answer=said[i - 1] if said and i else str(score))
        for i, score in enumerate(scores)
    )
    return Group(prompt, tuple(Rollout("p0", i, (segment,), "stop", "") for i in range(len(scores))), verdicts)


def test_estimates_of_known_verdicts() -> None:
    groups = [answers(1, 1, 0, 0, 0), answers(0, 1, 1, 1, 1), answers(1, 0, 0, 0, 0)]
    found = {name: e.value for name, e in estimates_over(groups, 4).items()}
    assert found == pytest.approx(
        {
            "greedy": 2 / 3,
            "mean_at_4": (1 / 4 + 1 + 0) / 3,
            "pass_at_2": (1 / 2 + 1 + 0) / 3,
            "pass_at_4": 2 / 3,
            "majority_at_4": (0 + 1 + 0) / 3,
        }
    )


def test_wordings_of_one_problem_are_not_so_many_problems() -> None:
    scores = [(1, 1, 1), (0, 1, 0), (1, 1, 0), (0, 0, 0), (1, 0, 1), (1, 1, 1), (0, 0, 1), (0, 0, 0)]

    def found(problem_of: Callable[[int], str]) -> dict[str, Estimate]:
        groups = [answers(*score) for score in scores * 2]
        told = [replace(g, prompt=replace(g.prompt, problem=problem_of(i))) for i, g in enumerate(groups)]
        return estimates_over(told, 2)

    own, paired = found(lambda i: f"p{i}"), found(lambda i: f"p{i % 8}")
    for name, estimate in paired.items():
        assert (estimate.value, estimate.n) == (own[name].value, 16)
        assert estimate.high - estimate.low > 1.2 * (own[name].high - own[name].low), name


def test_broken_verdicts_are_in_no_estimate() -> None:
    groups = [answers(None, 1, 0), answers(1, 1, None), answers(0, None, None), answers(0, 1, 1)]
    found = estimates_over(groups, 2)
    assert (found["greedy"].value, found["greedy"].n) == (pytest.approx(1 / 3), 3)
    assert (found["mean_at_2"].value, found["mean_at_2"].n) == (pytest.approx((0.5 + 1 + 1) / 3), 3)
    assert (found["pass_at_2"].value, found["pass_at_2"].n) == (1.0, 2)
    assert Evaluation(found, tuple(groups)).metrics()["eval/invalid"] == 4


def test_greedy_alone_and_nothing_valid() -> None:
    assert set(estimates_over([answers(1), answers(0)], 0)) == {"greedy"}
    found = estimates_over([answers(None, None)], 1)
    assert set(found) == {"greedy"}
    assert math.isnan(found["greedy"].value)


def test_nobody_votes_where_no_answer_is_extracted() -> None:
    found = estimates_over([answers(1, 1, 1, said=(None, None))], 2)
    assert "majority_at_2" not in found
    assert found["pass_at_2"].value == 1.0


def test_metrics_give_the_estimates_back() -> None:
    evaluation = Evaluation(estimates_over([answers(1, 1, 0), answers(0, 0, 0)], 2), ())
    back = estimates_of(evaluation.metrics())
    assert set(back) == set(evaluation.estimates)
    for name, e in evaluation.estimates.items():
        assert (back[name]["value"], back[name]["low"], back[name]["high"]) == (e.value, e.low, e.high)


def test_what_is_asked_does_not_depend_on_when_and_progress_runs_to_the_end() -> None:
    recipe = Recipe.from_dict({"data": {"eval": ["x"]}, "eval": {"samples": 3, "limit": 5, "temperature": 0.7}})

    def judge(text: str) -> Verdict:
        return Verdict(float(text.endswith("/0")), "scored", answer=text)

    def ask(seed: int) -> tuple[Evaluation, TalkingEngine, list[tuple[int, int]]]:
        seen: list[tuple[int, int]] = []
        engine = TalkingEngine(seed)
        found = asyncio.run(
            evaluate(
                Dispatcher(engine), TalkingScorer(judge, seed), prompts(9), recipe, lambda d, n: seen.append((d, n))
            )
        )
        return found, engine, seen

    found, engine, seen = ask(1)
    assert found == ask(2)[0]
    assert seen == [(i, 20) for i in range(1, 21)]
    assert [g.prompt.id for g in found.groups] == [f"p{k}" for k in range(5)]
    for i, group in enumerate(found.groups):
        assert [r.text for r in group.rollouts] == [f"p{i}/{EVAL_ADMISSIONS + i}/{k}" for k in range(4)]
    assert found.estimates["greedy"].value == 1.0
    assert found.estimates["mean_at_3"].value == 0.0
    assert {(r.n, r.first_index, r.sampling.greedy) for r in engine.asked} == {(1, 0, True), (3, 1, False)}
    assert {r.sampling.temperature for r in engine.asked if not r.sampling.greedy} == {0.7}
    assert len({r.seed for r in engine.asked}) == 1


def test_a_broken_verifier_is_not_an_accuracy_of_zero() -> None:
    recipe = Recipe.from_dict({"data": {"eval": ["x"]}, "eval": {"samples": 1}})
    scorer = TalkingScorer(lambda text: Verdict(None, "verifier_error", message="KeyError: 'gold'"))
    with pytest.raises(AssayError, match=r"4 of 4 verdicts are invalid.*KeyError: 'gold'"):
        asyncio.run(evaluate(Dispatcher(TalkingEngine()), scorer, prompts(4), recipe))
