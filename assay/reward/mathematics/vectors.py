r"""Vectors written by unit vectors: ``3\mathbf{i} + 4\mathbf{j}`` is ``(3, 4)``.

The letters count as unit vectors when they are marked (bold, a hat, an arrow), and where the other answer is a vector
also when they are plain and a ``j`` or ``k`` is among them; ``3 + 4i`` stays a complex number.
"""

from __future__ import annotations

from fractions import Fraction

from assay.reward.mathematics.tree import Const, Group, Matrix, Node, Num, Product, Sum, Sym, walk

_UNITS = {Const("i"): 0, Sym("j"): 1, Sym("k"): 2} | {
    Sym(f"{mark} {letter}"): place
    for mark in ("hat", "vec", "bar", "overrightarrow")
    for place, letter in enumerate("ijk")
}
_ZERO = Num(Fraction(0))


def as_vector(node: Node, other: Node) -> Node:
    r"""The node as a tuple of its components, where it is a vector and ``other`` is one too; else the node.

    >>> from assay.reward.mathematics.equality import same_answer
    >>> same_answer("(3,4)", r"3\hat{i}+4\hat{j}"), same_answer("(3,4)", "3+4i")
    (True, False)
    """
    if (
        isinstance(node, (Group, Matrix, Num))
        or isinstance(other, (Num, Const))
        or not any(part in _UNITS and part != Const("i") for part in walk(node))
    ):
        return node
    size = _size(other)
    if not size:
        return node
    found = _components(node)
    if found is None or any(found[size:]):
        return node
    return Group("(", tuple(_total(terms) for terms in found[:size]), ")")


def _size(node: Node) -> int:
    """How many components has the other vector? 0 when it is none."""
    match node:
        case Group("(", items, ")") if len(items) in (2, 3):
            return len(items)
        case Matrix(rows) if len(rows) in (2, 3) and len(rows[0]) == 1:
            return len(rows)
        case Matrix((row,)) if len(row) in (2, 3):
            return len(row)
        case Group() | Matrix():
            return 0
    return 3 if any(part in _UNITS and part != Const("i") for part in walk(node)) else 0


def _components(node: Node) -> tuple[list[Node], list[Node], list[Node]] | None:
    """The terms of each component; ``None`` where a term has no unit vector or two of them."""
    found: tuple[list[Node], list[Node], list[Node]] = ([], [], [])
    for term in node.terms if isinstance(node, Sum) else (node,):
        factors = term.factors if isinstance(term, Product) else (term,)
        marked = [factor for factor in factors if any(part in _UNITS for part in walk(factor))]
        if len(marked) != 1:
            return None
        rest = tuple(factor for factor in factors if factor is not marked[0])
        if marked[0] in _UNITS:
            found[_UNITS[marked[0]]].append(Product((*rest, Num(Fraction(1)))))
            continue
        inner = _components(marked[0]) if isinstance(marked[0], (Sum, Product)) else None
        if inner is None:
            return None
        for mine, others in zip(found, inner, strict=True):
            mine.extend(Product((*rest, other)) for other in others)
    return found


def _total(terms: list[Node]) -> Node:
    return Sum(tuple(terms)) if terms else _ZERO
