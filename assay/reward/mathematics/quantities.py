"""Are two values with units the same? What only one side writes repeats what the question asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from assay.reward.mathematics.numbers import Domain, real_value
from assay.reward.mathematics.reading import Item
from assay.reward.mathematics.tree import Const, Node, Num, Product, walk
from assay.reward.mathematics.units import MEASURES, Unit, units_in

Same = Callable[[Node, Node, Domain], bool]

_PERCENT = re.compile(r"percent|%", re.IGNORECASE)
_FRACTIONAL = re.compile(r"probability|between 0 and 1|as a (?:decimal|fraction)|common fraction", re.IGNORECASE)
_DEGREES, _RADIANS = re.compile(r"degree|°|\\circ", re.IGNORECASE), re.compile(r"radian", re.IGNORECASE)
_WITH_UNITS = re.compile(
    r"(?:include|with|state|give|specify)\s+(?:the\s+|its\s+|your\s+|proper\s+)*units?", re.IGNORECASE
)
_ASKED = re.compile(r"(?:\bin(?:\s+terms\s+of)?|how many|number of|how much)\s+", re.IGNORECASE)
_A_DEGREE = Product((Const("pi"), Num(Fraction(1, 180))))


def same_quantity(gold: Item, answer: Item, one: Node, other: Node, question: str, domain: Domain, same: Same) -> bool:
    """Is the value ``one`` in the gold item's unit the value ``other`` in the answer's unit?"""
    units = gold.unit, answer.unit

    def equal(factor: Node | Fraction = Fraction(1), against: Node | Fraction = Fraction(1)) -> bool:
        return same(_times(one, factor), _times(other, against), domain)

    if units[0] == units[1]:
        return equal()
    if any(unit is not None and unit.is_percent for unit in units):
        return _same_percent(units, one, question, equal)
    if any(unit is not None and unit.is_angle for unit in units):
        return _same_angle(units, other, question, equal)
    if units[0] and units[1]:
        if units[0].dimensions == units[1].dimensions:
            return equal(units[0].factor, units[1].factor)
        return _same_things(units[0], units[1]) and equal()
    if units[0]:
        return equal() and not _WITH_UNITS.search(question)
    given = units[1]
    if given is None:
        return equal()
    # Asked in cm: 0.1 m is 10, and 10 cm^2 is nothing.
    asked = [unit for unit in _asked(question) if {n for n, _ in unit.dimensions} == {n for n, _ in given.dimensions}]
    alike = [unit for unit in asked if unit.dimensions == given.dimensions]
    return any(equal(unit.factor, given.factor) for unit in alike) if asked else equal()


def _times(node: Node, factor: Node | Fraction) -> Node:
    if factor == 1:
        return node
    return Product((node, Num(factor) if isinstance(factor, Fraction) else factor))


def _same_percent(
    units: tuple[Unit | None, Unit | None], gold: Node, question: str, equal: Callable[..., bool]
) -> bool:
    gold_unit, answer_unit = units
    hundredth, asks = Fraction(1, 100), bool(_PERCENT.search(question))
    if gold_unit and answer_unit:
        return False  # percent and something else
    if gold_unit:  # 35% and a bare number
        return (equal() and not (_FRACTIONAL.search(question) and not asks)) or (equal(hundredth) and not asks)
    if equal(Fraction(1), hundredth):
        return not asks
    value = real_value(gold)
    unasked = not question and value is not None and abs(value) > 1
    return (asks or unasked) and equal()


def _same_angle(
    units: tuple[Unit | None, Unit | None], answer: Node, question: str, equal: Callable[..., bool]
) -> bool:
    if any(unit is not None and not unit.is_angle for unit in units):
        return False
    degrees = [unit is not None and unit.factor == 1 for unit in units]
    asks_degrees, asks_radians = bool(_DEGREES.search(question)), bool(_RADIANS.search(question))
    if units[0] and units[1]:
        return equal(_A_DEGREE) if degrees[0] else equal(Fraction(1), _A_DEGREE)
    if degrees[0]:  # 45 degrees, and a bare number
        return (equal() and not asks_radians) or (_has_pi(answer) and not asks_degrees and equal(_A_DEGREE))
    if degrees[1]:
        return (equal() and not asks_radians) or (not asks_degrees and equal(Fraction(1), _A_DEGREE))
    return equal() and not (asks_degrees and not asks_radians)


def _has_pi(node: Node) -> bool:
    return any(n == Const("pi") for n in walk(node))


def _same_things(a: Unit, b: Unit) -> bool:
    """Things counted, not measured, in words that share one: "red apples" and "apples"."""
    left, right = ({name for name, _ in unit.dimensions} for unit in (a, b))
    return bool(left & right) and not (left | right) & MEASURES


def _asked(question: str) -> list[Unit]:
    """The units that the question asks for: those after "in" or "how many", else all it names."""
    wanted = [
        unit for match in _ASKED.finditer(question) for unit in units_in(f"in {question[match.end() :][:30]}")[:1]
    ]
    return wanted or units_in(question)
