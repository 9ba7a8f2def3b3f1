"""Laws of mathematical equality over generated expressions, and bounds of what it computes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reward.mathematics.equality import same_answer
from assay.reward.mathematics.grammar import parse
from assay.reward.mathematics.notation import plain
from assay.reward.mathematics.numbers import same_value
from assay.reward.mathematics.tokens import Unreadable
from assay.reward.mathematics.tree import Node, Num, replaced
from assay.reward.mathematics.units import parse_unit
from assay.reward.mathematics.value import EXACT_BITS, LARGEST_EXPONENT, Evaluator, Undefined, Unsized, real
from assay.reward.verifier import Case, verifiers

LAWS = settings(deadline=None, max_examples=60)


@pytest.fixture(autouse=True)
def _numbers_of_any_length() -> Iterator[None]:
    """As in a worker."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(before)


def _joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(parts, parts)
    return _joined_up(parts) | pairs.map(lambda p: f"({p[0]}-{p[1]})")


def _joined_up(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(parts, parts)
    return st.one_of(
        pairs.map(lambda p: f"({p[0]}+{p[1]})"),
        pairs.map(lambda p: rf"{p[0]} \cdot {p[1]}"),
        pairs.map(lambda p: rf"\frac{{{p[0]}}}{{{p[1]}}}"),
        parts.map(lambda p: rf"\sqrt{{{p}}}"),
        st.tuples(parts, st.integers(2, 4)).map(lambda p: f"({p[0]})^{{{p[1]}}}"),
    )


NUMBERS = st.recursive(
    st.one_of(st.integers(1, 99).map(str), st.sampled_from(["\\pi", "e", "0.5", "\\frac{2}{7}"])), _joined, max_leaves=6
)
_LEAVES = st.one_of(st.integers(1, 99).map(str), st.sampled_from("xyz"))
EXPRESSIONS = st.recursive(_LEAVES, _joined, max_leaves=6)
DEFINED = st.recursive(_LEAVES, _joined_up, max_leaves=6)
"""Expressions that have a value wherever their unknowns are positive."""


@given(EXPRESSIONS)
@LAWS
def test_equality_is_reflexive(text: str) -> None:
    assert same_answer(text, text) is True


@given(NUMBERS, NUMBERS)
@LAWS
def test_equality_of_numbers_is_symmetric(one: str, other: str) -> None:
    assert same_answer(one, other) == same_answer(other, one)


@given(EXPRESSIONS, EXPRESSIONS)
@LAWS
def test_equality_of_functions_is_symmetric(one: str, other: str) -> None:
    assert same_answer(one, other) == same_answer(other, one)


@given(DEFINED, DEFINED)
@LAWS
def test_terms_and_factors_have_no_order(one: str, other: str) -> None:
    assert same_value(parse(f"{one}+{other}"), parse(f"{other}+{one}"))
    assert same_value(parse(rf"({one}) \cdot ({other})"), parse(rf"({other}) \cdot ({one})"))


@given(NUMBERS, st.integers(10, 400), st.sampled_from([1, -1]))
@LAWS
def test_no_difference_is_too_small(text: str, places: int, sign: int) -> None:
    try:
        value = Evaluator(60)(parse(text))
    except (Undefined, Unsized):
        return
    if value == 0:
        return
    nudged = rf"({text}) \cdot (1 + {sign} \cdot 10^{{-{min(places, 90)}}})"
    assert same_answer(text, nudged) is False


@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
@LAWS
def test_rationals_are_equal_exactly_when_they_are(one: Fraction, other: Fraction) -> None:
    left, right = (rf"\frac{{{value.numerator}}}{{{value.denominator}}}" for value in (one, other))
    assert same_answer(left, right) == (one == other)


@given(NUMBERS)
@LAWS
def test_a_perturbed_number_is_wrong(text: str) -> None:
    tree, changed = parse(text), []

    def change(node: Node) -> Node | None:
        if isinstance(node, Num) and not changed:
            changed.append(node)
            return Num(node.value + Fraction(1, 3))
        return None

    other = replaced(tree, change)
    try:
        values = [real(Evaluator(60)(node), mpmath.mp) for node in (tree, other)]
    except (Undefined, Unsized):
        return
    if changed and abs(values[0] - values[1]) > 1e-12:
        assert not same_value(tree, other)


@given(
    NUMBERS,
    st.sampled_from(
        [
            "${}$",
            r"\( {} \)",
            r"\displaystyle {}",
            "  {}  ",
            "**{}**",
            r"\left({}\right)",
            r"{}\,",
            r"x = {}",
            r"{}.",
            r"\boxed{{{}}}",
            r"\text{{ }}{}",
        ]
    ),
)
@LAWS
def test_decoration_changes_nothing(text: str, decoration: str) -> None:
    decorated = decoration.format(text) if decoration != r"\text{{ }}{}" else text
    assert same_answer(text, decorated) is True


@given(st.text(max_size=80))
@LAWS
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(Unreadable):
        parse(plain(text))
    assert same_answer("42", text) in (True, False)


ALPHABET = st.sampled_from(
    [
        "\\frac",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        "\\{",
        "\\}",
        "^",
        "_",
        "!",
        "|",
        "1",
        "23",
        "x",
        "\\sqrt",
        "\\pm",
        ",",
        "=",
        "<",
        "\\text{ or }",
        "\\cup",
        "\\infty",
        "\\sin",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "&",
        "\\\\",
        "-",
        "+",
        "/",
        "%",
        "i",
        "\\sum",
        "\\int",
        "\\in",
        "\\mathbb{Z}",
        "\\overline",
        "\\log",
        "...",
        "\\pmod",
        "e",
        "0",
        ".",
        ":",
        "\\binom",
        " ",
    ]
)


@given(st.lists(ALPHABET, max_size=14).map("".join), st.lists(ALPHABET, max_size=14).map("".join))
@settings(deadline=None, max_examples=200)
def test_broken_mathematics_never_raises(gold: str, answer: str) -> None:
    assert same_answer(gold, answer) in (True, False, None)


@pytest.mark.parametrize("name", ["math", "gsm8k", "choice"])
@given(st.lists(ALPHABET | st.text(max_size=5), max_size=12).map("".join))
@settings(deadline=None, max_examples=60)
def test_no_completion_makes_a_verifier_raise(name: str, text: str) -> None:
    judge = verifiers[name]({})
    gold = "B" if name == "choice" else "987654321"
    for completion in (text, rf"\boxed{{{text}}}", f"#### {text}", f"Answer: {text}"):
        judgement = judge(Case(completion=completion, gold=gold, prompt="Q?"))
        assert judgement.outcome in ("scored", "no_answer")


@pytest.mark.parametrize(
    "bomb",
    [
        "9^{9^{9^{9}}}",
        "((((9!)!)!)!)",
        "10^{10^{10^{10}}}",
        "99999999!",
        r"\binom{10^9}{5 \cdot 10^8}",
        "e^{e^{e^{e^e}}}",
        "2^{10^8}",
        r"\sum_{k=1}^{10^9} k",
        r"\prod_{k=1}^{10^9} k!",
        "0.1^{10^{12}}",
        r"\sin(10^{10^{10}})",
    ],
)
def test_bombs_are_refused_before_they_are_computed(bomb: str) -> None:
    with pytest.raises(Unsized):
        Evaluator(60)(parse(bomb))


@given(st.integers(2, 10**6), st.integers(1, 10**9))
@LAWS
def test_a_power_stays_within_its_bounds(base: int, exponent: int) -> None:
    try:
        value = Evaluator(60)(parse(f"{base}^{{{exponent}}}"))
    except Unsized:
        assert exponent * base.bit_length() > EXACT_BITS
        return
    if isinstance(value, Fraction):
        assert value.numerator.bit_length() <= EXACT_BITS + base.bit_length()
    else:
        assert abs(value.exp + value.bc) <= LARGEST_EXPONENT


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=5, unique=True))
@LAWS
def test_sets_have_no_order_and_miss_nothing(members: list[int]) -> None:
    spelled = ", ".join(map(str, members))
    shuffled = sorted(members, key=lambda n: hash((n, len(members))))
    assert same_answer(rf"\{{{spelled}\}}", rf"\{{{', '.join(map(str, shuffled))}\}}") is True
    assert same_answer(rf"\{{{spelled}\}}", rf"\{{{spelled}, 77\}}") is False
    if len(members) > 1:
        assert same_answer(spelled, ", ".join(map(str, members[1:]))) is False


