"""JSON Schema through the ``jsonschema`` package, with its known slips mended and its network closed.

Mended: ``multipleOf`` is exact (19.99 is a multiple of 0.01), ``$`` in a pattern does not match before a
final line break, ``\\d`` means ASCII digits as in ECMA 262, ``date-time`` is checked, a ``$ref`` is never
fetched from the network. Formats are checked, not taken as remarks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

from jsonschema import FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend, validator_for
from jsonschema_specifications import REGISTRY
from referencing.exceptions import Unresolvable

from assay.reward.strict_json import JsonFault, canonical_json, read_json

_DATE_TIME = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])[Tt](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?"
    r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_DRAFT = "https://json-schema.org/draft/2020-12/schema"

FORMATS = FormatChecker()
"""The formats that are checked."""


@FORMATS.checks("date-time")
def _is_date_time(text: object) -> bool:
    return not isinstance(text, str) or bool(_DATE_TIME.fullmatch(text))


class BadSchema(ValueError):
    """The schema itself cannot be used: the data's fault, never the completion's."""


@dataclass(frozen=True)
class Schema:
    """A schema that was found to be valid."""

    validator: Any

    def fault(self, value: Any) -> str | None:
        """The first thing wrong with a value, in words, or ``None``; raises :class:`BadSchema`."""
        try:
            error = best_match(self.validator.iter_errors(_floats(value)))
        except Unresolvable as unresolved:
            raise BadSchema(f"the schema refers to {unresolved.ref!r}, which it does not hold") from None
        except re.error as wrong:
            raise BadSchema(f"the schema's pattern is not a regular expression: {wrong}") from None
        except RecursionError:
            raise BadSchema("the schema refers to itself without end") from None
        if error is None:
            return None
        where = error.json_path.removeprefix("$").lstrip(".")
        return f"{where}: {error.message[:160]}" if where else error.message[:160]


def read_schema(schema: Any) -> Schema:
    """Check a schema (an object, ``true`` or ``false``, or one of these as text); raises :class:`BadSchema`.

    >>> read_schema({"type": "integer"}).fault(True), read_schema({"type": "integer"}).fault(3)
    ("True is not of type 'integer'", None)
    """
    if isinstance(schema, str):
        try:
            schema = read_json(schema)
        except JsonFault as fault:
            raise BadSchema(f"the schema is {fault}") from None
    if not isinstance(schema, (Mapping, bool)):
        raise BadSchema(f"a schema must be an object, not {type(schema).__name__}")
    plain = _floats(schema)
    named = plain.get("$schema", _DRAFT) if isinstance(plain, dict) else _DRAFT
    draft = validator_for({"$schema": named}, default=cast(Any, None))
    if draft is None:
        raise BadSchema(f"unknown $schema {str(named)[:80]!r}")
    try:
        draft.check_schema(plain)
    except SchemaError as error:
        where = error.json_path.removeprefix("$").lstrip(".")
        raise BadSchema(f"the schema is invalid{f' at {where}' if where else ''}: {error.message[:160]}") from None
    mended = extend(draft, {"multipleOf": _multiple_of, "pattern": _pattern, "patternProperties": _pattern_properties})
    return Schema(mended(plain, format_checker=FORMATS, registry=REGISTRY))


def schema_key(schema: Any) -> str:
    """A text that is the same for the same schema: what read schemas are kept under."""
    return schema if isinstance(schema, str) else canonical_json(schema)


def _floats(value: Any) -> Any:
    """The value with plain floats: the package's type checks know no ``Decimal``."""
    if isinstance(value, Mapping):
        return {str(key): _floats(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_floats(inner) for inner in value]
    return float(value) if isinstance(value, Decimal) else value


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "number") and (_exact(instance) / _exact(step)).denominator != 1:
        yield ValidationError(f"{instance!r} is not a multiple of {step!r}")


def _exact(number: int | float) -> Fraction:
    return Fraction(Decimal(repr(number))) if isinstance(number, float) else Fraction(number)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _search(pattern, instance):
        yield ValidationError(f"{instance[:60]!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, inner in patterns.items():
        for key, value in instance.items():
            if _search(pattern, key):
                yield from validator.descend(value, inner, path=key, schema_path=pattern)


def _search(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(_ecma(pattern), text, re.ASCII)


def _ecma(pattern: str) -> str:
    r"""A pattern whose ``$`` means the very end.

    >>> _ecma(r"^a[$]\$b$")
    '^a[$]\\$b\\Z'
    """
    pieces = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL)
    return "".join(r"\Z" if piece == "$" else piece for piece in pieces)
