"""Where a row holds its question and its right answer: the column conventions of the field.

=================  ===========================================  =====================================
convention         question                                     right answer
=================  ===========================================  =====================================
``trl``            ``prompt``: text, or a list of messages      ``answer``, or what ``reward.gold`` names
``verl``           ``prompt``: a list of messages               ``reward_model.ground_truth``
``open_instruct``  ``messages``, a last assistant turn dropped  ``ground_truth``; a list of one is unpacked
=================  ===========================================  =====================================

``trl`` is also the plain convention: a ``prompt`` column and anything else. Every original column is kept;
the right answer, where known, is offered under ``answer`` as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from assay.data.rows import Row
from assay.errors import UserError, nearest
from assay.records import Message
from assay.registry import Registry


@dataclass(frozen=True)
class Question:
    """What a row asks, before rendering."""

    messages: tuple[Message, ...]
    """The conversation, ending before the answer; a text prompt is one user message."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The row's columns, with the right answer under ``answer`` where it is known."""


class Convention(Protocol):
    """How one family of data sets names its columns."""

    def recognises(self, columns: Mapping[str, Any], prompt: str) -> bool:
        """Do a row's columns look like this convention? ``prompt`` is the recipe's prompt column."""
        ...

    def prompt(self, columns: Mapping[str, Any], prompt: str) -> Any:
        """The question as the row has it (text or messages); raises KeyError with the missing column."""
        ...

    def gold(self, columns: Mapping[str, Any]) -> Any:
        """The right answer by this convention, or ``None``."""
        ...


CONVENTIONS: Registry[Convention] = Registry("data format")
"""Conventions by name; ``auto`` takes the first, in this order, that recognises the row."""


class VerlConvention:
    """verl's: a list of messages, and the right answer inside ``reward_model``."""

    def recognises(self, columns: Mapping[str, Any], prompt: str) -> bool:
        """By ``reward_model.ground_truth``, which nobody else has."""
        return column_at(columns, "reward_model.ground_truth") is not None and prompt in columns

    def prompt(self, columns: Mapping[str, Any], prompt: str) -> Any:
        """The prompt column."""
        return columns[prompt]

    def gold(self, columns: Mapping[str, Any]) -> Any:
        """``reward_model.ground_truth``."""
        return column_at(columns, "reward_model.ground_truth")


class OpenInstructConvention:
    """open-instruct's: ``messages`` with the answer as last turn, and ``ground_truth``."""

    def recognises(self, columns: Mapping[str, Any], prompt: str) -> bool:
        """By its two columns, where there is no prompt column."""
        return "messages" in columns and "ground_truth" in columns and prompt not in columns

    def prompt(self, columns: Mapping[str, Any], prompt: str) -> Any:
        """``messages`` without a last assistant turn: that is the answer."""
        messages = columns["messages"]
        if isinstance(messages, list) and messages and _role(messages[-1]) == "assistant":
            return messages[:-1]
        return messages

    def gold(self, columns: Mapping[str, Any]) -> Any:
        """``ground_truth``; of a list of one, its element."""
        gold = columns.get("ground_truth")
        return gold[0] if isinstance(gold, list) and len(gold) == 1 else gold


class TrlConvention:
    """TRL's, and the plain one: a prompt column and whatever the reward needs."""

    def recognises(self, columns: Mapping[str, Any], prompt: str) -> bool:
        """Always: it is the last to be asked, and says what is missing."""
        return True

    def prompt(self, columns: Mapping[str, Any], prompt: str) -> Any:
        """The prompt column."""
        return columns[prompt]

    def gold(self, columns: Mapping[str, Any]) -> Any:
        """``answer``."""
        return columns.get("answer")


CONVENTIONS.register("verl")(VerlConvention())
CONVENTIONS.register("open_instruct")(OpenInstructConvention())
CONVENTIONS.register("trl")(TrlConvention())


