r"""An answer's text -> what it says: one item or several, each with its name, value, unit and approximations.

``x = \frac{10}{3} \approx 3.33\text{ cm}`` is one item: the name ``x``, the value 10/3, the unit cm, about 3.33. The
right-hand side of an equation is a value only where the left-hand side is a name; ``2x+1=5`` is an equation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from assay.reward.mathematics.families import split_family
from assay.reward.mathematics.grammar import parse
from assay.reward.mathematics.notation import depths, plain, split
from assay.reward.mathematics.numbers import same_value
from assay.reward.mathematics.tokens import LONGEST, Dialect, Unreadable, dialects
from assay.reward.mathematics.tree import Chain, Group, Node, Num, quotient, resolved, symbols, walk
from assay.reward.mathematics.tree import Signed as _Signed
from assay.reward.mathematics.units import Unit, parse_unit, split_unit
from assay.reward.mathematics.words import number_word, said

MOST_ITEMS = 200
"""Items of an answer that are read."""
_OR_AND = re.compile(r"\\text\s*\{\s*[,;]?\s*(?:or|and)\s*[,;]?\s*\}|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])|[,;]|\\\\")
_EQUALS = re.compile(r"(?<![<>!=\\])=(?!=)|\\equiv(?![A-Za-z])")
_ABOUT = re.compile(r"\\approx(?![A-Za-z])|\\(?:dot|)eq(?![A-Za-z])")
_LETTER = r"(?:[A-Za-z]|\\(?!(?:pi|frac|sqrt|sin|cos|tan|ln|log|infty|text)\b)[A-Za-z]+)(?:_\{?[\w\\ ]+\}?)?'*"
_NAME = re.compile(
    rf"(?:{_LETTER}(?:\s*\([^()=]*\))?|[A-Z]{{1,4}}|(?:m\s*)?\\angle\s*[\w{{}}]+|\|[A-Z]{{1,3}}\||\\overline\{{[A-Z]+\}}"
    r"|\\triangle\s*[A-Z]+|\\text\s*\{[^{}\d]*\}(?:\s*_\{?\w+\}?)?|(?:[A-Za-z][a-z]{3,}|sum)(?: [a-z]+)*"
    r"|\([A-Za-z](?:\s*,\s*[A-Za-z])+\)|\\frac\s*\{d[^{}]*\}\s*\{d[^{}]*\}|d[a-z]/d[a-z]"
    r"|\\(?:int|lim|sum|prod|iint|oint)(?![A-Za-z])[^=]*"
    rf"|\\(?:vec|hat|bar|overline|mathbf)\s*\{{?{_LETTER}\}}?|\[[A-Z]+\])"
)
_SAID = re.compile(
    r"^\\text\s*\{[^{}]*\b(?:is|are|equals)\s*:?\s*\}\s*|^(?:\\text\s*\{)?\s*(?:so|thus|hence)?,?\s*(?:the\s+)?(?:final\s+|correct\s+)?(?:answers?|result|value|solutions?)"
    r"\s*(?:(?:is|are)\b\s*:?|[:=])\s*\}?\s*",
    re.IGNORECASE,
)
_BASED = re.compile(
    r"\(?(?P<digits>[0-9A-F]+(?:\.[0-9A-F]+)?)\)?\s*_\s*\{?\s*(?:\\text\s*\{)?\s*(?P<base>\w+)\s*\}?\s*\}?"
)
_UNSURE = re.compile(
    r"\b(?:or|maybe|perhaps|possibly|unless|anything)\b"
    r"|\\text\s*\{(?![^{}]*(?:approx|about|roughly|around|\bof\b))[^{}]*(?<![\w^])\d",
    re.IGNORECASE,
)
"""Words and numbers behind a value that are no unit: "42 (or 43)"."""
_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
"""White space that says nothing: not the one between two digits."""
_RATIO = re.compile(r"(\d+(?:\.\d+)?)\s*:\s*(\d+(?:\.\d+)?)")
_CLOCK = re.compile(r"(?:[01]?\d|2[0-4])\s*:\s*[0-5]\d")
_MODULUS = re.compile(
    r"\(?\s*\\(?:p?mod|bmod)(?![A-Za-z])\s*\{?\s*(?P<modulus>\d+)\s*\}?\s*\)?$|\(\s*mod\s+(?P<plain>\d+)\s*\)$"
)
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_WORDS = re.compile(r"[\w\s,.'\u2019\-()/:&%!?°]*[A-Za-z][\w\s,.'\u2019\-()/:&%!?°]*")
_FRACTION = re.compile(r"-?(?:\\frac\s*\{\s*-?(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d+)\s*/\s*(\d+))")


@dataclass(frozen=True)
class Item:
    """One thing that an answer says."""

    text: str
    """In plain spelling, without blanks: equal texts say the same."""
    name: str = ""
    """The left-hand side that names the value."""
    values: tuple[Node, ...] = ()
    """Spellings of the value that the answer says are equal; empty for words and for what cannot be read."""
    unit: Unit | None = None
    words: str = ""
    """The words, where the item is no mathematics."""
    base: int = 0
    """The base of a number written with one, in which ``text`` begins with its digits."""
    about: tuple[Node, ...] = ()
    """Values that the answer calls approximate."""
    unreduced: bool = False
    """Is it a fraction that can be reduced?"""

    @property
    def readable(self) -> bool:
        """Is it anything that can be compared but by its text?"""
        return bool(self.values or self.words or self.base)


@dataclass(frozen=True)
class Answer:
    """Items, and the words between them: ``or``, ``and``, or a comma."""

    items: tuple[Item, ...]
    joined: str = ""
    in_braces: bool = False
    """Were the items written as a set?"""
    letter: str = ""
    """The unknown that stands for every integer."""


def read(text: str) -> list[Answer]:
    r"""The readings of an answer, the likeliest first; none for an empty text.

    >>> [item.name for item in read(r"x=-12 \text{ or } x=12")[0].items]
    ['x', 'x']
    >>> [len(answer.items) for answer in read("12,345")]
    [1, 2]
    """
    if len(text) > LONGEST:
        return [Answer((Item("".join(text.split())),))]
    text, letter = split_family(_SAID.sub("", plain(_unwrapped(plain(text)))))
    if not text:
        return []
    found = [replace(_read(text, dialect), letter=letter) for dialect in dialects(text)]
    return list(dict.fromkeys(found))


def _unwrapped(text: str) -> str:
    r"""Without one ``\text{...}`` or ``\boxed{...}`` around everything."""
    for _ in range(6):
        match = re.fullmatch(r"\\(?:text|boxed|fbox|mathrm)\s*\{(.*)\}", text, re.DOTALL)
        if match is None or not _balanced(match[1]):
            break
        text = match[1].strip()
    return text


def _balanced(text: str) -> bool:
    levels = [depth for _, depth in depths(text)]
    return not levels or (min(levels) >= 0 and levels[-1] == 0)


def _read(text: str, dialect: Dialect) -> Answer:
    if dialect.thousands != "nowhere":
        level = dict(depths(text))
        text = re.sub(
            r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?!\d)",
            lambda m: m.group() if level.get(m.start(), 0) else m.group().replace(",", ""),
            text,
        )
    pieces = [(how, piece.strip()) for how, piece in split(text, _OR_AND)]
    pieces = [(how, piece) for how, piece in pieces if piece]
    if len(pieces) > MOST_ITEMS:
        return Answer((Item("".join(text.split())),))
    words = {word for how, _ in pieces[1:] for word in re.findall("or|and", how)}
    joined = "or" if "or" in words else "and" if "and" in words else "," if len(pieces) > 1 else ""
    items = [item for _, piece in pieces for item in _items(piece, dialect)]
    if len(items) == 1 and len(items[0].values) == 1 and isinstance(items[0].values[0], Group):
        group = items[0].values[0]
        if group.opening == r"\{":
            members = [Item(repr(node), values=(one,)) for node in group.items for one in signs(node)]
            return Answer(tuple(members), ",", in_braces=True)
    return Answer(tuple(items), joined)


def _items(text: str, dialect: Dialect) -> list[Item]:
    """The item of a text; two where it says plus or minus."""
    item = _item(text, dialect)
    sides = [signs(node) for node in item.values]
    if not item.values or all(len(side) == 1 for side in sides):
        return [item]
    return [
        Item(f"{item.text}{side}", item.name, tuple(s[min(side, len(s) - 1)] for s in sides), item.unit)
        for side in range(2)
    ]


def signs(node: Node) -> list[Node]:
    """The node, or both of its readings where a plus-or-minus is in it."""
    if any(isinstance(n, _Signed) for n in walk(node)):
        return [resolved(node, 1), resolved(node, -1)]
    return [node]


def _item(text: str, dialect: Dialect) -> Item:
    shown = _SPACE.sub("", text)
    if based := _BASED.fullmatch(text):
        base = _BASES.get(based["base"].lower()) or (int(based["base"]) if based["base"].isdecimal() else 0)
        if 2 <= base <= 36 and any(c.isdigit() for c in based["digits"]):
            return Item(f"{based['digits'].lstrip('0') or '0'}_{base}", base=base)
    main, *about = [piece for _, piece in split(text, _ABOUT)]
    if not main.strip() and len(about) == 1:  # "about 42" says 42
        main, about = about[0].strip(), []
    name, parts = _named(main)
    if _CLOCK.fullmatch(parts[0]):
        return Item(shown, name, words=shown.lstrip("0"))
    if ratio := _RATIO.fullmatch(parts[0]):
        top, bottom = Fraction(ratio[1]), Fraction(ratio[2])
        return Item(shown, name, (quotient(Num(top), Num(bottom)),), words=shown)
    try:
        if modulus := _MODULUS.search(parts[-1]):
            body = parse(parts[-1][: modulus.start()], dialect)
            number = Num(Fraction(modulus["modulus"] or modulus["plain"]))
            return Item(shown, name, (Group("mod", (body, number), "mod"),))
        pieces = [split_unit(part) for part in parts]
        values = tuple(parse(body, dialect) for body, _ in pieces)
        near = tuple(parse(split_unit(part.strip())[0], dialect) for part in about)
    except Unreadable:
        return _words(parts[-1], shown, name)
    if not name and len(values) > 1 and not _is_worked(values):
        values = (Chain(values, ("=",) * (len(values) - 1)),)
    unit_text = next((unit for _, unit in reversed(pieces) if unit), "")
    if _UNSURE.search(unit_text):
        return Item(shown, name, words=said(parts[-1]))
    return Item(shown, name, values, parse_unit(unit_text), about=near, unreduced=_unreduced(pieces[-1][0]))


def _is_worked(values: Sequence[Node]) -> bool:
    """Is ``a = b = c`` a worked line, of numbers or of one function in several spellings, rather than an equation?"""
    return not any(symbols(value) for value in values) or all(same_value(values[0], other) for other in values[1:])


def _unreduced(text: str) -> bool:
    match = _FRACTION.fullmatch(text.strip())
    if match is None or not (bottom := int(match[2] or match[4])):
        return False
    return Fraction(int(match[1] or match[3]), bottom).denominator != bottom


def _words(text: str, shown: str, name: str) -> Item:
    inside = " ".join(re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).split())
    if _WORDS.fullmatch(inside):
        number = number_word(inside)
        return Item(shown, name, (Num(Fraction(number)),) if number is not None else (), words=said(inside))
    return Item(shown, name)


def _named(text: str) -> tuple[str, list[str]]:
    """The name on the left-hand side, and the values that follow; an equation is one value without a name."""
    member = re.match(rf"({_LETTER})\s*\\in(?![A-Za-z])\s*(?!\\mathbb)", text)
    if member:
        return "".join(member[1].split()), [text[member.end() :]]
    parts = [piece.strip() for _, piece in split(text, _EQUALS)]
    if len(parts) == 1 or not all(parts):
        return "", [text.strip().lstrip("=").strip()] if len(parts) == 2 and not parts[0] else [text]
    if _is_name(parts[0]):
        return "".join(parts[0].split()), parts[1:]
    if len(parts) == 2 and _is_name(parts[1]):
        return "".join(parts[1].split()), parts[:1]
    return "", parts


def _is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text)) and text not in ("e", "i")


def left_hand(node: Node) -> tuple[Node, Node] | None:
    """Both sides of a single equation."""
    if isinstance(node, Chain) and node.relations == ("=",):
        return node.parts[0], node.parts[1]
    return None
