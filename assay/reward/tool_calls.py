"""Calls of tools in a completion, in the formats that chat models write: text -> names and arguments.

=========  ==============================================================================
format     example
=========  ==============================================================================
hermes     ``<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>`` (also Qwen's)
mistral    ``[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]``
llama      ``<|python_tag|>{"name": "f", "parameters": {"x": 1}}``, several parted by ``;``
openai     ``[{"type": "function", "function": {"name": "f", "arguments": "{\\"x\\": 1}"}}]``
fenced     a code fence of JSON: a call, or a list of calls
json       the whole text is JSON: a call, or a list of calls
=========  ==============================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from assay.reward.strict_json import JsonFault, fenced, read_json

Format = Literal["auto", "hermes", "mistral", "llama", "openai", "fenced", "json"]
"""How calls are written; ``auto`` takes the one whose mark is there."""

_HERMES = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_ENDS = ("<|eom_id|>", "<|eot_id|>", "<|im_end|>", "</s>")


@dataclass(frozen=True)
class ToolCall:
    """One call."""

    name: str
    arguments: Mapping[str, Any]


class CallFault(ValueError):
    """A call is there, or begun, and cannot be read; the message says why."""


def find_calls(text: str, form: Format = "auto") -> list[ToolCall]:
    """The calls of a text, in order; none is an empty list. Raises :class:`CallFault` for broken ones.

    >>> find_calls('Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    [ToolCall(name='add', arguments={'a': 1})]
    >>> find_calls("It is sunny."), find_calls('[TOOL_CALLS] [{"name": "f", "arguments": {}}]')[0].name
    ([], 'f')
    """
    for end in _ENDS:
        text = text.strip().removesuffix(end).strip()
    read = _READERS[_form_of(text) if form == "auto" else form]
    try:
        return read(text)
    except JsonFault as fault:
        raise CallFault(f"a call that is {fault}") from None


def _form_of(text: str) -> str:
    if "<tool_call>" in text or "</tool_call>" in text:
        return "hermes"
    if "[TOOL_CALLS]" in text:
        return "mistral"
    if "<|python_tag|>" in text:
        return "llama"
    return "fenced" if "```" in text else "json"


def _hermes(text: str) -> list[ToolCall]:
    if text.count("<tool_call>") != text.count("</tool_call>"):
        raise CallFault("a <tool_call> that is not closed")
    found = _HERMES.findall(text)
    if len(found) != text.count("<tool_call>"):
        raise CallFault("a <tool_call> inside another")
    return [call for content in found for call in as_calls(read_json(content))]


def _mistral(text: str) -> list[ToolCall]:
    pieces = text.split("[TOOL_CALLS]")[1:]
    return [call for piece in pieces for call in as_calls(read_json(piece))]


def _llama(text: str) -> list[ToolCall]:
    if "<|python_tag|>" not in text:
        return _json(text)
    calls: list[ToolCall] = []
    for piece in re.split(r";\s*(?=\{)", text.partition("<|python_tag|>")[2]):
        calls += as_calls(read_json(piece))
    return calls


def _fenced(text: str) -> list[ToolCall]:
    if text.count("```") % 2:
        raise CallFault("a code fence that is not closed")
    return [call for content in fenced(text) if content.lstrip()[:1] in "{[" for call in as_calls(read_json(content))]


def _json(text: str) -> list[ToolCall]:
    if text.lstrip()[:1] not in ("{", "["):
        return []
    pieces = re.split(r";\s*(?=\{)", text) if text.lstrip().startswith("{") else [text]
    try:
        return as_calls(read_json(text))
    except JsonFault:
        if len(pieces) == 1:
            raise
    return [call for piece in pieces for call in as_calls(read_json(piece))]


_READERS: Mapping[str, Callable[[str], list[ToolCall]]] = {
    "hermes": _hermes,
    "mistral": _mistral,
    "llama": _llama,
    "openai": _json,
    "fenced": _fenced,
    "json": _json,
}


def as_calls(value: Any) -> list[ToolCall]:
    """The calls that a JSON value is: one call, a list of them, or an object with ``tool_calls``.

    A call is ``{"name", "arguments"}``, with ``parameters`` or ``args`` for the second, or is wrapped in
    ``function``; arguments may be JSON in a text. Raises :class:`CallFault` for anything else.
    """
    if isinstance(value, Mapping) and "tool_calls" in value:
        value = value["tool_calls"]
    if isinstance(value, (list, tuple)):
        return [call for one in value for call in as_calls(one)]
    if not isinstance(value, Mapping):
        raise CallFault(f"a call that is no object, but {str(value)[:40]!r}")
    inner = value.get("function")
    if isinstance(inner, Mapping):
        value = inner
    elif isinstance(inner, str) and "name" not in value:
        value = {**value, "name": inner}
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise CallFault("a call without a name")
    given = [key for key in ("arguments", "parameters", "args") if key in value]
    if len(given) > 1:
        raise CallFault(f"a call of {name!r} with both {given[0]} and {given[1]}")
    arguments = value[given[0]] if given else {}
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments) if arguments.strip() else {}
        except JsonFault as fault:
            raise CallFault(f"arguments of {name!r}: {fault}") from None
    if not isinstance(arguments, Mapping):
        raise CallFault(f"arguments of {name!r} that are no object")
    return [ToolCall(name, dict(arguments))]
