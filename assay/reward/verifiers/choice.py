r"""``choice``: a letter of a multiple-choice question.

Looked for in this order, and the first place that has a letter decides: the last box, the last
``<answer>``, words like ``Answer: B`` or ``the answer is (B)``, words like ``I would pick B``, and lines
that begin with the letter alone (``B``, ``(B)``, ``B. 12``) and bracketed letters, if all of those agree.
Several letters in an answer's place ("A or B") are a wrong answer; letters elsewhere that disagree are no
answer. A letter inside a word, the article "a" and the pronoun "I" are not options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import field_validator

from assay.recipe.schema import Section
from assay.reward.extraction import after_thinking, boxed, boxes, tagged
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error

_OPEN = r"[\s$*_(\[{\"'`]*"
_LETTER = r"(?<![A-Za-z])(?:\\(?:text|textbf|mathrm|mathbf)\{\(?)?([A-Za-z])(?![A-Za-z'\u2019])"
_STATED = re.compile(
    r"(?i:\b(?:answer|antwort|solution|correct\s+(?:option|choice)|final\s+choice)\b)"
    r"(?:[*_\s]*[:=]|\s+(?i:is|would\s+be|must\s+be|should\s+be|seems\s+to\s+be))(?:\s*:)?"
    rf"(?:\s+(?i:option|choice))?(?P<slot>{_OPEN}{_LETTER}[^\n]*)"
)
_PICKED = re.compile(
    r"(?i:\b(?:pick|choose|select|go\s+with|choice\s+is)\b)(?:\s+(?i:option|choice))?"
    rf"(?P<slot>{_OPEN}{_LETTER}[^\n]*)"
)
_ALONE = re.compile(rf"(?i:(?:option|choice)\s+)?(?P<slot>{_OPEN}{_LETTER}(?:\s*[)\]}}.:*\"'$`][^\n]*)?)")
_BRACKETED = re.compile(r"\(([A-Za-z])\)")
_ALSO = re.compile(rf"[\s*)\]]*(?:,|/|\||\bor\b|\band\b)\s*(?:or\s+|and\s+)?{_OPEN}{_LETTER}")


class ChoiceOptions(Section):
    """Options of ``choice``."""

    letters: str = "ABCDEFGHIJ"
    """The letters of the options, where the row does not list them."""
    column: str = "options"
    """Column with the options: letter -> text, or a list of texts. Rows without it use `letters`."""

    @field_validator("letters")
    @classmethod
    def _are_letters(cls, letters: str) -> str:
        if not letters.isascii() or not letters.isalpha() or not letters.isupper():
            raise ValueError("must be capital letters")
        return letters


@register("choice", ChoiceOptions)
@dataclass(frozen=True)
class Choice:
    """Score 1 for the gold letter alone, else 0."""

    options: ChoiceOptions

    def __call__(self, case: Case) -> Judgement:
        """Find the letter and compare it with the gold one."""
        letters = self._letters(case.columns)
        gold = _gold_letter(case.gold, letters)
        if gold is None:
            return verifier_error(f"the gold answer {str(case.gold)[:60]!r} is none of the letters {letters}")
        spoken = after_thinking(case)
        if spoken.text is None:
            return no_answer(spoken.why)
        found = find_letters(spoken.text, letters)
        if not found:
            return no_answer("no option stated, or several without saying which")
        answer = ", ".join(found)
        return Judgement(float(found == [gold]), "scored", answer, f"{answer}, expected {gold}")

    def canary(self, gold: Any) -> str:
        """The gold letter after ``Answer:``."""
        return f"Answer: {gold}"

    def _letters(self, columns: Mapping[str, Any]) -> str:
        listed = columns.get(self.options.column)
        if isinstance(listed, Mapping) and listed:
            return "".join(str(key).upper() for key in listed if len(str(key)) == 1)
        if isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
            return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(listed)]
        return self.options.letters


def _gold_letter(gold: Any, letters: str) -> str | None:
    match = _ALONE.fullmatch(str(gold).strip()) if gold is not None else None
    letter = match.group(2).upper() if match else ""
    return letter if letter and letter in letters else None


def find_letters(text: str, letters: str) -> list[str]:
    r"""The letter(s) that a text states as its answer; more than one is a hedge, none is no answer.

    >>> find_letters("The answer is B. Note that A is a distractor.", "ABCD")
    ['B']
    >>> find_letters(r"\boxed{\text{D}}", "ABCD"), find_letters("Answer: A or B", "ABCD")
    (['D'], ['A', 'B'])
    >>> find_letters("A is wrong and so is B", "ABCD")
    []
    """
    found, left_open = boxes(text)
    if left_open:
        return []
    if found:
        return _merge(_slot_letters(content, letters) for content in boxed(text))
    if places := tagged(text, "answer"):
        return _slot_letters(places[-1], letters)
    for cue in (_STATED, _PICKED):
        stated = [_slot_letters(match["slot"], letters) for match in cue.finditer(text)]
        if stated := [slot for slot in stated if slot]:
            return stated[-1]
    bracketed = {letter.upper() for letter in _BRACKETED.findall(text)} & set(letters)
    lines = [line.strip() for line in text.splitlines()]
    alone = [_slot_letters(line, letters) for line in lines if _ALONE.fullmatch(line)]
    agreed = {letter for slot in alone for letter in slot} | bracketed
    return sorted(agreed) if len(agreed) == 1 else []


def _slot_letters(slot: str, letters: str) -> list[str]:
    """The letters at the start of an answer's place: one, or several joined by commas, slashes, or/and."""
    first = re.match(rf"(?:(?i:option|choice)\s+)?{_OPEN}{_LETTER}", slot.lstrip())
    if first is None or not _is_option(first, letters):
        return []
    found = [first.group(1).upper()]
    rest = first.string[first.end() :]
    while (more := _ALSO.match(rest)) and _is_option(more, letters):
        found.append(more.group(1).upper())
        rest = rest[more.end() :]
    return list(dict.fromkeys(found))


def _is_option(match: re.Match[str], letters: str) -> bool:
    letter, after = match.group(1), match.string[match.end() :]
    if letter.upper() not in letters:
        return False
    if letter.islower():  # "b", "b)", "b." but not "a good one"
        return not re.match(r"\s*\w|\s+[(\"]", after)
    # "A car ..." and "I think ..." are words; "A because ..." is an option.
    return letter not in "AI" or not re.match(r"\s+(?!because|since|as\b|for\b|or\b|and\b|with\b)[a-z]", after)


def _merge(groups: Any) -> list[str]:
    return list(dict.fromkeys(letter for group in groups for letter in group))
