"""Sets of real numbers: intervals and inequalities of one unknown, brought to one form and compared.

``x >= 2`` is ``[2, oo)``; ``x < 1 or x > 3`` is a union; ``x != 3`` all numbers but one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import mpmath

from assay.reward.mathematics.numbers import DIGITS, is_infinite, real_value, same_value
from assay.reward.mathematics.tree import (
    Builder,
    Call,
    Chain,
    Combined,
    Const,
    Group,
    Node,
    Reals,
    Sym,
    negated,
    symbols,
)
from assay.reward.mathematics.value import real

INFINITY = Const("inf")
MOST_SPANS = 40
"""Pieces of a set that is compared."""
_CONTEXT: Any = mpmath.MPContext()
_CONTEXT.dps = DIGITS[0]


class NotASpan(Exception):
    """The node is no set of real numbers whose ends are known."""


@dataclass(frozen=True)
class Span:
    """The numbers between two ends; an end counts itself when it is closed."""

    low: Node
    low_closed: bool
    high: Node
    high_closed: bool

    @property
    def empty(self) -> bool:
        """Is nothing in it?"""
        order = _order(self.low, self.high)
        return order > 0 or (order == 0 and not (self.low_closed and self.high_closed))


ALL = Span(negated(INFINITY), False, INFINITY, False)


def _number(node: Node) -> Any:
    if infinite := is_infinite(node):
        return float("inf") * infinite
    value = real_value(node)
    if value is None:
        raise NotASpan
    return real(value, _CONTEXT)


def _order(a: Node, b: Node) -> int:
    if same_value(a, b):
        return 0
    return -1 if _number(a) < _number(b) else 1


def _span(low: Node, low_closed: bool, high: Node, high_closed: bool) -> Span:
    for end, closed in ((low, low_closed), (high, high_closed)):
        _number(end)
        if closed and is_infinite(end):
            raise NotASpan
    return Span(low, low_closed, high, high_closed)


def spans(node: Node) -> list[Span]:
    """The node as a set of numbers, in its one form; NotASpan when it is none (a number, say, or a triple).

    >>> from assay.reward.mathematics.grammar import parse
    >>> spans(parse("x>=2")) == spans(parse("[2, oo)")), len(spans(parse(r"x != 3")))
    (True, 2)
    """
    return _joined(_spans(node))


def _spans(node: Node) -> list[Span]:
    match node:
        case Reals("R"):
            return [ALL]
        case Reals("O"):
            return []
        case Group(r"\{", items, _):
            return [_span(item, True, item, True) for item in items]
        case Group(opening, (low, high), closing) if opening in "([" and closing in ")]":
            span = _span(low, opening == "[", high, closing == "]")
            if span.empty:
                raise NotASpan  # (2, 1) is a point
            return [span]
        case Combined(how, parts):
            return combined([_spans(part) for part in parts], how)
        case Builder(_, condition):
            return _spans(condition)
        case Chain(parts, ("in",)) if isinstance(parts[0], Sym):
            return _spans(parts[1])
        case Chain(parts, relations):
            found = [ALL]
            for index, relation in enumerate(relations):
                found = _both(found, _half(parts[index], relation, parts[index + 1]))
            return found
    raise NotASpan


def _half(left: Node, relation: str, right: Node) -> list[Span]:
    if isinstance(right, Sym) and not symbols(left):
        left, right = right, left
        relation = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(relation, relation)
    if isinstance(left, Call) and left.name == "abs" and isinstance(left.args[0], Sym) and not symbols(right):
        if relation in ("<", "<="):
            return _both(_half(left.args[0], relation, right), _half(negated(right), relation, left.args[0]))
        if relation in (">", ">="):
            return [*_half(left.args[0], relation, right), *_half(negated(right), relation, left.args[0])]
    if not isinstance(left, Sym) or symbols(right):
        raise NotASpan
    below = _span(negated(INFINITY), False, right, relation == "<=")
    above = _span(right, relation == ">=", INFINITY, False)
    match relation:
        case "<" | "<=":
            return [below]
        case ">" | ">=":
            return [above]
        case "!=":
            return [below, above]
        case "=":
            return [_span(right, True, right, True)]
    raise NotASpan


def combined(sets: list[list[Span]], how: str) -> list[Span]:
    """Sets joined by ``or``, ``and`` or ``minus``."""
    total = sets[0]
    for other in sets[1:]:
        match how:
            case "or":
                total = [*total, *other]
            case "and":
                total = _both(total, other)
            case _:
                total = _both(total, _outside(other))
    return total


def _both(a: list[Span], b: list[Span]) -> list[Span]:
    if len(a) > MOST_SPANS or len(b) > MOST_SPANS:
        raise NotASpan
    found = []
    for one in a:
        for two in b:
            low = max_end(one, two)
            high = min_end(one, two)
            span = Span(*low, *high)
            if not span.empty:
                found.append(span)
    return found


def max_end(a: Span, b: Span) -> tuple[Node, bool]:
    """The higher of two lower ends; of two equal ones the open one."""
    order = _order(a.low, b.low)
    if order == 0:
        return a.low, a.low_closed and b.low_closed
    return (a.low, a.low_closed) if order > 0 else (b.low, b.low_closed)


def min_end(a: Span, b: Span) -> tuple[Node, bool]:
    """The lower of two upper ends; of two equal ones the open one."""
    order = _order(a.high, b.high)
    if order == 0:
        return a.high, a.high_closed and b.high_closed
    return (a.high, a.high_closed) if order < 0 else (b.high, b.high_closed)


def _outside(inner: list[Span]) -> list[Span]:
    left = [ALL]
    for span in inner:
        pieces = (
            Span(ALL.low, False, span.low, not span.low_closed),
            Span(span.high, not span.high_closed, ALL.high, False),
        )
        left = _both(left, [p for p in pieces if not p.empty])
    return left


def _joined(found: list[Span]) -> list[Span]:
    """Sorted, without empty spans, those that touch made one."""
    kept = sorted((span for span in found if not span.empty), key=lambda s: (_number(s.low), not s.low_closed))
    joined: list[Span] = []
    for span in kept:
        last = joined[-1] if joined else None
        if last is None or _apart(last, span):
            joined.append(span)
        else:
            high = max((_order(span.high, last.high), span.high_closed), (0, last.high_closed))
            end = span.high if high[0] > 0 else last.high
            joined[-1] = replace(last, high=end, high_closed=high[1])
    return joined


def _apart(a: Span, b: Span) -> bool:
    """Is there a number between the end of one and the beginning of the next?"""
    order = _order(b.low, a.high)
    return order > 0 or (order == 0 and not (b.low_closed or a.high_closed))


def same_spans(a: list[Span], b: list[Span]) -> bool:
    """Are two sets in their one form the same set?"""
    return len(a) == len(b) and all(
        (s.low_closed, s.high_closed) == (t.low_closed, t.high_closed)
        and _order(s.low, t.low) == 0
        and _order(s.high, t.high) == 0
        for s, t in zip(a, b, strict=True)
    )
