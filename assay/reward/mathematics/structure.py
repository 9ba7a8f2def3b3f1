"""Are two values the same: numbers and functions by value, whatever is built of them part by part?"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from assay.reward.mathematics.equations import same_relation
from assay.reward.mathematics.numbers import Domain, real_value, same_value
from assay.reward.mathematics.tree import Builder, Chain, Combined, Group, Matrix, Node, Product, Reals, walk
from assay.reward.mathematics.vectors import as_vector

MOST_MEMBERS = 40
"""Items without an order that are compared each with each; longer lists must be spelled alike."""


def same_node(a: Node, b: Node, domain: Domain) -> bool:
    """Are two values the same: numbers and functions by value, brackets and matrices entry by entry?"""
    a, b = _scaled(a), _scaled(b)
    a, b = as_vector(a, b), as_vector(b, a)
    if a == b:
        return True
    match a, b:
        case Matrix(rows), Matrix(others):
            return [len(r) for r in rows] == [len(r) for r in others] and all(
                same_node(x, y, domain) for r, s in zip(rows, others, strict=True) for x, y in zip(r, s, strict=True)
            )
        case (Matrix(), Group()) | (Group(), Matrix()):
            matrix, group = (a, b) if isinstance(a, Matrix) else (b, a)
            return _same_vector(matrix, group, domain)
        case Group("mod", (one, modulus), _), Group("mod", (other, divisor), _):
            return modulus == divisor and _congruent(one, other, modulus)
        case (_, Group("mod", (other, _), _)) | (Group("mod", (other, _), _), _):
            return same_node(a if isinstance(b, Group) and b.opening == "mod" else b, other, domain)
        case Group(r"\{", items, _), Group(r"\{", others, _):
            return _same_members(items, others, domain)
        case Group(), Group():
            alike = (a.opening, a.closing) == (b.opening, b.closing)
            return (alike and len(a.items) == len(b.items)) and all(
                same_node(x, y, domain) for x, y in zip(a.items, b.items, strict=True)
            )
        case Chain(), Chain():
            return _same_chain(a, b, domain)
    if any(isinstance(n, (Group, Matrix, Chain, Builder, Combined, Reals)) for side in (a, b) for n in walk(side)):
        return False
    return same_value(a, b, domain)


def _congruent(a: Node, b: Node, modulus: Node) -> bool:
    one, other, divisor = real_value(a), real_value(b), real_value(modulus)
    if not (isinstance(one, Fraction) and isinstance(other, Fraction) and isinstance(divisor, Fraction)):
        return False
    return divisor != 0 and ((one - other) / divisor).denominator == 1


def _scaled(node: Node) -> Node:
    """A matrix with a number before it, multiplied out; any other node as it is."""
    if not isinstance(node, Product) or sum(isinstance(f, Matrix) for f in node.factors) != 1:
        return node
    matrix = next(f for f in node.factors if isinstance(f, Matrix))
    rest = tuple(f for f in node.factors if f is not matrix)
    return Matrix(tuple(tuple(Product((*rest, entry)) for entry in row) for row in matrix.rows))


def _same_vector(matrix: Node, group: Node, domain: Domain) -> bool:
    if not isinstance(matrix, Matrix) or not isinstance(group, Group) or group.opening != "(" or group.closing != ")":
        return False
    column = all(len(row) == 1 for row in matrix.rows)
    entries = [row[0] for row in matrix.rows] if column else list(matrix.rows[0]) if len(matrix.rows) == 1 else []
    return len(entries) == len(group.items) and all(
        same_node(x, y, domain) for x, y in zip(entries, group.items, strict=True)
    )


def _same_members(items: Sequence[Node], others: Sequence[Node], domain: Domain) -> bool:
    if max(len(items), len(others)) > MOST_MEMBERS:
        return set(items) == set(others)
    return all(
        any(same_node(x, y, domain) for y in right) for left, right in ((items, others), (others, items)) for x in left
    )


def _same_chain(a: Chain, b: Chain, domain: Domain) -> bool:
    if len(a.relations) == len(b.relations) == 1:
        return same_relation(a, b, domain)
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    for parts, relations in (
        (b.parts, b.relations),
        (b.parts[::-1], tuple(turned.get(relation, relation) for relation in b.relations[::-1])),
    ):
        if a.relations == relations and all(same_node(x, y, domain) for x, y in zip(a.parts, parts, strict=True)):
            return True
    return False
