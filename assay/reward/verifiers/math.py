r"""``math``: mathematical equality by math-verify (sympy), after one strict reading of where the answer
stands.

math-verify's own time-outs use SIGALRM, which fails off the main thread and does not interrupt C code; they
are switched off, because this verifier runs in a worker process that can be killed. Plain numbers are
compared as exact rationals and never reach sympy. Left out: proofs, and units beyond literal equality.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal, cast

from assay.recipe.schema import Section
from assay.reward.extraction import after_thinking, boxed, boxes, last_line, tagged
from assay.reward.verifier import Case, Judgement, Verifier, no_answer, register, verifier_error
from assay.reward.verifiers.number import canonical, single_number

_CUE = re.compile(r"(?i:answer|result)\b[*_\s]*(?:[:=]|\bis\b)[*_\s:]*(?P<slot>[^\n]+)")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textit|mbox)\s*\{([^{}]*)\}")
_UNIT = re.compile(
    r"(?<=[\d})])\s*(?:\\[,;! ]|~)*\s*\\(?:text|mathrm|mbox)\s*\{\s*([A-Za-z][^{}]*)\}(?:\^\{?[23]\}?)?\s*$"
)
_DEGREES = re.compile(r"\s*\^\s*\{?\\circ\}?|\s*°|\s*\\text\{\s*degrees?\s*\}|\s*\bdegrees?\b")
_PERCENT = re.compile(r"\s*(?:\\%|%|\\text\{\s*percent\s*\}|\bpercent\b)\s*$")
_BASE = re.compile(r"(\d+)_\{?(\d+)\}?(?:\\text\{[^{}]*\})?")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\{(\d+)\}")
_MIXED = re.compile(r"(?<![\d.}])(\d+)\s*\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}")
_SCIENTIFIC = re.compile(r"(-?\d+(?:\.\d+)?)\s*\\(?:times|cdot)\s*10\s*\^\s*\{?(-?\d{1,3})\}?")
_PLAIN_CODE = re.compile(r"(?=.*(?:\*|sqrt\(|\bpi\b))[\w\s.,+*/^()-]+")
_POSITIVE = re.compile(r"\bpositive\b|> ?0", re.IGNORECASE)
_DIGIT_GROUPS = re.compile(r"(?<=\d)(?:,\s*\\!|\\!\s*,|\{,\}|\\,|\\!)\s*(?=\d{3})")


class MathOptions(Section):
    """Options of ``math``."""

    extract: Literal["auto", "boxed"] = "auto"
    """`boxed` accepts only `\\boxed{}`; `auto` falls back to `<answer>`, `Answer: ...`, the last line."""


@dataclass(frozen=True)
class MathTools:
    """The two functions of math-verify that are used, imported where the verifier is built."""

    parse: Callable[[str], list[Any]]
    """LaTeX -> sympy values, empty when it cannot be read."""
    equal: Callable[[list[Any], list[Any], bool], bool]
    """Gold, answer, are all unknowns positive -> are they the same mathematical object?"""


@register("math", MathOptions)
def math(options: MathOptions) -> Verifier:
    """Build the verifier: imports math-verify and sympy."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    for name in ("math_verify.parser", "math_verify.grader"):  # they warn once that time-outs are off
        logging.getLogger(name).setLevel(logging.ERROR)
    configs = [LatexExtractionConfig(), ExprExtractionConfig()]
    parse_untimed: Callable[..., list[Any]] = partial(parse, parsing_timeout=cast(Any, None))

    def read(text: str) -> list[Any]:
        for spelling in (f"${_latex_of_code(text)}$", text):
            if found := parse_untimed(spelling, configs, fallback_mode="no_fallback"):
                return found
        return []

    def equal(gold: list[Any], answer: list[Any], positive: bool) -> bool:
        exact = _rational(gold), _rational(answer)
        if exact[0] is not None and exact[1] is not None:
            return exact[0] == exact[1]
        if verify(gold, answer, float_rounding=12, numeric_precision=30, timeout_seconds=None):
            return True
        return positive and verify(_positive(gold), _positive(answer), timeout_seconds=None)

    return Math(options, MathTools(read, equal))


def _latex_of_code(text: str) -> str:
    r"""``2*pi*r`` as LaTeX; other texts unchanged. Never evaluated as code: the text is the policy's.

    >>> _latex_of_code("2*pi*sqrt(3)**2"), _latex_of_code(r"2\pi r")
    ('2 \\cdot \\pi  \\cdot \\sqrt{3}^2', '2\\pi r')
    """
    if not _PLAIN_CODE.fullmatch(text):
        return text
    text = re.sub(r"sqrt\(([^()]*)\)", r"\\sqrt{\1}", text.replace("**", "^"))
    return re.sub(r"\bpi\b", r"\\pi ", text).replace("*", r" \cdot ")


def _rational(values: list[Any]) -> Any | None:
    """The one rational number that was parsed, exactly: math-verify rounds, and so merges tiny numbers."""
    from sympy import Expr

    if len(values) != 1 or not isinstance(values[0], Expr) or values[0].free_symbols:
        return None
    value = values[0].doit()
    return value if value.is_Rational else None


def _positive(values: list[Any]) -> list[Any]:
    """The values with every unknown taken to be positive."""
    from sympy import Basic, Symbol, simplify

    def replaced(value: Any) -> Any:
        if not isinstance(value, Basic):
            return value
        names = {symbol: Symbol(str(symbol), positive=True) for symbol in value.free_symbols}
        return simplify(value.xreplace(names))

    return [replaced(value) for value in values]