@given(st.integers(-50, 50), st.integers(1, 50), st.sampled_from("()[]"), st.sampled_from("()[]"))
@LAWS
def test_intervals_are_their_inequalities(low: int, width: int, left: str, right: str) -> None:
    opening, closing = "[" if left in "[]" else "(", "]" if right in "[]" else ")"
    high = low + width
    signs = (r"\le" if opening == "[" else "<"), (r"\le" if closing == "]" else "<")
    interval = f"{opening}{low}, {high}{closing}"
    assert same_answer(f"{low} {signs[0]} x {signs[1]} {high}", interval) is True
    assert same_answer(f"{low} {signs[0]} x {signs[1]} {high + 1}", interval) is False
    other = "(" if opening == "[" else "["
    assert same_answer(interval, f"{other}{low}, {high}{closing}") is False


@pytest.mark.parametrize(
    ("text", "factor", "dimensions"),
    [
        ("km/h", Fraction(5, 18), (("length", 1), ("time", -1))),
        (r"\text{ cm}^2", Fraction(1, 10_000), (("length", 2),)),
        ("cubic feet", Fraction(381, 1250) ** 3, (("length", 3),)),
        ("liters", Fraction(1, 1000), (("length", 3),)),
        (r"\text{m/s}^2", Fraction(1), (("length", 1), ("time", -2))),
        ("%", Fraction(1), (("percent", 1),)),
    ],
)
def test_units_have_factors_and_dimensions(
    text: str, factor: Fraction, dimensions: tuple[tuple[str, int], ...]
) -> None:
    unit = parse_unit(text)
    assert unit is not None
    assert (unit.factor, unit.dimensions) == (factor, dimensions)
