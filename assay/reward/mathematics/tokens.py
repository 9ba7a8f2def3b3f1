r"""An expression's text -> tokens: numbers, names, commands, operators.

Some spellings can be read in two ways: ``12,345`` is a number or a pair, ``2e-3`` is 0.002 or 2e minus 3. ``Dialect``
says which is meant, and ``dialects`` lists those that a text leaves open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh asin acos atan ln log lg exp sqrt abs "
        "floor ceil min max gcd lcm",
    )
)
"""Functions by their plain names."""
LETTERS = frozenset(
    re.findall(
        r"\w+",
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi "
        "omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell",
    )
)
"""Names that stand for one letter."""
_INFINITE = ("infty", "infinity", "inf", "oo")
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_GROUPED = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?"
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<frame>\\(?:begin|end)\s*\{\s*[A-Za-z]+\*?\s*\})|(?P<command>\\[A-Za-z]+)"
    r"|(?P<escape>\\[{}|\\%$&#_])|(?P<word>[A-Za-z]+'*)|(?P<op>\*\*|<=|>=|!=|==|[-+*/^_=<>!(){}\[\],;:|&%])"
)
LONGEST = 20_000
"""Characters of an expression that is read; a longer one is none."""


class Unreadable(Exception):
    """The text is no expression that the grammar knows."""


@dataclass(frozen=True)
class Dialect:
    """How to read what can be read in two ways."""

    thousands: str = "outside"
    """Where ``1,250`` is a number: ``outside`` of brackets, or ``nowhere``."""
    scientific: bool = True
    """Is ``2e-3`` a number?"""


@dataclass(frozen=True)
class Token:
    """``kind`` is number, name, command, op or end."""

    kind: str
    text: str
    value: Fraction = Fraction(0)
    spaced: bool = False
    """Was there white space before it?"""


def dialects(text: str) -> list[Dialect]:
    """The readings that a text leaves open, the likeliest first.

    >>> len(dialects("x+1")), [d.thousands for d in dialects("12,345")]
    (1, ['outside', 'nowhere'])
    """
    grouped = ("outside", "nowhere") if re.search(_GROUPED, text) else ("outside",)
    scientific = (True, False) if re.search(r"\d[eE][-+]?\d", text) else (True,)
    return [Dialect(where, how) for where in grouped for how in scientific]


def tokenize(text: str, dialect: Dialect) -> list[Token]:
    r"""Tokens of an expression, with an ``end`` at the end; Unreadable for strange characters and long words.

    >>> [t.text for t in tokenize(r"2\pi r+1,250", Dialect())]
    ['2', 'pi', 'r', '+', '1,250', '']
    """
    if len(text) > LONGEST:
        raise Unreadable("too long")
    found: list[Token] = []
    position, depth, spaced = 0, 0, False
    while position < len(text):
        token, length = _number(text, position, dialect, depth)
        match = None if token else _TOKEN.match(text, position)
        if token is None and match is None:
            raise Unreadable(f"the character {text[position]!r}")
        if token is not None:
            found.append(Token("number", token.text, token.value, spaced))
        elif match is not None:
            length = match.end() - position
            if match.lastgroup != "space":
                found += _tokens(match, spaced)
                depth += (match.group() in ("(", "[", r"\{")) - (match.group() in (")", "]", r"\}"))
        spaced = match is not None and match.lastgroup == "space"
        position += length
    return [*found, Token("end", "")]


def _number(text: str, start: int, dialect: Dialect, depth: int) -> tuple[Token | None, int]:
    if not (text[start].isdigit() or text[start] == "."):
        return None, 0
    grouped = dialect.thousands == "outside" and depth == 0
    match = re.compile(rf"{_GROUPED}|{_NUMBER}" if grouped else _NUMBER).match(text, start)
    if match is None:
        return None, 0
    digits = match.group().replace(",", "")
    value, end = Fraction(_decimal(digits)), match.end()
    tail = text[end:]
    if repeating := re.match(r"\s*\\(?:overline|bar|dot)\s*\{?(\d+)\}?|\((\d+)\)(?![\d(])", tail):
        cycle = repeating[1] or repeating[2]
        if "." in digits:
            places = len(digits.partition(".")[2])
            value += Fraction(int(cycle), 10**places * (10 ** len(cycle) - 1))
            return Token("number", match.group() + repeating.group(), value), end + repeating.end() - start
    if ellipsis := re.match(r"\s*(?:\.\.+|\\ldots)", tail):
        cycle = re.fullmatch(r"(\d*\.\d*?)(\d{1,6}?)\2\2+", digits)
        if cycle is None:
            raise Unreadable("a decimal number that goes on")
        value = Fraction(_decimal(cycle[1])) + Fraction(
            int(cycle[2]), 10 ** len(cycle[1].partition(".")[2]) * (10 ** len(cycle[2]) - 1)
        )
        return Token("number", digits, value), end + ellipsis.end() - start
    if dialect.scientific and (exponent := re.match(r"[eE]([-+]?\d{1,4})(?![\d.])", tail)):
        value *= Fraction(10) ** int(exponent[1])
        end += exponent.end()
    return Token("number", text[start:end], value), end - start


def _decimal(digits: str) -> str:
    return f"0{digits}0" if digits.startswith(".") else f"{digits}0" if digits.endswith(".") else digits


def _tokens(match: re.Match[str], spaced: bool) -> list[Token]:
    text = match.group()
    if match.lastgroup == "op":
        return [Token("op", {"**": "^", "==": "=", "!=": "ne", "<=": "le", ">=": "ge"}.get(text, text), spaced=spaced)]
    if match.lastgroup == "frame":
        kind, _, name = text.strip("\\ }").partition("{")
        return [Token("command", f"{kind.strip()} {name.strip()}", spaced=spaced)]
    if match.lastgroup == "escape":
        return [Token("op", text, spaced=spaced)]
    if match.lastgroup == "command":
        name = text[1:]
        name = "inf" if name in _INFINITE else name
        kind = "name" if name in FUNCTIONS | LETTERS | {"pi", "inf"} else "command"
        return [Token(kind, name, spaced=spaced)]
    return [Token("name", name, spaced=spaced and not index) for index, name in enumerate(_names(text))]


def _names(word: str) -> list[str]:
    """A plain word as names: a function, a Greek letter, or up to three unknowns multiplied."""
    if word in FUNCTIONS | LETTERS | {"pi"}:
        return [word]
    if word.lower() in _INFINITE:
        return ["inf"]
    for prefix in sorted(FUNCTIONS | {"pi"}, key=len, reverse=True):
        if word.startswith(prefix) and 0 < len(word) - len(prefix) <= 2 and prefix not in ("min", "max", "abs"):
            return [prefix, *_letters(word[len(prefix) :])]
    letters = _letters(word)
    if len(letters) > 3:
        raise Unreadable(f"the word {word!r}")
    return letters


def _letters(word: str) -> list[str]:
    return re.findall(r"[A-Za-z]'*", word)
