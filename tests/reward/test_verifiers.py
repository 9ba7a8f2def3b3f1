"""Golden tables of each built-in verifier, laws, and the collected traps of public bug reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import UserError
from assay.reward.extraction import boxed
from assay.reward.verifier import Case, Judgement, Verifier, describe, verifiers
from assay.reward.verifiers.number import canonical, numbers_in, single_number


@pytest.fixture(autouse=True)
def _numbers_of_any_length() -> Iterator[None]:
    """As in a worker."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(before)


def build(name: str, **options: Any) -> Verifier:
    return verifiers[name](options)


def judge(name: str, completion: str, gold: Any = None, *, prompt: str = "", **options: Any) -> Judgement:
    return build(name, **options)(Case(completion=completion, gold=gold, prompt=prompt))


def found(name: str, completion: str, gold: Any = None, **options: Any) -> float | str:
    """The score, or the outcome where nothing was scored."""
    judgement = judge(name, completion, gold, **options)
    return judgement.outcome if judgement.outcome != "scored" else float(judgement.score or 0.0)


NO, ERROR = "no_answer", "verifier_error"


@pytest.mark.parametrize(
    ("extract", "completion", "gold", "expected"),
    [
        ("last", "3 + 4 = 7", "7", 1.0),
        ("last", "7 is 3 + 4", "7", 0.0),
        ("last", "It costs $1,250.", 1250, 1.0),
        ("last", "It costs 1,2", "12", 0.0),
        ("last", "12,345,678.50", "12345678.5", 1.0),
        ("last", "minus: −4", "-4", 1.0),
        ("last", "10-3", "3", 1.0),
        ("last", "10 - 3", "3", 1.0),
        ("last", "x = -3", "-3", 1.0),
        ("last", "-$5", "-5", 1.0),
        ("last", "The loss is $-5", "-5", 1.0),
        ("last", ".5 of it", "1/2", 1.0),
        ("last", "3/4", "0.75", 1.0),
        ("last", r"\frac{3}{4}", "0.75", 1.0),
        ("last", "2 1/2 cups", "2.5", 1.0),
        ("last", "1/0", "1", NO),
        ("last", "35%", "35", 1.0),
        ("last", "35%", "0.35", 0.0),
        ("last", "1e-7", "0.0000001", 1.0),
        ("last", "0.1", "0.10", 1.0),
        ("last", "1/3", "0.33", 0.0),
        ("last", "12 m^2 of H2O", "12", 1.0),
        ("last", "٤٢", "42", 1.0),
        ("last", "22{,}430", "22430", 1.0),
        ("last", "none", "4", NO),
        ("last", "", "4", NO),
        ("last", "<think>it is 4</think> 5", "4", 0.0),
        ("last", "<think>it is 4", "4", NO),
        ("last", "4", None, ERROR),
        ("last", "4", "four", ERROR),
        ("last", "4", "3 or 4", ERROR),
        ("last", "4", True, ERROR),
        ("last", "42", "6*7=42\n#### 42", 1.0),
        ("tagged", "1 <answer>2</answer> 3", "2", 1.0),
        ("tagged", "<answer>1+1=2</answer>", "2", 1.0),
        ("tagged", "<answer>1</answer><answer>2</answer>", "2", 0.0),
        ("tagged", "2", "2", NO),
        ("boxed", r"\boxed{16}, no: \boxed{18}", "18", 1.0),
        ("boxed", r"\boxed{5} \boxed{6} \boxed{7}", "7", 0.0),
        ("boxed", r"\boxed{18", "18", NO),
        ("boxed", r"\boxed{}", "0", NO),
        ("hash", "#### 18 apples", "18", 1.0),
        ("hash", "18", "18", NO),
        ("hash", "#### 17\n#### 18", "18", 0.0),
        ("hash", "#### 18 or 19 or 17", "18", 0.0),
        ("only", "The answer is 7.", "7", 1.0),
        ("only", "3 + 4 = 7", "7", NO),
        ("only", "seven", "7", NO),
    ],
)
def test_number_table(extract: str, completion: str, gold: Any, expected: float | str) -> None:
    assert found("number", completion, gold, extract=extract) == expected


