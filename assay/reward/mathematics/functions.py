"""Named functions in the grammar: roots, logarithms with a base, inverses, and where an argument ends."""

from __future__ import annotations

from fractions import Fraction

from assay.reward.mathematics.reader import Reader
from assay.reward.mathematics.tokens import FUNCTIONS
from assay.reward.mathematics.tree import (
    HALF,
    MINUS_ONE,
    Call,
    Const,
    Group,
    Node,
    Num,
    Power,
    negated,
    product,
    quotient,
)

_INVERSE = {"sin", "cos", "tan", "cot"}
_PLAIN_INVERSE = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}


def applied(parser: Reader, name: str) -> Node:
    """A function whose name has been read, with its exponent and what it is applied to: ``\\sin^2 2x``, ``log_2 8``."""
    if name == "sqrt":
        return _root(parser)
    base = _log_base(parser) if name == "log" else None
    name = _PLAIN_INVERSE.get(name, name)
    exponent = None
    if parser.is_at("^"):
        parser.take()
        exponent = parser.exponent()
        if exponent == MINUS_ONE and name in _INVERSE:
            name, exponent = f"arc{name}", None
    if name in ("min", "max", "gcd", "lcm"):
        opening = "(" if parser.is_at("(") else r"\{"
        parser.expect(opening)
        group = parser.bracketed(opening)
        args = group.items if isinstance(group, Group) else (group,)
    else:
        args = (_argument(parser),)
    node = _call(name, args, base)
    return Power(node, exponent) if exponent is not None else node


def _root(parser: Reader) -> Node:
    degree = None
    if parser.is_at("["):
        parser.take()
        degree = parser.relation()
        parser.expect("]")
    inner = parser.atom()
    return Power(inner, HALF if degree is None else quotient(Num(Fraction(1)), degree))


def _log_base(parser: Reader) -> Node | None:
    if not parser.is_at("_"):
        return None
    parser.take()
    return parser.atom()


def _argument(parser: Reader) -> Node:
    """What a function is applied to: brackets, or factors up to the next sign or function."""
    if parser.is_at("(", "{", "[") or parser.is_at("|"):
        return parser.atom()
    if parser.is_at("-"):
        parser.take()
        return negated(_argument(parser))
    factors = [parser.factor()]
    while parser.factor_follows() and parser.here.text not in FUNCTIONS and not parser.is_at("(", "|"):
        factors.append(parser.factor())
    return product(factors)


def _call(name: str, args: tuple[Node, ...], base: Node | None) -> Node:
    if name == "exp":
        return Power(Const("e"), args[0])
    if name == "lg" or base is not None:
        return Call("logbase", (args[0], base or Num(Fraction(10))))
    return Call(name, args)
