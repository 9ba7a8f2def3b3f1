"""The nodes of an expression: frozen, without behaviour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Num:
    """A rational number."""

    value: Fraction


@dataclass(frozen=True)
class Const:
    """``pi``, ``e``, ``i`` or ``inf``."""

    name: str


@dataclass(frozen=True)
class Sym:
    """An unknown, with its subscript: ``x``, ``a_1``."""

    name: str


@dataclass(frozen=True)
class Sum:
    """Terms added up."""

    terms: tuple[Node, ...]


@dataclass(frozen=True)
class Product:
    """Factors multiplied."""

    factors: tuple[Node, ...]


@dataclass(frozen=True)
class Power:
    """``base ** exponent``; a quotient is a product with a power of -1."""

    base: Node
    exponent: Node


@dataclass(frozen=True)
class Call:
    """A named function of arguments."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True)
class Signed:
    """Plus or minus its operand; ``sign`` -1 for minus-or-plus. All of one expression take the same side."""

    sign: int
    operand: Node


@dataclass(frozen=True)
class Group:
    """Items in brackets: an interval, a tuple, a set."""

    opening: str
    items: tuple[Node, ...]
    closing: str


@dataclass(frozen=True)
class Builder:
    """The set of all unknowns for which a condition holds."""

    unknown: Node
    condition: Node


@dataclass(frozen=True)
class Combined:
    """Sets joined by ``or`` (union), ``and`` (intersection) or ``minus``."""

    how: str
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of entries, all of one length."""

    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True)
class Chain:
    """Relations in a row: ``a < x <= b`` has three parts and two relations out of ``= < > <= >= != in``."""

    parts: tuple[Node, ...]
    relations: tuple[str, ...]


@dataclass(frozen=True)
class Reals:
    """A set with a letter: ``R`` the real numbers, ``Z`` the integers, ``O`` the empty set."""

    name: str


Node = Num | Const | Sym | Sum | Product | Power | Call | Signed | Group | Builder | Combined | Matrix | Chain | Reals

ONE, MINUS_ONE, HALF = Num(Fraction(1)), Num(Fraction(-1)), Num(Fraction(1, 2))


def product(factors: Sequence[Node]) -> Node:
    """The product of factors; of one, itself."""
    return factors[0] if len(factors) == 1 else Product(tuple(factors))


def negated(node: Node) -> Node:
    """Minus the node; a number keeps being one."""
    return Num(-node.value) if isinstance(node, Num) else Product((MINUS_ONE, node))


def quotient(top: Node, bottom: Node) -> Node:
    """``top / bottom``; of two numbers the number, unless the bottom is zero."""
    if isinstance(top, Num) and isinstance(bottom, Num) and bottom.value:
        return Num(top.value / bottom.value)
    return Product((top, Power(bottom, MINUS_ONE)))


def children(node: Node) -> Iterator[Node]:
    """The nodes directly below."""
    for field in fields(node):
        yield from _nodes(getattr(node, field.name))


def _nodes(value: object) -> Iterator[Node]:
    if isinstance(value, tuple):
        for item in value:
            yield from _nodes(item)
    elif isinstance(value, Node):
        yield value


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def symbols(node: Node) -> frozenset[str]:
    """Names of the unknowns.

    >>> sorted(symbols(Sum((Sym("x"), Power(Sym("y"), HALF)))))
    ['x', 'y']
    """
    if isinstance(node, Sym):
        return frozenset({node.name})
    if isinstance(node, Call) and node.name in ("sum", "prod"):  # the index is no unknown of the whole
        index, *rest = node.args
        return frozenset().union(*map(symbols, rest)) - symbols(index) - {"nothing"}
    return frozenset().union(*map(symbols, children(node)))


def replaced(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """The node with every node for which ``change`` gives another one replaced by it, from the top."""

    def within(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(within(item) for item in value)
        if not isinstance(value, Node):
            return value
        other = change(value)
        if other is not None:
            return other
        return type(value)(*(within(getattr(value, field.name)) for field in fields(value)))

    return within(node)


def renamed(node: Node, name: str, other: str) -> Node:
    """The node with one unknown called otherwise."""
    return replaced(node, lambda n: Sym(other) if n == Sym(name) else None)


def resolved(node: Node, side: int) -> Node:
    """The node with every plus-or-minus decided: ``side`` 1 for the upper sign, -1 for the lower."""

    def decided(value: Node) -> Node | None:
        if not isinstance(value, Signed):
            return None
        operand = resolved(value.operand, side)
        return operand if value.sign * side > 0 else negated(operand)

    return replaced(node, decided)