def test_number_counts_the_numbers_of_a_completion_and_spells_answers_one_way() -> None:
    judgement = judge("number", "3 + 4 = 7.50", "7")
    assert judgement.answer == "7.5"
    assert "(numbers: 3)" in judgement.message
    assert judge("number", "1,250").answer == judge("number", "1250.0").answer


def test_number_tolerance_is_absolute_and_control_ignores_the_gold_answer() -> None:
    assert found("number", "3.14", "3.14159", tolerance=0.002) == 1.0
    assert found("number", "3.13", "3.14159", tolerance=0.002) == 0.0
    assert found("number", "99", "7", extract="only", control=True) == 1.0
    assert found("number", "9 or 9", "9", extract="only", control=True) == NO


@given(st.integers(-(10**18), 10**18))
@settings(deadline=None, max_examples=50)
def test_integers_survive_every_spelling(value: int) -> None:
    for text in (f"{value}", f"{value:,}", f"{value}.00", f"${value}", f"**{value}**", f"so {value}."):
        assert numbers_in(text.replace("-", "−")) == [value]
        assert found("number", text, str(value)) == 1.0


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=6))
@settings(deadline=None, max_examples=50)
def test_decimals_survive_formatting(value: Decimal) -> None:
    assert numbers_in(f"x = {value:,f} units") == [Fraction(value)]
    assert found("number", f"about {value:f}", float(value), tolerance=1e-6) == 1.0


@given(st.fractions(max_denominator=10**6))
@settings(deadline=None, max_examples=50)
def test_the_canonical_spelling_reads_back(value: Fraction) -> None:
    assert single_number(canonical(value)) == value


@pytest.mark.parametrize(
    ("completion", "gold", "options", "expected"),
    [
        ("  Paris\n", "Paris", {}, 1.0),
        ("New   York", "New York", {}, 1.0),
        ("New   York", "New York", {"collapse_whitespace": False}, 0.0),
        ("paris", "Paris", {}, 0.0),
        ("paris", "Paris", {"ignore_case": True}, 1.0),
        ("I think:\nParis", "Paris", {"extract": "last_line"}, 1.0),
        ("<answer>Paris</answer>", "Paris", {"extract": "tagged"}, 1.0),
        (r"\boxed{Paris}", "Paris", {"extract": "boxed"}, 1.0),
        ("<think>Paris</think>", "Paris", {}, NO),
        ("7", 7, {}, 1.0),
        ("", "Paris", {}, NO),
        ("Paris", "", {}, ERROR),
        ("Paris", None, {}, ERROR),
        ("Paris", ["Paris"], {}, ERROR),
    ],
)
def test_exact_table(completion: str, gold: Any, options: dict[str, Any], expected: float | str) -> None:
    assert found("exact", completion, gold, **options) == expected


@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        ("B", "B", 1.0),
        ("(b)", "B", 1.0),
        ("The answer is (C).", "C", 1.0),
        ("Answer: **D**", "D", 1.0),
        ("Final answer: option B", "B", 1.0),
        (r"\boxed{\text{(A)}}", "A", 1.0),
        ("<answer>A</answer>", "B", 0.0),
        ("The answer is a good one", "A", NO),
        ("I think so", "I", NO),
        ("Answer: A or B", "A", 0.0),
        ("It may be (A), or (B).", "A", NO),
        ("(A) is odd, (B) is even.", "A", NO),
        ("A. 10\nB. 12\nC. 15", "C", NO),
        ("B. 12\nbecause 3*4 = 12", "B", 1.0),
        ("Only (C) is prime.", "C", 1.0),
        ("", "A", NO),
        ("A", "Z", ERROR),
        ("A", None, ERROR),
        ("A", 0, ERROR),
    ],
)
def test_choice_table(completion: str, gold: Any, expected: float | str) -> None:
    assert found("choice", completion, gold) == expected


