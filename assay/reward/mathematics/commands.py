"""LaTeX commands in the grammar that stand for operands, each by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from assay.reward.mathematics.operators import BIG, big_operator
from assay.reward.mathematics.reader import Reader
from assay.reward.mathematics.tokens import Unreadable
from assay.reward.mathematics.tree import Call, Const, Group, Matrix, Node, Reals, Sym, quotient

_MATRICES = ("matrix", "pmatrix", "bmatrix", "Bmatrix", "array", "smallmatrix")


def command(parser: Reader, name: str) -> Node:
    """The node of a command that has been read, with its arguments. Raises Unreadable for an unknown one."""
    if name.startswith("begin "):
        return _matrix(parser, name.removeprefix("begin "))
    if name in BIG:
        return big_operator(parser, name)
    if name in _ACCENTS:
        return _accented(parser, _ACCENTS[name])
    if name not in _COMMANDS:
        raise Unreadable(rf"the command \{name}")
    return _COMMANDS[name](parser)


def _angled(parser: Reader) -> Node:
    """A vector in angle brackets."""
    items = [parser.relation()]
    while parser.is_at(","):
        parser.take()
        items.append(parser.relation())
    if not parser.is_at("rangle", kind="command"):
        raise Unreadable("an angle bracket that is never closed")
    parser.take()
    return Group("(", tuple(items), ")")


def _accented(parser: Reader, accent: str) -> Node:
    inner = parser.braced()
    return Sym(f"{accent} {inner.name}") if isinstance(inner, (Sym, Const)) else Call(accent, (inner,))


def _letter(parser: Reader) -> str:
    if braced := parser.is_at("{"):
        parser.take()
    name = parser.take().text
    if braced:
        parser.expect("}")
    if name not in ("R", "Z", "N", "Q", "C"):
        raise Unreadable(rf"\mathbb{{{name}}}")
    return name


def _matrix(parser: Reader, name: str) -> Node:
    if name not in _MATRICES:
        raise Unreadable(f"the environment {name!r}")
    if name == "array" and parser.is_at("{"):
        while not parser.is_at("}") and parser.here.kind != "end":
            parser.take()
        parser.expect("}")
    rows: list[tuple[Node, ...]] = []
    row: list[Node] = []
    while True:
        row.append(parser.relation())
        if parser.is_at("&", r"\&"):
            parser.take()
            continue
        rows.append(tuple(row))
        row = []
        if parser.is_at("\\\\"):
            parser.take()
        if parser.is_at(f"end {name}", kind="command"):
            break
        if parser.here.kind == "end":
            raise Unreadable("a matrix that is never closed")
    parser.take()
    if len({len(row) for row in rows}) != 1:
        raise Unreadable("rows of different lengths")
    return Matrix(tuple(rows))


_COMMANDS: Mapping[str, Callable[[Reader], Node]] = {
    "frac": lambda parser: quotient(parser.braced(), parser.braced()),
    "binom": lambda parser: Call("binom", (parser.braced(), parser.braced())),
    "mathbb": lambda parser: Reals(_letter(parser)),
    "emptyset": lambda parser: Reals("O"),
    "lfloor": lambda parser: parser.enclosed("rfloor", "floor"),
    "lceil": lambda parser: parser.enclosed("rceil", "ceil"),
    "langle": _angled,
    "ldots": lambda parser: Sym("..."),
}
_ACCENTS = {name: name for name in ("vec", "hat", "overrightarrow", "bar", "tilde")} | {"overline": "bar"}
OPERANDS = ("frac", "binom", "mathbb", "lfloor", "lceil", "vec", "hat", "overrightarrow", "overline", "bar", *BIG)
"""Commands that may follow a factor without a sign between them."""
