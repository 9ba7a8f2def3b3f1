"""Wrong answers that lie close to the right one: a verifier that accepts them pays for mistakes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from assay.reward.audit.attack import attack
from assay.reward.audit.equivalents import json_ready
from assay.reward.audit.subject import Subject
from assay.reward.strict_json import JsonFault, read_json
from assay.reward.verifiers.number import canonical

_UNITS = {
    "cm": "m", "m": "cm", "km": "m", "mm": "cm", "g": "kg", "kg": "g", "hours": "minutes", "minutes": "hours",
    "seconds": "minutes", "dollars": "cents", "cents": "dollars", "miles": "feet", "feet": "inches", "inches": "feet",
}  # fmt: skip


def wrong_numbers(row: Subject) -> list[str]:
    """Numbers near the gold one, none of them equal to it, nearest first."""
    value = row.number
    if value is None:
        return []
    return [canonical(wrong) for wrong in (value + 1, value - 1, value * 10, -value) if wrong != value]


def wrong_answer(row: Subject) -> str | None:
    """One answer of the gold's kind that is wrong; ``None`` where none is surely so."""
    if row.nature == "number":
        return next(iter(wrong_numbers(row)), None)
    if row.nature == "choice":
        return next((letter for letter in "ABCD" if letter != row.gold.strip("().: ").upper()), None)
    return row.other


@attack("off by one", "reject", ("number",))
def off_by_one(row: Subject) -> Iterator[str]:
    """The number before, the number after."""
    yield from map(row.dress, wrong_numbers(row)[:2])


@attack("other sign", "reject", ("number",))
def other_sign(row: Subject) -> Iterator[str]:
    """The number with its sign turned."""
    if row.number:
        yield row.dress(canonical(-row.number))


@attack("digit lost or added", "reject", ("number",))
def digits(row: Subject) -> Iterator[str]:
    """The first digit lost, a digit added before or after, the point moved."""
    value = row.number
    if value is None:
        return
    text = canonical(abs(value))
    sign = "-" if value < 0 else ""
    for wrong in (text[1:], f"1{text}", f"{text}1", canonical(abs(value) * 10)):
        if wrong and wrong[0].isdigit() and value and wrong.lstrip("0") not in ("", text):
            yield row.dress(f"{sign}{wrong}")


@attack("other unit", "reject", ("number", "text"))
def other_unit(row: Subject) -> Iterator[str]:
    """The gold number with another unit than its own."""
    match = re.fullmatch(r"(-?[\d.,/]+)\s*([A-Za-z]+)", row.gold)
    if match and match[2] in _UNITS:
        yield row.dress(f"{match[1]} {_UNITS[match[2]]}")


@attack("another row's answer", "reject", ("number", "choice", "text"))
def another_answer(row: Subject) -> Iterator[str]:
    """The right answer of the row before."""
    if row.other is not None:
        yield row.dress(row.other)


@attack("another letter", "reject", ("choice",))
def another_letter(row: Subject) -> Iterator[str]:
    """Each of the other letters from A to D."""
    gold = row.gold.strip("().: ").upper()
    yield from (row.dress(letter) for letter in "ABCD" if letter != gold)


@attack("answer cut short", "reject", ("text",))
def cut_short(row: Subject) -> Iterator[str]:
    """The gold text without its last word, or its last letters."""
    if row.verifier in ("exact", "regex") and len(row.gold) > 3:
        yield row.dress(row.gold.rpartition(" ")[0] or row.gold[:-2])


@attack("a value changed", "reject", ("json",))
def value_changed(row: Subject) -> Iterator[str]:
    """One value of the JSON changed, one turned to text, one key renamed, left out, or given twice."""
    try:
        value = json_ready(read_json(row.gold))
    except JsonFault:
        return
    if not isinstance(value, dict) or not value:
        return
    key = next(iter(value))
    yield row.dress(json.dumps({**value, key: _other(value[key])}))
    if not isinstance(value[key], str):
        yield row.dress(json.dumps({**value, key: json.dumps(value[key])}))
    rest = {name: inner for name, inner in value.items() if name != key}
    yield row.dress(json.dumps({**rest, f"{key}_": value[key]}))
    yield row.dress(json.dumps(rest))
    twice = json.dumps(value)[:-1] + f", {json.dumps(key)}: {json.dumps(_other(value[key]))}}}"
    yield row.dress(twice)


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return f"{value}x" if isinstance(value, str) else [value, value]
