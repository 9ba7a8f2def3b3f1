"""Tool calls in the formats of chat models: right ones and their wrong siblings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reward.verifier import Case, Judgement, verifiers

CALL = {"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}
TWO = [CALL, {"name": "get_time", "arguments": {"zone": "CET"}}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]


def written(call: dict[str, Any], form: str) -> str:
    text = json.dumps(call)
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    return {
        "hermes": f"<tool_call>\n{text}\n</tool_call>",
        "mistral": f"[TOOL_CALLS] [{text}]",
        "llama": "<|python_tag|>" + json.dumps({"name": call["name"], "parameters": call["arguments"]}) + "<|eom_id|>",
        "openai": json.dumps([{"id": "1", "type": "function", "function": function}]),
        "fenced": f"```json\n{text}\n```",
        "json": text,
    }[form]


def judge(completion: str, gold: Any = CALL, tools: Any = None, **options: Any) -> Judgement:
    columns = {} if tools is None else {"tools": tools}
    return verifiers["tool_call"](options)(Case(completion=completion, gold=gold, columns=columns))


FORMS = ["hermes", "mistral", "llama", "openai", "fenced", "json"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("named", [True, False])
def test_each_format_is_read_and_its_wrong_siblings_are_not_right(form: str, named: bool) -> None:
    options = {"form": form} if named else {}
    right = written(CALL, form)
    assert judge(right, **options).score == 1.0
    assert judge(right, json.dumps(CALL), **options).score == 1.0
    wrong = [
        {**CALL, "name": "get_wether"},
        {**CALL, "arguments": {"city": "Oslo", "days": "3"}},
        {**CALL, "arguments": {"city": "Oslo", "days": True}},
        {**CALL, "arguments": {"city": "oslo", "days": 3}},
        {**CALL, "arguments": {"city": "Oslo"}},
        {**CALL, "arguments": {"city": "Oslo", "days": 3, "unit": "C"}},
    ]
    for call in wrong:
        assert judge(written(call, form), **options).score == 0.0, call
    assert judge(right[: len(right) // 2], **options).score == 0.0


def test_the_order_of_arguments_is_free_and_that_of_parallel_calls_unless_asked() -> None:
    turned = {"arguments": {"days": 3, "city": "Oslo"}, "name": "get_weather"}
    assert judge(written(turned, "json")).score == 1.0
    swapped = "\n".join(written(call, "hermes") for call in reversed(TWO))
    assert judge(swapped, TWO).score == 1.0
    assert judge(swapped, TWO, ordered=True).score == 0.0


@pytest.mark.parametrize(
    ("completion", "gold", "outcome"),
    [
        (written(CALL, "hermes"), TWO, 0.0),
        (written(CALL, "hermes") * 2, CALL, 0.0),
        (written(CALL, "hermes"), [], 0.0),
        ("It is warm in Oslo.", [], 1.0),
        ("It is warm in Oslo.", CALL, "no_answer"),
        ("", CALL, "no_answer"),
        (f"<think>{written(CALL, 'hermes')}</think> Done.", CALL, "no_answer"),
        (f"<think>so</think>{written(CALL, 'hermes')}", CALL, 1.0),
        (f"<tool_call>{json.dumps(CALL)}", CALL, 0.0),
        ('{"name": "get_weather", "arguments": {"city": "Oslo", "city": "Oslo", "days": 3}}', CALL, 0.0),
        ('{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3.0}}', CALL, 1.0),
        ('{"name": "get_weather", "arguments": {}, "parameters": {}}', CALL, 0.0),
        ("get_weather(city='Oslo', days=3)", CALL, "no_answer"),
        (written(CALL, "json"), None, "verifier_error"),
        (written(CALL, "json"), "call the weather", "verifier_error"),
        (written(CALL, "json"), {"tool": "x"}, "verifier_error"),
        ('<|python_tag|>{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}',
         [{"name": "b"}, {"name": "a"}], 1.0),
    ],
)  # fmt: skip
def test_table(completion: str, gold: Any, outcome: Any) -> None:
    found = judge(completion, gold)
    assert (found.score if found.outcome == "scored" else found.outcome) == outcome, found.message


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"city": "Oslo"}, 1.0),
        ({"city": "Oslo", "days": 2}, 1.0),
        ({"days": 2}, 0.0),
        ({"city": 5}, 0.0),
        ({"city": "Oslo", "days": 2.5}, 0.0),
        ({"city": "Oslo", "unit": "C"}, 0.0),
    ],
)
def test_calls_against_the_schemas_of_the_tools(arguments: dict[str, Any], right: float) -> None:
    text = written({"name": "get_weather", "arguments": arguments}, "hermes")
    assert judge(text, None, TOOLS, match="schema").score == right
    assert judge(text.replace("get_weather", "get_news"), None, TOOLS, match="schema").score == 0.0


@pytest.mark.parametrize("tools", [None, [], "[", [{"name": "f", "parameters": {"type": "objekt"}}], ["f"]])
def test_tools_that_cannot_be_read_are_the_rows_fault(tools: Any) -> None:
    assert judge(written(CALL, "json"), None, tools, match="schema").outcome == "verifier_error"


def test_words_around_the_calls_are_free_unless_asked() -> None:
    text = f"Let me look.\n{written(CALL, 'hermes')}"
    assert judge(text).score == 1.0
    assert judge(text, bare=True).score == 0.0
    assert judge(written(CALL, "hermes"), bare=True).score == 1.0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(min_size=1, max_size=4), VALUES, max_size=3))
def test_every_call_equals_itself_through_its_canary_and_no_other(arguments: dict[str, Any]) -> None:
    gold = {"name": "f", "arguments": arguments}
    canary = verifiers["tool_call"]({}).canary(gold)
    if "</tool_call>" in json.dumps(arguments):
        return
    assert judge(canary, gold).score == 1.0
    assert judge(canary, {"name": "f", "arguments": {**arguments, "another": 1}}).score == 0.0
    assert judge(canary, {"name": "g", "arguments": arguments}).score == 0.0
