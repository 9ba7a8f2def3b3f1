"""A line of a file of completions -> the case, the verifier and its options.

A line is an object with ``completion`` and ``gold``; ``kind`` says what is asked for, ``tests`` what the answer must
pass, ``prompt`` (or ``tests.question``) how it was asked. Each kind of line has one reader here, so that whatever
scores a file reads it in the same way. A kind without a reader is the name of a verifier without options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.errors import UserError, nearest
from assay.records import Finish
from assay.registry import Registry
from assay.reward.function import is_function
from assay.reward.json_request import comparison_asked, place_asked, type_asked
from assay.reward.verifier import Case, verifiers

_OTHER_TEXT = re.compile(r"text [^.;]*\b(?:is|are|may)\b(?! not)[^.;]*\b(?:allowed|fine|ok|stand)\b", re.IGNORECASE)
_FINISHES: tuple[Finish, ...] = ("stop", "length", "cancelled", "error")


@dataclass(frozen=True)
class Plan:
    """How the lines of one kind are judged."""

    verifier: str
    """Name of the verifier."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Its options."""
    prompt: str | None = None
    """What the model was shown, where the tests say more of it than the question does."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Columns that the verifier reads."""


@dataclass(frozen=True)
class ScoredLine:
    """A line ready to be judged: ``verifiers[verifier](options)(case)``."""

    id: str
    verifier: str
    options: Mapping[str, Any]
    case: Case


Reader = Callable[[Mapping[str, Any], str], Plan]
"""The line's ``tests`` and its question -> how it is judged."""

readers: Registry[Reader] = Registry("kind of line")
"""Readers by kind."""


@readers.register("math")
def math(tests: Mapping[str, Any], question: str) -> Plan:
    r"""Without a question the prompt asked for ``\boxed{}``; a question may allow other places."""
    return Plan("math", {"extract": "auto" if question else "boxed"})


@readers.register("gsm8k")
def gsm8k(tests: Mapping[str, Any], question: str) -> Plan:
    """Without a question the prompt asked for ``####``; one that does not name it leaves the form free."""
    return Plan("gsm8k")


@readers.register("choice")
def choice(tests: Mapping[str, Any], question: str) -> Plan:
    """``tests.options``: letter -> text."""
    return Plan("choice", columns={"options": tests["options"]} if "options" in tests else {})


@readers.register("format")
def form(tests: Mapping[str, Any], question: str) -> Plan:
    """``tests.template``; ``prefilled`` is what the chat template wrote of the answer; ``eos`` is no content."""
    options = {key: tests[key] for key in ("template", "eos") if key in tests}
    options["loose"] = any(_OTHER_TEXT.search(str(rule)) for rule in tests.get("rules") or ())
    return Plan("format", options, prompt=question + tests.get("prefilled", ""))


@readers.register("length")
def length(tests: Mapping[str, Any], question: str) -> Plan:
    """``tests.unit`` with ``min``, ``max``: how long the answer may be."""
    return Plan("length", {key: tests[key] for key in ("unit", "min", "max") if key in tests})


@readers.register("json")
def structured(tests: Mapping[str, Any], question: str) -> Plan:
    """``tests.schema``; ``instruction``: where the JSON may stand; ``compare``: how it is held against the gold."""
    request = tests.get("instruction") or question
    place, tag = place_asked(request)
    options = {"place": place, "tag": tag}
    if tests.get("compare"):
        options |= comparison_asked(str(tests["compare"]))
    elif tests.get("schema") is None:
        options |= {"parse_only": True, "json_schema": type_asked(request)}
    return Plan("json", options, columns={"schema": tests.get("schema")})


@readers.register("ifeval")
def instructions(tests: Mapping[str, Any], question: str) -> Plan:
    """``tests.constraints``: the instructions with their arguments."""
    return Plan("ifeval", columns={"constraints": tests["constraints"]} if "constraints" in tests else {})


def read_line(row: Mapping[str, Any], where: str, verifier: str | None = None) -> ScoredLine:
    """Read one line; ``verifier`` overrules its kind; ``where`` (file and line) opens what an error says.

    Raises :class:`UserError` for a line without a completion, a wrong kind of field, or an unknown kind.

    >>> line = read_line({"kind": "gsm8k", "completion": "#### 7", "gold": "7"}, "a.jsonl:1")
    >>> line.id, line.verifier, line.case.gold
    ('a.jsonl:1', 'gsm8k', '7')
    """
    completion, tests = row.get("completion"), row.get("tests") or {}
    if not isinstance(completion, str):
        raise UserError(f"{where}: 'completion' must be a text, not {completion!r}")
    if not isinstance(tests, Mapping):
        raise UserError(f"{where}: 'tests' must be an object, not {tests!r}")
    question, messages = _question(row, tests)
    plan = _plan(verifier or row.get("kind"), tests, question, where)
    columns = {**{key: value for key, value in row.items() if key not in ("completion", "gold")}, **plan.columns}
    finish = tests.get("finish_reason", row.get("finish_reason", "stop"))
    case = Case(
        completion=completion,
        gold=row.get("gold"),
        prompt=question if plan.prompt is None else plan.prompt,
        messages=messages,
        columns=columns,
        finish=finish if finish in _FINISHES else "stop",
    )
    return ScoredLine(str(row.get("id", where)), plan.verifier, plan.options, case)


def _question(row: Mapping[str, Any], tests: Mapping[str, Any]) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    prompt = row.get("prompt") or tests.get("question") or ""
    if isinstance(prompt, str):
        return prompt, ()
    messages = tuple(message for message in prompt if isinstance(message, Mapping))
    return "\n".join(str(message.get("content") or "") for message in messages), messages


def _plan(kind: Any, tests: Mapping[str, Any], question: str, where: str) -> Plan:
    if not isinstance(kind, str):
        raise UserError(f"{where}: no 'kind'; name a verifier: {', '.join(sorted(verifiers))}")
    if is_function(kind):
        return Plan(kind)
    if kind in readers:
        return readers[kind](tests, question)
    if kind in verifiers:
        return Plan(kind)
    known = sorted({*readers, *verifiers})
    raise UserError(f"{where}: unknown kind {kind!r}{nearest(kind, known)}; known: {', '.join(known)}")
