r"""``number``: one number is asked for; it is compared exactly, as a rational.

Reads ``1,250``, ``1{,}250``, ``$31.00``, ``-4`` (also U+2212), ``.5``, ``3/4``, ``\frac{3}{4}``, ``2 1/2``,
``1e-7``. A percent sign changes nothing: ``35%`` is 35. Left out: decimal commas, ``1 250`` with a plain
space, number words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from pydantic import Field

from assay.recipe.schema import Section
from assay.reward.commitment import hedges
from assay.reward.extraction import after_thinking, boxed, place_answer, tagged
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?![\d])|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{{1,3}}(?!\d))?"
_NUMBER = re.compile(
    r"(?<![\w.^])(?:(?<![)\]}])(?P<sign>[-+]))?(?:\\?[$€£]\s?(?P<inner>-)?)?(?:"
    rf"\\[dt]?frac\{{(?P<top>{_DECIMAL})\}}\{{(?P<bottom>{_DECIMAL})\}}"
    rf"|(?P<whole>\d+)\s(?P<part>\d+)/(?P<of>\d+)(?![\d/])"
    rf"|(?P<over>{_DECIMAL})\s?/\s?(?P<under>{_DECIMAL})"
    rf"|(?P<plain>{_DECIMAL}))(?P<tail>)"
)
LONGEST_NUMBER = 20_000
"""Characters of a number that is read."""
_SPACED_GROUPS = re.compile(r"(?<=\d)(?:\{,\}|,\\[!,]|\\[,!]|[\u00a0\u2009\u202f])\s?(?=\d{3}(?!\d))")
_SIGNS = str.maketrans({"\u2212": "-", "\uff0d": "-", "\ufe63": "-", "\uff0b": "+"})
_NEXT_QUESTION = re.compile(r"^\s*(?:question|problem|q)\s*\d*\s*:", re.IGNORECASE | re.MULTILINE)


class NumberOptions(Section):
    """Options of ``number``."""

    extract: Literal["last", "tagged", "boxed", "hash", "only"] = "last"
    """The number that is the answer: the `last`, the one in `<tag>` (`tagged`), in `\\boxed{}`, after `####`
    (`hash`), or the `only` one of the completion (two or more are then no answer)."""
    tag: str = "answer"
    """The tag that `tagged` reads."""
    tolerance: float = Field(0.0, ge=0)
    """Absolute difference still counted as equal; 0 compares exact rationals."""
    control: bool = False
    """Score 1 for any number that is where it should be, right or wrong: a format-only control."""


@register("number", NumberOptions)
@dataclass(frozen=True)
class Number:
    """Score 1 when the extracted number equals the gold number, else 0."""

    options: NumberOptions

    def __call__(self, case: Case) -> Judgement:
        """Compare the extracted number with the gold one; the message counts the completion's numbers."""
        gold = gold_number(case.gold)
        if gold is None and not self.options.control:
            return verifier_error(f"the gold answer {_clip(case.gold)} is not one number")
        spoken = after_thinking(case)
        if spoken.text is None:
            return no_answer(spoken.why)
        count = len(numbers_in(spoken.text))
        found, why = self._candidates(spoken.text)
        different = list(dict.fromkeys(found))
        if not different:
            return no_answer(f"{why} (numbers: {count})")
        answer = ", ".join(canonical(value) for value in different)
        if len(different) > 1:
            return Judgement(0.0, "scored", answer, f"{len(different)} different answers (numbers: {count})")
        right = self.options.control or _equal(different[0], gold, self.options.tolerance)
        verdict = "accepted" if self.options.control else f"{'equals' if right else 'is not'} {_clip(case.gold)}"
        return Judgement(float(right), "scored", answer, f"{_clip(answer)} {verdict} (numbers: {count})")

    def canary(self, gold: Any) -> str:
        """The gold number where the verifier looks for it."""
        number = gold_number(gold)
        text = canonical(number if number is not None else Fraction(0))
        return f"#### {text}" if self.options.extract == "hash" else place_answer(text, self.options.extract)

    def _candidates(self, text: str) -> tuple[list[Fraction], str]:
        """The numbers offered as the answer, and what is missing when there are none."""
        how = self.options.extract
        if how in ("last", "only"):
            found = numbers_in(text)
            if how == "only" and len(found) > 1:
                return [], "more than one number"
            return found[-1:], "no number"
        if how == "hash":
            places = _hash_answers(text)
            missing = "no number after ####"
        elif how == "boxed":
            places, missing = boxed(text), r"no number in a closed \boxed{}"
        else:
            places, missing = tagged(text, self.options.tag), f"no number in <{self.options.tag}>"
        numbers = [numbers_in(place) for place in places]
        # "14 + 19 = 33" states 33; "5, 6" states two.
        stated = [values if "=" not in place else values[-1:] for place, values in zip(places, numbers, strict=True)]
        if how == "hash":
            stated = [values if hedges(at) else values[:1] for at, values in zip(places, stated, strict=True)]
        return [value for values in stated for value in values], missing