def question_of(row: Row, *, convention: str = "auto", prompt: str = "prompt", gold: str = "answer") -> Question:
    """Find a row's question and right answer.

    Args:
        row: The row. convention: A name in :data:`CONVENTIONS`, or ``auto``. prompt: The column of the
            question (``data.prompt``). gold: The column of the right answer (``reward.gold``); may reach into
            a column, ``extra_info.answer``.

    Raises:
        UserError: no such column, an empty question or one of a wrong type; names file and row.
    """
    names = CONVENTIONS if convention == "auto" else [convention]
    found = next(
        c for c in map(CONVENTIONS.__getitem__, names) if convention != "auto" or c.recognises(row.columns, prompt)
    )
    try:
        asked = found.prompt(row.columns, prompt)
    except KeyError as missing:
        column = missing.args[0]
        raise UserError(
            f"{row.source}: no column {column!r}{nearest(column, row.columns)}; the columns are "
            f"{', '.join(row.columns)}: name the question's with data.prompt"
        ) from None
    return Question(_messages(asked, row.source), _with_gold(row, found, gold))


def column_at(columns: Mapping[str, Any], path: str) -> Any:
    """The column ``path``, or the value inside nested columns that a dotted path leads to, or ``None``.

    >>> column_at({"reward_model": {"ground_truth": "4"}}, "reward_model.ground_truth")
    '4'
    """
    if path in columns:
        return columns[path]
    value: Any = columns
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _with_gold(row: Row, convention: Convention, gold: str) -> dict[str, Any]:
    """The columns, with the right answer under ``answer`` and under ``reward.gold``'s name for it."""
    columns = dict(row.columns)
    answer = column_at(columns, gold)
    if gold == "answer":  # nobody named another column: the convention knows best
        answer = answer if (known := convention.gold(columns)) is None else known
    elif answer is None and gold.partition(".")[0] not in columns:
        raise UserError(
            f"{row.source}: no column {gold!r}{nearest(gold, columns)} for the right answer; the columns are "
            f"{', '.join(columns)}: set reward.gold"
        )
    if answer is None:
        return columns
    if columns.get("answer") not in (None, answer):
        columns["original_answer"] = columns["answer"]
    return {**columns, "answer": answer, gold: answer}


def _messages(asked: Any, source: str) -> tuple[Message, ...]:
    """Check a question and make messages of it."""
    if isinstance(asked, str):
        if not asked.strip():
            raise UserError(f"{source}: the prompt is empty: fill it in or remove the row")
        return ({"role": "user", "content": asked},)
    if not isinstance(asked, Sequence):
        raise UserError(
            f"{source}: the prompt must be text or a list of messages, not {type(asked).__name__}: "
            "mend the row, or name another column with data.prompt"
        )
    if not asked:
        raise UserError(f"{source}: the prompt is empty: fill it in or remove the row")
    messages = tuple(_message(message, i, source) for i, message in enumerate(asked, 1))
    if messages[-1]["role"] == "assistant":
        raise UserError(
            f"{source}: the prompt ends with an assistant turn, which is the model's to write: drop it "
            "(data.format=open_instruct does so for its `messages`)"
        )
    asks = [m["content"] for m in messages if m["role"] == "user"]
    if not asks or not asks[-1].strip():
        raise UserError(f"{source}: the prompt has no user message with text in it: add one or remove the row")
    return messages


def _message(message: Any, number: int, source: str) -> Message:
    role = _role(message)
    if role is None:
        raise UserError(
            f"{source}: message {number} of the prompt must be {{'role': ..., 'content': ...}}, not "
            f"{str(message)[:60]!r}: mend the row"
        )
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(p, Mapping) and p.get("type") == "text" for p in content):
        content = "".join(str(part.get("text") or "") for part in content)
    if not isinstance(content, str):
        raise UserError(
            f"{source}: the content of message {number} ({role}) must be text, not {type(content).__name__}: "
            "mend the row"
        )
    # parquet gives every message of a column the union of all keys, with None where it had none
    return {**{k: v for k, v in message.items() if v is not None}, "content": content}


def _role(message: Any) -> str | None:
    role = message.get("role") if isinstance(message, Mapping) else None
    return role if isinstance(role, str) and role else None
