"""Do two equations, or two inequalities, describe the same points?

Equations do when one is a constant times the other, or when, along several lines, each has exactly the roots of the
other (``y = 1/x`` and ``xy = 1``). An equation in one unknown must be a multiple: ``x - 5 = 0`` has not been solved.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import mpmath

from assay.reward.mathematics.numbers import Domain, points
from assay.reward.mathematics.tree import Chain, Node, Sum, negated, symbols, walk
from assay.reward.mathematics.value import Evaluator

_STARTS = (-3.1, -0.9, 0.45, 1.7, 5.3)
_LINES = 3
_MOST_NODES = 400
_SOLVED, _STEPS = mpmath.mpf(10) ** -20, 40
_EXACT: Any = mpmath.MPContext()
_EXACT.dps = 60


def same_relation(a: Chain, b: Chain, domain: Domain) -> bool:
    """Are two relations of the same kind the same set of points? Only chains of one relation can be."""
    if len(a.relations) != 1 or len(b.relations) != 1:
        return False
    (left, how), (right, other) = _oriented(a), _oriented(b)
    if how != other or symbols(left) != symbols(right) or not symbols(left):
        return False
    if sum(1 for n in (left, right) for _ in walk(n)) > _MOST_NODES:
        return False
    factor = _ratio(left, right, domain)
    if factor is not None:
        return how in ("=", "!=") or factor > 0
    if how != "=" or len(symbols(left)) < 2:
        return False
    return any(_same_roots(left, right, unknown) for unknown in sorted(symbols(left)))


def _oriented(chain: Chain) -> tuple[Node, str]:
    left, right = chain.parts
    relation = chain.relations[0]
    if relation in (">", ">="):
        left, right, relation = right, left, {">": "<", ">=": "<="}[relation]
    return Sum((left, negated(right))), relation


def _ratio(a: Node, b: Node, domain: Domain) -> Any | None:
    """The constant that ``a / b`` is, if it is one."""
    found: list[Any] = []
    for point in points(tuple(sorted(symbols(a))), domain.positive, domain.integer):
        try:
            left, right = Evaluator(60, point)(a), Evaluator(60, point)(b)
        except ArithmeticError:
            continue
        if left == 0 or right == 0 or mpmath.im(_number(left)) or mpmath.im(_number(right)):
            if (left == 0) != (right == 0):
                return None
            continue
        exact = isinstance(left, Fraction) and isinstance(right, Fraction)
        found.append(left / right if exact else _number(left) / _number(right))
    if len(found) < 3:
        return None
    first = _number(found[0])
    if all(isinstance(ratio, Fraction) for ratio in found):
        return found[0] if len(set(found)) == 1 else None
    return first if all(abs(_number(ratio) - first) <= abs(first) * mpmath.mpf(10) ** -40 for ratio in found) else None


def _number(value: Any) -> Any:
    return _EXACT.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else _EXACT.mpmathify(value)


def _same_roots(a: Node, b: Node, unknown: str) -> bool:
    others = tuple(sorted(symbols(a) - {unknown}))
    seen = {"a": 0, "b": 0}
    for _, point in zip(range(_LINES), points(others, False, False), strict=False):
        for name, node, other in (("a", a, b), ("b", b, a)):
            for root in _roots(node, unknown, point):
                if not _is_root(other, unknown, point, root):
                    return False
                seen[name] += 1
    return min(seen.values()) >= 2


def _roots(node: Node, unknown: str, point: Mapping[str, Fraction]) -> list[Fraction]:
    found: list[Fraction] = []
    for start in _STARTS:
        root = _secant(node, unknown, point, Fraction(start).limit_denominator(1000))
        if root is not None and all(abs(root - other) > Fraction(1, 10**9) for other in found):
            found.append(root)
    return found


def _secant(node: Node, unknown: str, point: Mapping[str, Fraction], start: Fraction) -> Fraction | None:
    """A real root found from ``start`` by the secant method, to 40 digits."""
    try:
        before, here = start, start + Fraction(1, 3)
        value_before, value = (_at(node, unknown, point, x) for x in (before, here))
        for _ in range(_STEPS):
            if value == 0 or abs(value) < _SOLVED * mpmath.mpf(10) ** -15:
                return here
            if value == value_before:
                return None
            step = value * _number(here - before) / (value - value_before)
            before, value_before = here, value
            here -= _rational(step)
            if abs(here) > 10**9:
                return None
            value = _at(node, unknown, point, here)
    except ArithmeticError:
        return None
    return None


def _rational(value: Any) -> Fraction:
    return Fraction(int(mpmath.nint(value * 2**160)), 2**160)


def _at(node: Node, unknown: str, point: Mapping[str, Fraction], x: Fraction) -> Any:
    value = _number(Evaluator(60, {**point, unknown: x})(node))
    if mpmath.im(value):
        raise ArithmeticError("not real")
    return +value.real if hasattr(value, "real") else value


def _is_root(node: Node, unknown: str, point: Mapping[str, Fraction], root: Fraction) -> bool:
    try:
        here = abs(_at(node, unknown, point, root))
        beside = abs(_at(node, unknown, point, root + Fraction(1, 7)))
    except ArithmeticError:
        return False
    return bool(here < _SOLVED * max(beside, mpmath.mpf(10) ** -10))
