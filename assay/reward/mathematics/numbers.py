"""Are two expressions the same number, or the same function of their unknowns?

Rationals are compared exactly. Else both are evaluated to 60, 160 and 260 digits: a true zero shrinks with every
digit, a small number does not, so there is no absolute tolerance anywhere. With unknowns the comparison is made at a
dozen points, where both sides are real (an expression with ``i`` in it: where both have a value).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath

from assay.reward.mathematics.tree import Call, Const, Node, Num, Power, Product, symbols, walk
from assay.reward.mathematics.value import Evaluator, Undefined, Unsized, Value

DIGITS = (60, 160, 260)
POINTS = 14
"""Points that are tried."""
ENOUGH = 3
"""Points at which both sides must have had a value."""
MOST_NODES = 1_500
"""Nodes of an expression that is evaluated; larger ones are compared as they stand."""
MOST_SYMBOLS = 12
_SHARED = mpmath.mpf(10) ** -50
"""Relative difference that is rounding at 160 digits."""


@dataclass(frozen=True)
class Domain:
    """What the question says of the unknowns."""

    positive: bool = False
    integer: bool = False


def same_value(a: Node, b: Node, domain: Domain | None = None) -> bool:
    r"""Are both the same number or function? Never by an absolute tolerance.

    >>> from assay.reward.mathematics.grammar import parse
    >>> same_value(parse("1/3^80"), parse("1/3^79")), same_value(parse("(x+2)/7"), parse("x/7+2/7"))
    (False, True)
    """
    if a == b:
        return True
    if sum(1 for _ in walk(a)) + sum(1 for _ in walk(b)) > MOST_NODES:
        return False
    bare_log = any(isinstance(n, Call) and n.name == "log" for side in (a, b) for n in walk(side))
    return any(_same(a, b, domain or Domain(), common) for common in ((False, True) if bare_log else (False,)))


def _same(a: Node, b: Node, domain: Domain, common_log: bool) -> bool:
    unknowns = sorted(symbols(a) | symbols(b))
    if len(unknowns) > MOST_SYMBOLS:
        return False
    if not unknowns:
        return _same_at(a, b, {}, common_log, complex_too=True) is True
    imaginary = any(n == Const("i") for side in (a, b) for n in walk(side))
    whole = domain.integer or any(_alternates(n) for side in (a, b) for n in walk(side))
    agreed = 0
    for point in points(tuple(unknowns), domain.positive, whole):
        verdict = _same_at(a, b, point, common_log, complex_too=imaginary)
        if verdict is False:
            return False
        agreed += verdict is True
    if agreed >= ENOUGH or imaginary:
        return agreed >= ENOUGH
    complex_points = points(tuple(unknowns), domain.positive, whole)
    verdicts = [_same_at(a, b, point, common_log, complex_too=True) for point in complex_points]
    return agreed + verdicts.count(True) >= ENOUGH and False not in verdicts


def _alternates(node: Node) -> bool:
    """Does it have values for whole numbers only: a sum over an index, a negative number to an unknown power?"""
    if isinstance(node, Call) and node.name in ("sum", "prod"):
        return True
    return (
        isinstance(node, Power)
        and bool(symbols(node.exponent))
        and (base := real_value(node.base)) is not None
        and base < 0
    )


def points(unknowns: tuple[str, ...], positive: bool, whole: bool) -> Iterator[dict[str, Fraction]]:
    """Values for the unknowns: the same ones every time; small and large, half of them negative if allowed."""
    draw = random.Random(20_000 + len(unknowns))
    for index in range(POINTS):
        point = {}
        for name in unknowns:
            if whole:
                value = Fraction(draw.randint(1, 9 + 3 * index))
            else:
                value = Fraction(draw.randint(1, 97), draw.choice((7, 11, 13, 101, 103)))
            point[name] = -value if index % 2 and not positive and not whole and draw.random() < 0.7 else value
        yield point


def _same_at(a: Node, b: Node, point: Mapping[str, Fraction], common_log: bool, complex_too: bool) -> bool | None:
    """Equal at this point? ``None`` where one has no (real) value."""
    try:
        left, right = (Evaluator(DIGITS[1], point, common_log)(node) for node in (a, b))
    except Undefined:
        return None
    except Unsized:
        return None if point else _same_logarithm(a, b)
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    if not complex_too and not (_is_real(left) and _is_real(right)):
        return None
    left, right = _as_mpf(left, right), _as_mpf(right, left)
    difference, size = left - right, max(abs(left), abs(right))
    if difference == 0 or (size and abs(difference) <= size * _SHARED**2):
        return True
    if abs(difference) > size * _SHARED / 10**30 and size > _SHARED:
        return False
    return _both_vanish(a, b, point, common_log)


def _as_mpf(value: Value, other: Any) -> Any:
    return other.context.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _is_real(value: Value) -> bool:
    return isinstance(value, Fraction) or not value.imag or abs(value.imag) < abs(value) * _SHARED


def _both_vanish(a: Node, b: Node, point: Mapping[str, Fraction], common_log: bool) -> bool:
    return all(_vanishes(node, point, common_log) for node in (a, b))


def _vanishes(node: Node, point: Mapping[str, Fraction], common_log: bool) -> bool:
    """Is it zero? Each of a hundred further digits must make it smaller by about as much."""
    try:
        sizes = [abs(Evaluator(digits, point, common_log)(node)) for digits in DIGITS]
    except ArithmeticError:
        return False
    before, last = sizes[-2:]
    if isinstance(last, Fraction) or isinstance(before, Fraction):
        return last == 0
    return bool(last == 0 or (last <= before * _SHARED and last < mpmath.mpf(10) ** -100))


def real_value(node: Node) -> Value | None:
    """The value of a node without unknowns, if it is real."""
    if symbols(node):
        return None
    try:
        value = Evaluator(DIGITS[0])(node)
    except ArithmeticError:
        return None
    if isinstance(value, Fraction):
        return value
    return value.real if _is_real(value) else None


def is_infinite(node: Node) -> int:
    """1 for infinity, -1 for minus infinity, else 0."""
    if node == Const("inf"):
        return 1
    return -1 if node == Product((Num(Fraction(-1)), Const("inf"))) else 0


def _same_logarithm(a: Node, b: Node) -> bool:
    """Numbers too large to be computed: are their logarithms the same?"""
    try:
        left, right = _log_size(a), _log_size(b)
    except ArithmeticError:
        return False
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    left, right = (_as_mpf(left, right), _as_mpf(right, left))
    return bool(abs(left - right) <= max(abs(left), abs(right)) * _SHARED**2)


def _log_size(node: Node) -> Value:
    """The logarithm of a positive product, power or factorial."""
    evaluator = Evaluator(DIGITS[1])
    match node:
        case Power(base, exponent):
            factor, logarithm = evaluator(exponent), _log_size(base)
            return _as_mpf(factor, logarithm) * logarithm if not isinstance(logarithm, Fraction) else factor * logarithm
        case Product(factors):
            return sum((_log_size(factor) for factor in factors), Fraction(0))
    value = evaluator(node)
    if not _is_real(value) or value <= 0:
        raise Undefined("no logarithm")
    return Evaluator(DIGITS[1])(Call("ln", (node,)))