@dataclass(frozen=True)
class Math:
    """Score 1 when answer and gold are mathematically the same, else 0."""

    options: MathOptions
    tools: MathTools

    def __call__(self, case: Case) -> Judgement:
        """Find the answer, compare texts, then exact numbers, then expressions."""
        gold = _normalise(str(case.gold)) if case.gold is not None else ""
        gold = ", ".join(boxed(gold)) or gold.strip().strip("$").strip()
        if not gold:
            return verifier_error("the gold answer is missing")
        spoken = after_thinking(case)
        answer = self._answer(_normalise(spoken.text)) if spoken.text is not None else None
        if answer is None:
            return no_answer(spoken.why or r"no answer in a closed, filled \boxed{}")
        right = self._same(gold, answer, bool(_POSITIVE.search(case.prompt)))
        if right is None:
            return verifier_error(f"the gold answer {gold[:60]!r} cannot be read")
        number = single_number(answer)
        spelling = canonical(number) if number is not None else " ".join(answer.split())
        return Judgement(float(right), "scored", spelling, "" if right else f"not {gold[:60]}")

    def canary(self, gold: Any) -> str:
        """The gold answer in a box."""
        return rf"\boxed{{{gold}}}"

    def _answer(self, text: str) -> str | None:
        found, left_open = boxes(text)
        if found or left_open or self.options.extract == "boxed":
            return ", ".join(boxed(text)) or None
        if places := [place for place in tagged(text, "answer") if place]:
            return places[-1]
        cues = [match["slot"] for match in _CUE.finditer(text)]
        return (cues[-1] if cues else last_line(text) or "").strip("*_ $.`") or None

    def _same(self, gold: str, answer: str, positive: bool) -> bool | None:
        """Are they equal? ``None`` when the gold answer cannot be read."""
        if "".join(gold.split()) == "".join(answer.split()):
            return None if "[asy]" in gold else True
        gold, answer, agree = _same_units(gold, answer)
        numbers = _exact_number(gold), _exact_number(answer)
        if numbers[0] is not None and numbers[1] is not None:
            return agree and numbers[0] == numbers[1]
        parsed = self.tools.parse(gold) if "[asy]" not in gold else []
        if not parsed:
            return None
        if not agree or (_BASE.fullmatch(gold) and not _BASE.fullmatch(answer)):
            return False
        if _tower(answer) > 2 >= _tower(gold):
            return False  # not to be evaluated: larger than any memory
        return self.tools.equal(parsed, self.tools.parse(answer), positive)


def _normalise(text: str) -> str:
    """ASCII digits and minus signs, digit groups closed up, ``\\text{27}`` unwrapped."""
    text = "".join(
        str(int(c)) if c.isdecimal() and not c.isascii() else "-" if c in "\u2212\uff0d" else c for c in text
    )
    text = _DIGIT_GROUPS.sub("", text)
    return _TEXT.sub(lambda found: found[1] if re.fullmatch(r"\s*[-\d.,/]+\s*", found[1]) else found[0], text)


def _same_units(gold: str, answer: str) -> tuple[str, str, bool]:
    """Both without unit, degree and percent signs, and whether those agree.

    A sign or unit that only one of them has repeats what the question asks for; two different ones disagree.
    """
    gold_degrees, answer_degrees = _DEGREES.sub("", gold), _DEGREES.sub("", answer)
    bare_gold, bare_answer = _PERCENT.sub("", gold_degrees), _PERCENT.sub("", answer_degrees)
    units = _UNIT.search(bare_gold), _UNIT.search(bare_answer)
    agree = True
    if units[0] and units[1]:
        agree = units[0][1].strip() == units[1][1].strip()
    return _UNIT.sub("", bare_gold).strip(), _UNIT.sub("", bare_answer).strip(), agree


def _tower(text: str) -> int:
    r"""How many exponents stand on each other.

    >>> _tower("7^{7^{7^{7}}}"), _tower("7^7^7^7"), _tower("x^2y^2+z^{2}w^{3}=1")
    (3, 3, 1)
    """
    deepest, depth, base, scopes, last = 0, 0, 0, [], -1
    for position, character in enumerate(text):
        if character == "^":
            chained = last >= 0 and re.fullmatch(r"\d+|[A-Za-z]", text[last + 1 : position])
            depth = depth + 1 if chained else base + 1
            deepest, last = max(deepest, depth), position
        elif character == "{":
            scopes.append((base, depth))
            base = depth if text[position - 1 : position] == "^" else base
        elif character == "}" and scopes:
            base, depth = scopes.pop()
    return deepest


def _exact_number(text: str) -> Fraction | None:
    r"""The value of plain, mixed, repeating and scientific numbers; ``None`` for everything else.

    >>> _exact_number(r"3\frac{1}{2}"), _exact_number(r"1.\overline{3}"), _exact_number(r"4.2\times 10^{-7}")
    (Fraction(7, 2), Fraction(4, 3), Fraction(21, 50000000))
    >>> _exact_number("6x"), _exact_number("-0")
    (None, Fraction(0, 1))
    """
    text = text.strip().strip("$")
    text = re.sub(r"^(?:[A-Za-z]\s*=\s*)", "", text)
    sign = -1 if text.startswith("-") else 1
    size = text.removeprefix("-").strip()
    if match := _REPEATING.fullmatch(size):
        whole, fixed, cycle = match.groups()
        scale = 10 ** len(fixed)
        return sign * (
            Fraction(int((whole + fixed) or 0), scale) + Fraction(int(cycle), scale * (10 ** len(cycle) - 1))
        )
    if match := _MIXED.fullmatch(size):
        whole, top, bottom = map(int, match.groups())
        return sign * (whole + Fraction(top, bottom)) if bottom else None
    if match := _SCIENTIFIC.fullmatch(text):
        return Fraction(match[1]) * Fraction(10) ** int(match[2])
    return single_number(text)