def test_choice_takes_the_letters_of_the_row() -> None:
    row = {"options": ["one", "two"]}
    assert build("choice")(Case(completion="C", gold="B", columns=row)).outcome == NO
    assert build("choice")(Case(completion="B", gold="C", columns=row)).outcome == ERROR


@pytest.mark.parametrize(
    ("completion", "gold", "options", "expected"),
    [
        ("ab12", None, {"pattern": r"\d+"}, 1.0),
        ("ab", None, {"pattern": r"\d+"}, 0.0),
        ("ab12", None, {"pattern": r"\d+", "full": True}, 0.0),
        (" 12\n", None, {"pattern": r"\d+", "full": True}, 1.0),
        ("sorry", None, {"pattern": "SORRY", "ignore_case": True, "score": -1.0}, -1.0),
        ("a=1 a=2", "2", {"pattern": r"a=(\d)", "compare": True}, 1.0),
        ("a=2 a=1", "2", {"pattern": r"a=(\d)", "compare": True}, 0.0),
        ("b", "2", {"pattern": r"a=(\d)", "compare": True}, NO),
        ("a=2", None, {"pattern": r"a=(\d)", "compare": True}, ERROR),
        ("a\nb", None, {"pattern": "a.b", "dotall": True}, 1.0),
    ],
)
def test_regex_table(completion: str, gold: Any, options: dict[str, Any], expected: float | str) -> None:
    assert found("regex", completion, gold, **options) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>a</think><answer>b</answer>", 1.0),
        ("<think>a</think>\n\n<answer>b</answer>\n", 1.0),
        ("<answer>b</answer><think>a</think>", 0.0),
        ("<think>a</think><answer> </answer>", 0.0),
        ("<think>a<answer>b</think></answer>", 0.0),
        ("<think>a</think><answer>b</answer> Bye", 0.0),
        ("b", 0.0),
        ("", 0.0),
    ],
)
def test_format_table(completion: str, expected: float) -> None:
    assert found("format", completion) == expected


def test_format_counts_the_opening_tag_of_the_prompt_and_takes_other_templates() -> None:
    assert judge("format", "a</think><answer>b</answer>", prompt="Q<think>\n").score == 1.0
    assert found("format", "<plan>a</plan><do>b</do>", template="<plan>...</plan><do>...</do>") == 1.0


def test_length_is_dapos_piecewise_line() -> None:
    shape = build("length", buffer=0.2, penalty=2.0)
    scores = [shape(Case(completion="", tokens=n, max_tokens=100)).score for n in (0, 80, 90, 95, 100, 120)]
    assert scores == pytest.approx([0.0, 0.0, -1.0, -1.5, -2.0, -2.0])
    assert shape(Case(completion="", tokens=5)).outcome == ERROR


def test_reasoning_gym_scores_as_the_task_does() -> None:
    import reasoning_gym

    judge_row = build("reasoning_gym", extract="last_line", partial=True)
    data = reasoning_gym.create_dataset("chain_sum", size=3, seed=1)
    for entry in data:
        for columns in (
            {"reasoning_gym_task": "chain_sum", "entry": entry},
            {**entry, "data_source": "reasoning_gym:chain_sum", "task_options": {"size": 3, "seed": 1}},
        ):
            for answer in (entry["answer"], "-123456", ""):
                judgement = judge_row(Case(completion=f"Let me see.\n{answer}" if answer else "", columns=columns))
                assert judgement.score == (data.score_answer(answer, entry) if answer else 0.0)
            assert judge_row(Case(completion="", columns=columns)).outcome == NO
    assert judge_row(Case(completion="4", gold="4")).outcome == ERROR
    unknown = {"reasoning_gym_task": "chain_sun", "entry": data[0]}
    assert "did you mean 'chain_sum'" in judge_row(Case(completion="4", columns=unknown)).message


