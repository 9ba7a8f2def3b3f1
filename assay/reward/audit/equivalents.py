"""Right answers in other forms: a verifier that rejects them teaches its own spelling."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from assay.reward.audit.attack import attack
from assay.reward.audit.subject import Subject
from assay.reward.strict_json import JsonFault, read_json

_READS_NUMBERS = ("number", "gsm8k", "math")


@attack("gold itself", "accept", ("number", "choice", "json", "text"))
def gold_itself(row: Subject) -> Iterator[str]:
    """The gold answer as the verifier wants it: rejected, the row or the options are broken."""
    yield row.dress(row.gold)


@attack("reference solution", "accept")
def reference_solution(row: Subject) -> Iterator[str]:
    """The row's own reference solution: the preflight of tests."""
    if row.reference is not None and row.nature == "code":
        yield row.reference if "```" in row.reference else f"```python\n{row.reference}\n```"


@attack("blank lines around", "accept", ("number", "choice", "json", "text"))
def blank_lines_around(row: Subject) -> Iterator[str]:
    """White space around the completion."""
    yield f"\n  {row.dress(row.gold)}\n\n"


@attack("after thinking", "accept", ("number", "choice", "text"))
def after_thinking(row: Subject) -> Iterator[str]:
    """A thinking span with other answers in it, then the right one."""
    if row.verifier not in ("regex", "format"):
        yield f"<think>First I took it for {row.other or 'something else'}.</think>\n{row.dress(row.gold)}"


@attack("other spellings of a number", "accept", ("number",))
def spellings(row: Subject) -> Iterator[str]:
    """Thousands separators, a decimal zero, the Unicode minus, a fraction of the same value."""
    value = row.number
    if value is None or row.verifier not in _READS_NUMBERS or "%" in row.gold:
        return
    if value.denominator == 1:
        yield row.dress(f"{value.numerator}.0")
        if abs(value) >= 1000:
            yield row.dress(f"{value.numerator:,}")
    else:
        yield row.dress(f"{value.numerator}/{value.denominator}")
    if value < 0:
        yield row.dress(row.gold.replace("-", "\u2212"))
    if row.verifier == "math" and value >= 0:
        yield row.dress(rf"\frac{{{2 * value.numerator}}}{{{2 * value.denominator}}}")


@attack("other words around a letter", "accept", ("choice",))
def letters(row: Subject) -> Iterator[str]:
    """The letter bare, in brackets, bold, in a sentence, in a box."""
    letter = row.gold.strip("().: ")
    yield from (letter, f"({letter})", f"**{letter}**", f"The answer is ({letter}).", rf"So \boxed{{{letter}}}.")


@attack("other spellings of JSON", "accept", ("json",))
def spellings_of_json(row: Subject) -> Iterator[str]:
    """Other white space, keys in another order, escaped letters."""
    value = _value(row)
    if value is not None:
        plain = json_ready(value)
        yield row.dress(json.dumps(plain, indent=2, ensure_ascii=False))
        yield row.dress(json.dumps(_turned(plain)))


def _value(row: Subject) -> Any:
    try:
        return read_json(row.gold)
    except JsonFault:
        return None


def json_ready(value: Any) -> Any:
    """A value that ``json.dumps`` can write: exact decimals as floats.

    >>> from decimal import Decimal
    >>> json_ready({"a": [Decimal("0.5")]})
    {'a': [0.5]}
    """
    if isinstance(value, dict):
        return {key: json_ready(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [json_ready(inner) for inner in value]
    return value if value is None or isinstance(value, (bool, str, int)) else float(Fraction(value))


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return [_turned(inner) for inner in value] if isinstance(value, list) else value
