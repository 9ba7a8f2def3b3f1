r"""The big operators of the grammar: ``\sum``, ``\prod``, ``\int``, ``\lim`` with their bounds.

A finite sum or product is evaluated; integrals and limits are not, and equal only their own spelling.
"""

from __future__ import annotations

from assay.reward.mathematics.reader import Reader
from assay.reward.mathematics.tokens import Unreadable
from assay.reward.mathematics.tree import Call, Chain, Node, Sym

BIG = ("sum", "prod", "int", "iint", "oint", "lim")
NOTHING = Sym("nothing")
"""Stands where an operator has no bound."""


def big_operator(parser: Reader, name: str) -> Node:
    """The node of an operator whose command has been read: ``Call(name, (index, low, high, body))``."""
    bounds: dict[str, Node] = {"_": NOTHING, "^": NOTHING}
    while parser.is_at("_", "^"):
        mark = parser.take().text
        bounds[mark] = parser.nested(parser.atom)
    body = parser.nested(parser.term)
    low, index = bounds["_"], NOTHING
    if name in ("sum", "prod"):
        if not isinstance(low, Chain) or low.relations != ("=",) or not isinstance(low.parts[0], Sym):
            if low is not NOTHING and bounds["^"] is not NOTHING:
                raise Unreadable("a sum without an index")
        else:
            index, low = low.parts
    return Call(name, (index, low, bounds["^"], body))
