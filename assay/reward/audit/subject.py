"""A row under attack: its gold answer, how the verifier wants answers dressed, and what kind of answer it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from assay.data.conventions import column_at, question_of
from assay.data.rows import Row
from assay.errors import UserError
from assay.reward.function import is_function
from assay.reward.verifier import Case, verifiers
from assay.reward.verifiers.number import canonical, gold_number, single_number

Nature = Literal["number", "choice", "json", "code", "text"]
"""What kind of answer the gold is: it decides which forms are equivalent, and which only look so."""

_MARK = "8642097531"
_CODE = ("code",)
_REFERENCES = ("reference", "reference_solution", "canonical_solution", "solution")


@dataclass(frozen=True)
class Dress:
    """What stands before and after an answer where the verifier looks for it."""

    before: str = ""
    after: str = ""

    def __call__(self, answer: str) -> str:
        """A completion that states the answer."""
        return f"{self.before}{answer}{self.after}"

    @property
    def marked(self) -> bool:
        """Is the answer's place marked? Else the whole completion, or its last words, are the answer."""
        return bool(self.before or self.after)


@dataclass(frozen=True)
class Subject:
    """One row, as attacks see it."""

    source: str
    """Where the row is: ``file:row``."""
    case: Case
    """The row with an empty completion."""
    verifier: str
    dress: Dress
    nature: Nature
    gold: str
    """The gold answer as a completion would state it."""
    other: str | None = None
    """The gold answer of another row, where it is another answer."""
    reference: str | None = None
    """The row's own reference solution."""

    @property
    def number(self) -> Fraction | None:
        """The gold answer's value where it is one number."""
        return single_number(self.gold) if self.nature == "number" else None


def dress_of(verifier: str, options: dict[str, Any], form: str | None = None) -> Dress:
    """How a verifier wants answers stated: by its canary, or by ``form``, a text with ``{}`` for the answer.

    Raises :class:`UserError` for a form without ``{}``, and for a verifier that reads no gold answer.
    """
    if form is not None:
        if form.count("{}") != 1:
            raise UserError(f"--form {form!r}: write {{}} once, where the answer stands")
        before, _, after = form.partition("{}")
        return Dress(before, after)
    if is_function(verifier) or verifier in _CODE:
        return Dress()
    canary: Callable[[Any], str] = getattr(verifiers[verifier](options), "canary", str)
    before, found, after = canary(_MARK).partition(_MARK)
    if not found or _MARK in after:
        raise UserError(
            f"verifier {verifier!r} compares with no gold answer, so there is nothing to attack: "
            "audit the part that decides what is right"
        )
    return Dress(before, after)


def subjects(rows: Iterable[Row], verifier: str, dress: Dress, gold: str = "answer") -> Iterator[Subject]:
    """The rows that can be attacked; one without a gold answer is passed over unless it has tests."""
    previous: str | None = None
    for row in rows:
        question = question_of(row, gold=gold)
        answer = column_at(question.columns, gold)
        if answer is None and verifier not in _CODE:
            continue
        nature = nature_of(verifier, answer)
        text = _stated(answer, nature)
        last = question.messages[-1]["content"] if question.messages else ""
        case = Case(
            completion="", gold=answer, prompt=str(last), messages=question.messages, columns=question.columns, tokens=8
        )
        reference = next((str(question.columns[name]) for name in _REFERENCES if question.columns.get(name)), None)
        other = previous if previous is not None and not _same(previous, text) else None
        yield Subject(row.source, case, verifier, dress, nature, text, other, reference)
        previous = text


def nature_of(verifier: str, gold: Any) -> Nature:
    """The kind of answer that a gold is, for a verifier.

    >>> nature_of("math", "7"), nature_of("choice", "B"), nature_of("exact", "Paris"), nature_of("json", '{"a": 1}')
    ('number', 'choice', 'text', 'json')
    """
    if verifier in _CODE:
        return "code"
    if verifier in ("json", "choice"):
        return "json" if verifier == "json" else "choice"
    if verifier in ("number", "gsm8k"):
        return "number"
    return "number" if gold is not None and single_number(str(gold)) is not None else "text"


def _stated(answer: Any, nature: Nature) -> str:
    if answer is None:
        return ""
    if nature == "json":
        import json

        return answer if isinstance(answer, str) else json.dumps(answer)
    number = gold_number(answer) if nature == "number" else None  # GSM8K's gold is a whole solution
    return canonical(number) if number is not None and single_number(str(answer)) is None else str(answer).strip()


def _same(one: str, other: str) -> bool:
    values = single_number(one), single_number(other)
    return one.casefold() == other.casefold() or (values[0] is not None and values[0] == values[1])
