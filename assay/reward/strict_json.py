r"""JSON as RFC 8259 has it: what Python's reader takes beyond that is refused, and numbers are never rounded.

Refused: a key given twice, ``NaN`` and ``Infinity``, text after the value, nesting beyond any use, numbers
beyond what a double holds. Integers are ``int`` of any size, other numbers ``Decimal``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

Place = Literal["bare", "fence", "either", "prose", "tagged"]
"""Where JSON may stand: alone; alone in a code fence; either; anywhere, once; inside a tag."""

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*\n(.*?)^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)
_JSON_SPACE = " \t\r\n"
_LARGEST_EXPONENT = 308
_DEEPEST = 200
_MOST_STARTS = 500
"""Brackets in prose that are tried, and code fences: a text of brackets alone must not take quadratic time."""


class JsonFault(ValueError):
    """Why a text is not the JSON that was asked for; the message says so to a person."""


def read_json(text: str) -> Any:
    """The one JSON value that a whole text is; raises :class:`JsonFault`.

    >>> read_json('{"a": [1, 2.50, null]}')
    {'a': [1, Decimal('2.50'), None]}
    >>> read_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    assay.reward.strict_json.JsonFault: the key 'a' is given twice
    """
    try:
        value = json.loads(
            text.strip(_JSON_SPACE),
            object_pairs_hook=_distinct,
            parse_constant=_refuse_constant,
            parse_float=_decimal,
        )
    except json.JSONDecodeError as error:
        what = "text after the value" if error.msg == "Extra data" else error.msg
        raise JsonFault(f"not JSON: {what} at character {error.pos + 1}") from None
    except RecursionError:
        raise JsonFault("nested too deeply") from None
    except JsonFault:
        raise
    except ValueError as error:  # an integer beyond the interpreter's limit of digits
        raise JsonFault(f"not JSON: {str(error).split(';')[0]}") from None
    if _depth(value) > _DEEPEST:
        raise JsonFault(f"nested more than {_DEEPEST} levels deep")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise JsonFault(f"the key {key[:40]!r} is given twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise JsonFault(f"{name} is not JSON")


def _decimal(digits: str) -> Decimal:
    number = Decimal(digits)
    if number.adjusted() > _LARGEST_EXPONENT:
        raise JsonFault(f"the number {digits[:20]} is larger than JSON readers hold")
    return number


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            child
            for one in level
            if isinstance(one, (dict, list))
            for child in (one.values() if isinstance(one, dict) else one)
        ]
    return deepest


def fenced(text: str) -> list[str]:
    """The contents of all closed code fences that are marked ``json`` or not at all.

    >>> fenced("So:\\n```json\\n{}\\n```\\n```python\\n1\\n```")
    ['{}\\n']
    """
    if text.count("```") + text.count("~~~") > _MOST_STARTS:
        raise JsonFault(f"more than {_MOST_STARTS} code fences")
    return [content for _, mark, content in _FENCE.findall(text) if mark.lower() in ("", "json", "jsonc", "json5")]


def find_json(text: str, place: Place, tag: str = "answer") -> Any:
    """The JSON value that stands in ``place`` of a text; raises :class:`JsonFault` with the reason.

    ``prose``: the only fence, else the only object or array that parses; two different ones are a fault.

    >>> find_json("```json\\n[1]\\n```", "either"), find_json("It is {'a'} and [2].", "prose")
    ([1], [2])
    """
    if place == "bare":
        return read_json(text)
    if place == "tagged":
        places = re.findall(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", text, re.DOTALL)
        if len(places) != 1:
            raise JsonFault(f"{len(places)} times <{tag}>...</{tag}>")
        return find_json(places[0], "either")
    if place == "prose":
        return _in_prose(text)
    stripped = text.strip()
    match = _FENCE.fullmatch(stripped) if stripped[:3] in ("```", "~~~") else None
    if match is None:
        if place == "fence":
            raise JsonFault("not one closed code fence with nothing around it")
        return read_json(text)
    if match[2].lower() not in ("", "json"):
        raise JsonFault(f"a code fence of {match[2][:20]}, not of json")
    if fence_inside := re.search(r"^[ \t]*(?:`{3,}|~{3,})", match[3], re.MULTILINE):
        raise JsonFault(f"more than one code fence (at character {match.start(3) + fence_inside.start() + 1})")
    return read_json(match[3])


def _in_prose(text: str) -> Any:
    fences = fenced(text)
    values = [read_json(content) for content in fences] if fences else _values_in(text)
    if not values:
        raise JsonFault("no JSON object or array")
    if any(not json_equal(values[0], value) for value in values[1:]):
        raise JsonFault(f"{len(values)} JSON values that differ")
    return values[0]


def _values_in(text: str) -> list[Any]:
    """The outermost objects and arrays that parse, in order. Raises :class:`JsonFault` for too many false starts."""
    decoder = json.JSONDecoder()
    found, position, false_starts = [], 0, 0
    while (start := _next_start(text, position)) is not None:
        try:
            _, end = decoder.raw_decode(text, start)
        except RecursionError:
            raise JsonFault("nested too deeply") from None
        except ValueError:
            position, false_starts = start + 1, false_starts + 1
            if false_starts > _MOST_STARTS:
                raise JsonFault(f"more than {_MOST_STARTS} brackets that begin no JSON") from None
            continue
        found.append(read_json(text[start:end]))
        position = end
    return found


def _next_start(text: str, position: int) -> int | None:
    match = re.compile(r"[{\[]").search(text, position)
    return match.start() if match else None


def json_equal(one: Any, other: Any, *, any_order: bool = False, subset: bool = False) -> bool:
    """Are two JSON values the same: numbers by exact value, objects without order, ``true`` is not 1?

    ``any_order`` compares arrays as bags; ``subset`` lets ``other`` have further keys than ``one``.

    >>> json_equal(1, Decimal("1.0")), json_equal(True, 1), json_equal("1", 1)
    (True, False, False)
    >>> json_equal({"a": [1, 2]}, {"a": [2, 1], "b": 0}, any_order=True, subset=True)
    True
    """
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one == other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys_fit = set(one) <= set(other) if subset else set(one) == set(other)
        return keys_fit and all(json_equal(one[k], other[k], any_order=any_order, subset=subset) for k in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return False
        if any_order:
            return same_bag(one, other, subset=subset)
        return all(json_equal(a, b, subset=subset) for a, b in zip(one, other, strict=True))
    numbers = (int, float, Decimal)
    return isinstance(one, numbers) and isinstance(other, numbers) and exact(one) == exact(other)


def same_bag(some: Sequence[Any], others: Sequence[Any], *, subset: bool = False) -> bool:
    """Can each of ``some`` be paired with an equal one of as many ``others``?

    >>> same_bag([1, 1, 2], [2, 1, 1]), same_bag([1, 1, 2], [2, 2, 1])
    (True, False)
    """
    left = list(others)
    for one in some:
        match = next((i for i, other in enumerate(left) if json_equal(one, other, any_order=True, subset=subset)), None)
        if match is None:
            return False
        del left[match]
    return not left


def exact(number: int | float | Decimal) -> Decimal:
    """A JSON number without rounding; a float of a data file means the shortest decimal that reads so.

    >>> exact(0.1) == exact(Decimal("0.1")), exact(9007199254740993) == exact(9007199254740992)
    (True, False)
    """
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


def canonical_json(value: Any) -> str:
    """One spelling for each value: keys sorted, ASCII, no blanks; ``1`` for ``1.0``.

    >>> canonical_json({"b": Decimal("1.0"), "a": "é"})
    '{"a":"\\\\u00e9","b":1}'
    """
    if isinstance(value, Mapping):
        inside = ",".join(f"{json.dumps(str(key))}:{canonical_json(value[key])}" for key in sorted(value))
        return f"{{{inside}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(canonical_json, value))}]"
    if isinstance(value, (Decimal, float)):
        number = exact(value)
        return f"{number:f}".rstrip("0").rstrip(".") if number and number.adjusted() > -30 else f"{number.normalize()}"
    return json.dumps(value)
