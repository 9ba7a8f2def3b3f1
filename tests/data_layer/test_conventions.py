"""Questions and right answers are found in every convention's columns; what is missing is named by row."""

from __future__ import annotations

from typing import Any

import pytest

from assay.data.conventions import CONVENTIONS, question_of
from assay.data.rows import Row
from assay.errors import UserError

ASK = {"role": "user", "content": "2+2?"}
SYSTEM = {"role": "system", "content": "Be brief."}
REPLY = {"role": "assistant", "content": "4"}
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [ASK],
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"index": 7, "answer": "long"},
}
OPEN_INSTRUCT = {"messages": [SYSTEM, ASK, REPLY], "ground_truth": ["4"], "dataset": ["gsm8k"]}


def ask(columns: dict[str, Any], **options: Any) -> Any:
    return question_of(Row(columns, "data.jsonl:9", "file"), **options)


def refusal(columns: dict[str, Any], **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        ask(columns, **options)
    assert str(caught.value).startswith("data.jsonl:9: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plain_row() -> None:
    question = ask({"prompt": "2+2?", "answer": 4, "level": "easy"})
    assert question.messages == (ASK,)
    assert question.columns == {"prompt": "2+2?", "answer": 4, "level": "easy"}


def test_trl_conversation() -> None:
    assert ask({"prompt": [SYSTEM, ASK], "answer": "4"}).messages == (SYSTEM, ASK)


@pytest.mark.parametrize("convention", ["auto", "verl"])
def test_verl(convention: str) -> None:
    question = ask(VERL, convention=convention)
    assert question.messages == (ASK,)
    assert question.columns == {**VERL, "answer": "4"}


@pytest.mark.parametrize("convention", ["auto", "open_instruct"])
def test_open_instruct(convention: str) -> None:
    question = ask(OPEN_INSTRUCT, convention=convention)
    assert question.messages == (SYSTEM, ASK)
    assert question.columns == {**OPEN_INSTRUCT, "answer": "4"}


def test_open_instruct_without_a_reply_and_with_several_truths() -> None:
    question = ask({"messages": [ASK], "ground_truth": ["4", "four"], "dataset": "x"})
    assert question.messages == (ASK,)
    assert question.columns["answer"] == ["4", "four"]
    assert ask({"messages": [ASK], "ground_truth": "4"}).columns["answer"] == "4"


def test_auto_is_the_first_that_recognises_and_trl_takes_the_rest() -> None:
    assert list(CONVENTIONS) == ["verl", "open_instruct", "trl"]
    both = {**OPEN_INSTRUCT, "prompt": "3+3?"}
    assert ask(both).messages == ({"role": "user", "content": "3+3?"},)


def test_a_named_gold_column_is_offered_under_answer_and_its_own_name() -> None:
    question = ask({"prompt": "2+2?", "label": "4"}, gold="label")
    assert question.columns == {"prompt": "2+2?", "label": "4", "answer": "4"}
    nested = ask(VERL, gold="extra_info.answer")
    assert nested.columns["answer"] == nested.columns["extra_info.answer"] == "long"


def test_an_answer_column_that_is_not_the_gold_is_kept_aside() -> None:
    question = ask({"prompt": "2+2?", "answer": "two and two is 4", "label": "4"}, gold="label")
    assert question.columns["answer"] == "4"
    assert question.columns["original_answer"] == "two and two is 4"
    assert ask({**VERL, "answer": "why"}).columns["answer"] == "4"


def test_a_row_without_an_answer_offers_none() -> None:
    assert "answer" not in ask({"prompt": "write a poem"}).columns
    assert ask({"prompt": "x", "label": None, "answer": "no"}, gold="label").columns["answer"] == "no"


def test_text_parts_are_joined_and_parquets_nones_dropped() -> None:
    parts = [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]
    question = ask({"prompt": [{"role": "user", "content": parts, "name": None}]})
    assert question.messages == (ASK,)


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ({"promt": "x"}, {}, "did you mean 'promt'"),
        ({"prompt": "x"}, {"prompt": "question"}, "no column 'question'"),
        ({"prompt": "x"}, {"convention": "open_instruct"}, "no column 'messages'"),
        ({"prompt": "x", "lable": "4"}, {"gold": "label"}, "did you mean 'lable'"),
        ({"prompt": "  \n"}, {}, "empty"),
        ({"prompt": []}, {}, "empty"),
        ({"prompt": None}, {}, "not NoneType"),
        ({"prompt": 5}, {}, "not int"),
        ({"prompt": ["2+2?"]}, {}, "message 1"),
        ({"prompt": [ASK, {"content": "x"}]}, {}, "message 2"),
        ({"prompt": [{"role": "user", "content": None}]}, {}, "must be text, not NoneType"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]},
            {},
            "must be text, not list",
        ),
        ({"prompt": [ASK, REPLY]}, {}, "assistant turn"),
        ({"prompt": [SYSTEM]}, {}, "no user message"),
        ({"prompt": [{"role": "user", "content": " "}]}, {}, "no user message"),
        ({"messages": [REPLY], "ground_truth": "4"}, {}, "empty"),
    ],
)
def test_rows_that_cannot_be_asked(columns: dict[str, Any], options: dict[str, Any], says: str) -> None:
    assert says in refusal(columns, **options)


def test_an_unknown_convention() -> None:
    with pytest.raises(UserError, match="did you mean 'verl'"):
        ask(VERL, convention="verll")
