"""``json``: the completion is JSON where it was asked for, fits a JSON Schema, and equals the gold value.

Accepts: strict JSON (RFC 8259) after the thinking, in the allowed place. Rejects, score 0: what does not
parse, text where none may stand, a key given twice, ``NaN``, several different values, what breaks the
schema, what differs from the gold value. Numbers are compared by exact value (1 equals 1.0; integers beyond
2^53 are not rounded), ``true`` is not 1. A schema or gold value that cannot be read is a ``verifier_error``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import model_validator

from assay.data.conventions import column_at
from assay.recipe.schema import Section
from assay.reward.extraction import after_thinking
from assay.reward.json_schema import BadSchema, Schema, read_schema, schema_key
from assay.reward.strict_json import JsonFault, Place, canonical_json, find_json, json_equal, read_json
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error


class JsonOptions(Section):
    """Options of ``json``."""

    place: Place = "either"
    """Where the JSON stands: alone (`bare`), alone in a code `fence`, `either`, once anywhere in `prose`, or in
    `<tag>` (`tagged`)."""
    tag: str = "answer"
    """The tag that `tagged` reads."""
    json_schema: dict[str, Any] | bool | None = None
    """A JSON Schema for every row."""
    schema_column: str = "schema"
    """Column (or dotted path) with the row's own JSON Schema, which goes before `json_schema`."""
    match: Literal["auto", "equal", "subset", "none"] = "auto"
    """Against the gold value: `equal`, `subset` (further keys may be there), `none` (not compared), or `auto`:
    `equal` where there is a gold value."""
    any_order: bool = False
    """Arrays with the same elements in another order are equal."""
    parse_only: bool = False
    """Accept any JSON where a row has neither schema nor gold value; else that is a `verifier_error`."""

    @model_validator(mode="after")
    def _schema_is_valid(self) -> JsonOptions:
        if self.json_schema is not None:
            read_schema(self.json_schema)
        return self


@register("json", JsonOptions)
@dataclass(frozen=True)
class Json:
    """Score 1 for the JSON that was asked for, else 0."""

    options: JsonOptions
    schemas: dict[str, Schema] = field(default_factory=dict)
    """Those read so far."""

    def __call__(self, case: Case) -> Judgement:
        """Parse, then check the schema, then compare with the gold value."""
        try:
            schema = self._schema(case.columns)
            gold = None if self.options.match == "none" or case.gold is None else gold_value(case.gold)
        except BadSchema as fault:
            return verifier_error(str(fault))
        except JsonFault as fault:
            return verifier_error(f"the gold answer is {fault}")
        compares = self.options.match in ("equal", "subset") or (self.options.match == "auto" and case.gold is not None)
        if self.options.match in ("equal", "subset") and case.gold is None:
            return verifier_error("the gold answer is missing")
        if schema is None and not compares and not self.options.parse_only:
            return verifier_error("the row has neither a schema nor a gold answer, and parse_only is off")
        spoken = after_thinking(case)
        if spoken.text is None or not spoken.text.strip():
            return no_answer(spoken.why or "the completion is empty")
        try:
            value = find_json(spoken.text, self.options.place, self.options.tag)
            fault = schema.fault(value) if schema is not None else None
        except JsonFault as wrong:
            return Judgement(0.0, message=str(wrong))
        except BadSchema as wrong:
            return verifier_error(str(wrong))
        answer = canonical_json(value)
        if fault is not None:
            return Judgement(0.0, "scored", answer, fault)
        subset = self.options.match == "subset"
        if compares and not json_equal(gold, value, any_order=self.options.any_order, subset=subset):
            return Judgement(0.0, "scored", answer, f"not {canonical_json(gold)[:80]}")
        return Judgement(1.0, "scored", answer)

    def canary(self, gold: Any) -> str:
        """The gold value where the verifier looks for it."""
        text = gold if isinstance(gold, str) and gold else json.dumps(gold if gold != "" else {})
        if self.options.place == "fence":
            return f"```json\n{text}\n```"
        return f"<{self.options.tag}>{text}</{self.options.tag}>" if self.options.place == "tagged" else text

    def _schema(self, columns: Mapping[str, Any]) -> Schema | None:
        given = column_at(columns, self.options.schema_column)
        given = self.options.json_schema if given is None else given
        if given is None:
            return None
        key = schema_key(given)
        if key not in self.schemas:
            self.schemas[key] = read_schema(given)
        return self.schemas[key]


def gold_value(gold: Any) -> Any:
    """The gold answer as a JSON value: of a text, what it says as JSON; raises :class:`JsonFault`.

    >>> gold_value('{"a": 1}'), gold_value([1, 2])
    ({'a': 1}, [1, 2])
    """
    return read_json(gold) if isinstance(gold, str) else gold