def test_boxes_are_matched_by_their_braces() -> None:
    assert boxed(r"\boxed{\frac{1}{2}} and then \boxed{x_{1}}") == ["x_{1}"]
    assert boxed(r"\boxed{\{1\}}") == [r"\{1\}"]
    assert boxed(r"\boxed{7} Restated: \boxed{") == []
    assert boxed(r"I use \boxed as asked: \boxed{9}") == ["9"]


@pytest.mark.parametrize("name", ["number", "math", "choice", "exact", "regex"])
@given(st.text(max_size=60))
@settings(deadline=None, max_examples=30)
def test_no_completion_makes_a_verifier_raise_or_pass_by_chance(name: str, completion: str) -> None:
    options = {"pattern": "Q7Q", "compare": True} if name == "regex" else {}
    gold = {"choice": "J", "regex": "Q7Q"}.get(name, "987654321987")
    judgement = judge(name, completion, gold, **options)
    assert judgement.outcome in ("scored", NO)
    assert judgement.score == 0.0 or name == "choice" or gold in completion


@pytest.mark.parametrize(("name", "gold"), [("number", "4"), ("math", r"\frac{1}{2}"), ("choice", "B"), ("exact", "a")])
def test_every_canary_is_right(name: str, gold: str) -> None:
    places = {"number": ["last", "tagged", "boxed", "hash", "only"], "math": ["auto", "boxed"]}
    for place in places.get(name, ["whole", "tagged", "boxed", "last_line"] if name == "exact" else [None]):
        verifier = build(name, **({"extract": place} if place else {}))
        text = verifier.canary(gold)  # type: ignore[attr-defined]
        assert verifier(Case(completion=text, gold=gold)).score == 1.0, (place, text)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("number", {"extrct": "last"}, "verifier 'number' has no option 'extrct' (did you mean 'extract'?)"),
        ("number", {"extract": "first"}, "verifier 'number', option 'extract': Input should be"),
        ("regex", {}, "verifier 'regex', option 'pattern': Field required"),
        ("regex", {"pattern": "("}, "in the regular expression, not '('"),
        ("format", {"template": "<think>...</answer>"}, "must be blocks such as"),
        ("length", {"buffer": 0}, "verifier 'length', option 'buffer'"),
    ],
)
def test_bad_options_are_refused_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        verifiers[name](options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_describe_lists_options_with_defaults() -> None:
    assert "tolerance: 0.0 - Absolute difference" in describe("number")
    with pytest.raises(UserError, match="did you mean 'number'"):
        describe("numbr")


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" + "{" * 20_000,
        r"\boxed{" + "(" * 9_000 + "1" + ")" * 9_000 + "}",
        r"\boxed{9^{9^{9^{9}}}}",
        r"\boxed{((5000!)!)!}",
        r"\boxed{\sum_{a=1}^{99}\sum_{b=1}^{99}\sum_{c=1}^{99}\sum_{d=1}^{99} 1}",
        r"\boxed{\mathbb{R}\setminus\{" + ",".join(map(str, range(150))) + r"\}}",
        r"\boxed{" + "\\cup".join(f"(-\\sqrt{{{n}}},\\sqrt{{{n + 1}}})" for n in range(100)) + "}",
        r"\boxed{\{" + ",".join(f"\\sqrt{{{n}}}" for n in range(190)) + r"\}}",
        "the answer is " * 7_000,
        "#### " * 20_000,
        "<answer>" * 12_000,
        "*" * 100_000,
        "9" * 100_000,
        "0." + "3" * 100_000,
        "$1,000" * 15_000,
    ],
    ids=lambda text: text[:24],
)
@pytest.mark.parametrize("name", ["math", "gsm8k", "choice", "number"])
def test_a_bomb_gets_a_verdict_that_earns_nothing(name: str, text: str) -> None:
    gold = {"math": "(1,2)", "choice": "B"}.get(name, "42")
    assert verifiers[name]({})(Case(completion=text, gold=gold)).score == 0
