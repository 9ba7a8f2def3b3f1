"""``tool_call``: the completion calls the right tools with the right arguments, or calls that fit their schemas.

Accepts: the expected calls in a known chat format (see :mod:`assay.reward.tool_calls`), arguments in any order,
parallel calls in any order unless ``ordered``, words around them unless ``bare``. Rejects: another name, an
argument that is missing, extra or of another type (``"5"`` is not 5, ``true`` is not 1; 1.0 equals 1), a call
too many or too few, a call that cannot be read. An empty list of expected calls means that nothing may be
called. Calls inside the thinking do not count. The gold answer is a call, a list of calls, or these as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.data.conventions import column_at
from assay.recipe.schema import Section
from assay.reward.extraction import after_thinking
from assay.reward.json_schema import BadSchema, Schema, read_schema, schema_key
from assay.reward.strict_json import JsonFault, canonical_json, json_equal, read_json, same_bag
from assay.reward.tool_calls import CallFault, Format, ToolCall, as_calls, find_calls
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error


class ToolCallOptions(Section):
    """Options of ``tool_call``."""

    form: Format = "auto"
    """How calls are written: `hermes` (and Qwen), `mistral`, `llama`, `openai`, `fenced`, `json`; `auto` takes the one
    whose mark is there."""
    match: Literal["calls", "schema"] = "calls"
    """`calls`: equal to the gold calls; `schema`: at least one call, each to a known tool and fitting its schema."""
    tools_column: str = "tools"
    """Column with the tools (a list as in OpenAI's chat format); `schema` needs it, `calls` does not read it."""
    ordered: bool = False
    """Parallel calls must come in the order of the gold ones."""
    bare: bool = False
    """No words may stand around the calls."""


@register("tool_call", ToolCallOptions)
@dataclass(frozen=True)
class ToolCallVerifier:
    """Score 1 for exactly the calls that were asked for, else 0."""

    options: ToolCallOptions
    schemas: dict[str, Schema] = field(default_factory=dict)
    """Those read so far."""

    def __call__(self, case: Case) -> Judgement:
        """Read the expected calls or the tools, then the completion's calls, then compare."""
        try:
            expected = expected_calls(case.gold) if self.options.match == "calls" else []
            tools = self._tools(case.columns) if self.options.match == "schema" else {}
        except (CallFault, JsonFault, BadSchema) as fault:
            return verifier_error(f"the row's calls or tools: {fault}")
        spoken = after_thinking(case)
        if spoken.text is None or not spoken.text.strip():
            return no_answer(spoken.why or "the completion is empty")
        try:
            calls = find_calls(spoken.text, self.options.form)
        except CallFault as fault:
            return Judgement(0.0, message=str(fault))
        if not calls and (expected or self.options.match == "schema"):
            return no_answer("no call")
        answer = canonical_json([{"name": call.name, "arguments": call.arguments} for call in calls])
        try:
            fault = self._schema_fault(calls, tools) if self.options.match == "schema" else self._fault(calls, expected)
        except BadSchema as wrong:
            return verifier_error(str(wrong))
        if not fault and self.options.bare and calls and not _is_bare(spoken.text):
            fault = "words around the calls"
        return Judgement(float(not fault), "scored", answer, fault)

    def canary(self, gold: Any) -> str:
        """The gold calls in Hermes' format."""
        try:
            calls = expected_calls(gold)
        except (CallFault, JsonFault):
            return str(gold)
        written = [canonical_json({"name": call.name, "arguments": call.arguments}) for call in calls]
        return "\n".join(f"<tool_call>{call}</tool_call>" for call in written) or "No call is needed."

    def _fault(self, calls: list[ToolCall], expected: list[ToolCall]) -> str:
        if len(calls) != len(expected):
            return f"{len(calls)} calls, not {len(expected)}"
        found = [{"name": call.name, "arguments": call.arguments} for call in calls]
        wanted = [{"name": call.name, "arguments": call.arguments} for call in expected]
        if json_equal(wanted, found) or (not self.options.ordered and _same_calls(wanted, found)):
            return ""
        names = sorted(call.name for call in calls), sorted(call.name for call in expected)
        return "other arguments, or another order" if names[0] == names[1] else f"calls {', '.join(names[0])}"

    def _tools(self, columns: Mapping[str, Any]) -> dict[str, Schema]:
        tools = column_at(columns, self.options.tools_column)
        tools = read_json(tools) if isinstance(tools, str) else tools
        if not isinstance(tools, (list, tuple)) or not tools:
            raise BadSchema(f"the column {self.options.tools_column!r} has no list of tools")
        found: dict[str, Schema] = {}
        for tool in tools:
            inner = tool.get("function", tool) if isinstance(tool, Mapping) else {}
            if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
                raise BadSchema("a tool without a name")
            # Arguments that a tool does not declare are refused unless its schema speaks of them.
            parameters = {"additionalProperties": False, **(inner.get("parameters") or {"type": "object"})}
            key = schema_key(parameters)
            if key not in self.schemas:
                self.schemas[key] = read_schema(parameters)
            found[inner["name"]] = self.schemas[key]
        return found

    def _schema_fault(self, calls: list[ToolCall], tools: Mapping[str, Schema]) -> str:
        for call in calls:
            if call.name not in tools:
                return f"there is no tool {call.name[:60]!r}"
            if fault := tools[call.name].fault(call.arguments):
                return f"{call.name}: {fault}"
        return ""


def expected_calls(gold: Any) -> list[ToolCall]:
    """The calls that a gold answer names; raises :class:`CallFault` or ``JsonFault`` for one that names none.

    >>> expected_calls('{"name": "f", "arguments": {"x": 1}}'), expected_calls([])
    ([ToolCall(name='f', arguments={'x': 1})], [])
    """
    if gold is None:
        raise CallFault("the gold answer is missing")
    return as_calls(read_json(gold) if isinstance(gold, str) else json.loads(json.dumps(gold)))


def _same_calls(wanted: list[dict[str, Any]], found: list[dict[str, Any]]) -> bool:
    """Are they the same calls, in any order? Arrays inside of the arguments keep theirs."""
    return same_bag([canonical_json(call) for call in wanted], [canonical_json(call) for call in found])


def _is_bare(text: str) -> bool:
    stripped = text.strip()
    ends = ("}", "]", "</tool_call>", "```", "<|eom_id|>", "<|eot_id|>", "<|im_end|>", "</s>")
    return stripped.startswith(("<tool_call>", "[", "{", "<|python_tag|>", "```")) and stripped.endswith(ends)
