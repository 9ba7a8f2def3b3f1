"""Sum, product, gates and the choice of parts by a column; what cannot work is refused with the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_helpers import MAX_TOKENS, prompt, recipe, rollouts

from assay.errors import UserError
from assay.recipe.schema import Gate, Recipe, RewardPart
from assay.records import Verdict
from assay.reward.combine import Term, combine
from assay.reward.scorer import Scorer
from assay.reward.selection import check_rows, parts_for
from assay.reward.verifier import Judgement

SCORES = st.floats(-2, 2)
GATED = [Term("right"), Term("form", 0.5, Gate(part="right", at_least=1))]


@given(SCORES, SCORES)
def test_a_gated_part_adds_exactly_when_its_gate_is_open(right: float, form: float) -> None:
    verdict = combine(GATED, [Judgement(right), Judgement(form)])
    assert verdict.reward == pytest.approx(right + (0.5 * form if right >= 1 else 0))
    assert verdict.parts == {"right": right, "form": form}
    assert ("did not count" in verdict.message) == (right < 1)


@given(st.lists(SCORES, min_size=1, max_size=4))
def test_a_product_is_never_above_its_factors_where_one_punishes(scores: list[float]) -> None:
    terms = [Term(str(i)) for i in range(len(scores))]
    reward = combine(terms, [Judgement(score) for score in scores], how="product").reward
    assert reward is not None
    if min(scores) < 0:
        assert reward == min(scores)
    elif 0 in scores:
        assert reward == 0


def test_what_a_closed_gate_hides_cannot_invalidate_a_verdict_but_what_counts_can() -> None:
    broken = Judgement(None, "verifier_error", None, "broke")
    closed = combine(GATED, [Judgement(0.0), broken])
    assert (closed.reward, closed.outcome) == (0.0, "scored")
    opened = combine(GATED, [Judgement(1.0), broken])
    assert (opened.reward, opened.outcome, opened.message) == (None, "verifier_error", "form: broke")
    gone = combine(GATED, [broken, Judgement(1.0)])
    assert (gone.reward, gone.outcome) == (None, "verifier_error")


def test_a_bomb_behind_a_closed_gate_still_costs_the_reward() -> None:
    bomb = Judgement(0.0, "unverifiable", None, "timed out twice")
    assert combine(GATED, [Judgement(0.9), bomb]).reward == 0.0


def test_the_overlong_punishment_is_added_to_a_product() -> None:
    terms = [Term("a"), Term("b"), Term("overlong", added=True)]
    judged = [Judgement(1.0), Judgement(0.5), Judgement(-0.25)]
    assert combine(terms, judged, how="product").reward == 0.25


BY_COLUMN = recipe(
    RewardPart(verifier="number", rows=["sum"]),
    RewardPart(verifier="exact", rows=["word", "sum"]),
    RewardPart(verifier="regex", weight=0.5, options={"pattern": "!"}),
    verifier_column="kind",
)


def score(reward: Any, kind: Any, text: str, answer: str) -> Verdict:
    with Scorer(reward, MAX_TOKENS) as scorer:
        return asyncio.run(scorer.score(prompt(answer, kind=kind), rollouts(text)))[0]


def test_a_row_is_judged_by_the_first_part_of_its_name_and_by_those_of_every_row() -> None:
    number = score(BY_COLUMN, "sum", "It is 4!", "4")
    assert (number.reward, number.parts, number.correct) == (1.5, {"number": 1.0, "regex": 1.0}, 1.0)
    word = score(BY_COLUMN, "word", "It is 4!", "4")
    assert (word.reward, word.parts, word.correct) == (0.5, {"exact": 0.0, "regex": 1.0}, 0.0)
    both = score(BY_COLUMN, ["word", "sum"], "4", "4")
    assert both.parts == {"number": 1.0, "exact": 1.0, "regex": 0.0}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("wrod", "no reward part has 'wrod' among its rows (did you mean 'word'?)"),
        (["sum", "x"], "no reward part has 'x'"),
        (None, "the column 'kind' must name a part or a list of parts, not None"),
        ([], "must name a part"),
        (3, "must name a part"),
    ],
)
def test_a_row_that_nobody_judges_is_refused_and_never_rewarded(kind: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        check_rows(BY_COLUMN, [prompt(kind=kind)])
    assert message in str(error.value)
    assert "reward.verifier_column" in str(error.value)
    verdict = score(BY_COLUMN, kind, "4", "4")
    assert (verdict.reward, verdict.outcome) == (None, "verifier_error")


def test_without_a_column_every_part_judges_every_row() -> None:
    assert parts_for(recipe("number", "exact"), {}) == (0, 1)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"parts": [{"verifier": "math", "when": {"part": "math"}}]}, "reward.parts[0].when.part"),
        (
            {"parts": [{"verifier": "format", "when": {"part": "math"}}, {"verifier": "math"}]},
            "'math' is no earlier part",
        ),
        ({"combine": "product", "parts": [{"verifier": "math", "weight": 2}]}, "only scales a product"),
        ({"parts": [{"verifier": "math", "rows": ["a"]}]}, "needs reward.verifier_column"),
        ({"verifier_column": "kind"}, "chooses nothing"),
        (
            {
                "verifier_column": "kind",
                "parts": [{"verifier": "math", "rows": ["a"]}, {"verifier": "exact", "rows": ["a"]}],
            },
            "judged by earlier parts",
        ),
        ({"combine": "mean"}, "reward.combine"),
        ({"parts": [{"verifier": "math", "when": {"prat": "x"}}]}, "prat"),
    ],
)
def test_a_composition_that_cannot_work_is_refused(reward: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        Recipe.from_dict({"reward": reward, "data": {"train": ["a.jsonl"]}})
    assert message in str(error.value)


def test_gdpo_reads_neither_gates_nor_products() -> None:
    parts = [{"verifier": "math"}, {"verifier": "format", "when": {"part": "math"}}]
    for reward in ({"parts": parts}, {"combine": "product", "parts": [{"verifier": "math"}, {"verifier": "format"}]}):
        with pytest.raises(UserError, match="reads neither gates nor products"):
            Recipe.from_dict({"reward": reward, "objective": {"estimator": "gdpo"}, "data": {"train": ["a.jsonl"]}})