def _hash_answers(text: str) -> list[str]:
    """The rest of each line after ``####``, up to where a next question was made up."""
    first = text.find("####")
    if first < 0:
        return []
    invented = _NEXT_QUESTION.search(text, first)
    return re.findall(r"####[ \t]*([^\n]*)", text[: invented.start() if invented else len(text)])


def numbers_in(text: str) -> list[Fraction]:
    """Every number that stands in a text, in order.

    >>> [str(n) for n in numbers_in("3 + 4 = 7, i.e. $1,250.50 or −1/2 of x2 (10-3)")]
    ['3', '4', '7', '2501/2', '-1/2', '10', '3']
    """
    return [value for _, value in _scan(text)]


def _scan(text: str) -> Iterator[tuple[re.Match[str], Fraction]]:
    plain = _SPACED_GROUPS.sub("", text.translate(_SIGNS))
    for match in _NUMBER.finditer(plain):
        value = _value(match)
        if value is not None:
            yield match, value


def _value(match: re.Match[str]) -> Fraction | None:
    part = match.groupdict()
    if match.end() - match.start() > LONGEST_NUMBER:
        return None
    if part["plain"] is not None:
        size = _read(part["plain"])
    elif part["whole"] is not None:
        top, bottom = _read(part["part"]), _read(part["of"])
        size = _read(part["whole"]) + top / bottom if bottom else None
    else:
        top = _read(part["top"] or part["over"])
        bottom = _read(part["bottom"] or part["under"])
        size = top / bottom if bottom else None
    negative = (part["sign"] == "-") != (part["inner"] == "-")
    return None if size is None else (-size if negative else size)


def _read(digits: str) -> Fraction:
    # Through Decimal, which has no limit of 4300 digits; the exponent is bounded by the pattern.
    return Fraction(Decimal(digits.replace(",", "")))


def single_number(text: str) -> Fraction | None:
    r"""The value of a text that is one number and nothing else but currency, bold, full stop or percent sign.

    >>> single_number("**$1,250.**"), single_number("6x"), single_number("1, 2")
    (Fraction(1250, 1), None, None)
    """
    found = list(_scan(text))
    if len(found) != 1:
        return None
    rest = re.sub(r"[\s*_$.]|\\%|%", "", found[0][0].string.replace(found[0][0].group(), "", 1))
    return found[0][1] if not rest else None


def gold_number(gold: Any) -> Fraction | None:
    """The gold answer's value: of a number, a text with exactly one, or GSM8K's text with one after ``####``.

    >>> gold_number("1,250"), gold_number("6*7=42\\n#### 42"), gold_number("a"), gold_number(True)
    (Fraction(1250, 1), Fraction(42, 1), None, None)
    """
    if gold is None or isinstance(gold, bool):
        return None
    found = numbers_in(str(gold).rsplit("####", 1)[-1])
    return found[0] if len(found) == 1 else None


def canonical(value: Fraction) -> str:
    """One spelling for each value: an integer, a finite decimal, or ``a/b``.

    >>> canonical(Fraction(5)), canonical(Fraction(11, 2)), canonical(Fraction(-1, 3))
    ('5', '5.5', '-1/3')
    """
    top, bottom = value.numerator, value.denominator
    if bottom == 1:
        return f"{Decimal(top):f}"
    twos, fives, rest = 0, 0, bottom
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    places = max(twos, fives)
    if rest != 1 or places > 30:
        return f"{Decimal(top):f}/{Decimal(bottom):f}"
    digits = f"{Decimal(abs(top) * 10**places // bottom):f}".rjust(places + 1, "0")
    return f"{'-' if top < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _equal(value: Fraction, gold: Fraction | None, tolerance: float) -> bool:
    return gold is not None and abs(value - gold) <= Fraction(tolerance)


def _clip(text: Any) -> str:
    shown = str(text)
    return shown if len(shown) <= 60 else shown[:57] + "..."
