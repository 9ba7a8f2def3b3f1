"""``gsm8k``: the number after ``####``, or in free text where the prompt does not ask for that mark.

Reads currency signs, thousands separators, unit words, a full stop, a worked line (``40+2=42``) and a small sum
(``#### 40+2``); compares exact rationals. Different numbers after several marks are a wrong answer, unless the text
corrects itself in between; a made-up next question is not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from assay.recipe.schema import Section
from assay.reward.commitment import Commitment, committed, hedges
from assay.reward.extraction import Box, after_thinking, before_next_question, boxes
from assay.reward.mathematics.numbers import real_value
from assay.reward.mathematics.reading import read
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error
from assay.reward.verifiers.number import canonical, gold_number, numbers_in

_MOST = 100
"""Marks that are read, from the end."""
_MARK = re.compile(r"####+[ \t]*(?=(?P<slot>[^\n]{0,400}))")
_CUE = re.compile(r"(?i:\banswer|\bresult|\btotal)[*_\s]*(?:[:=]|\bis\b|\bof\b)[*_\s:]*(?=(?P<slot>[^\n]{1,400}))")
_SENTENCE = re.compile(r"(?<=[\w)*$%])[.!?](?=\s|$).*", re.DOTALL)
_ASIDE = re.compile(r"\s\(.*|,?\s(?:because|since|which|as|so)\s.*", re.DOTALL)


class Gsm8kOptions(Section):
    """Options of ``gsm8k``."""

    extract: Literal["auto", "hash", "flexible"] = "auto"
    """`hash` reads only what follows `####`; `flexible` also a box, `The answer is ...` and the last number; `auto`
    is `flexible` where there is a prompt and it does not mention `####`."""


@register("gsm8k", Gsm8kOptions)
@dataclass(frozen=True)
class Gsm8k:
    """Score 1 when the number that the answer gives is the gold one, else 0."""

    options: Gsm8kOptions

    def __call__(self, case: Case) -> Judgement:
        """Find the answer's place, read its number, compare."""
        gold = gold_number(case.gold)
        if gold is None:
            return verifier_error(f"the gold answer {str(case.gold)[:60]!r} is not one number")
        spoken = after_thinking(case)
        if spoken.text is None:
            return no_answer(spoken.why)
        found = self._found(_asked_only(spoken.text), case.prompt)
        numbers = list(dict.fromkeys(number for slot in found.answers for number in slot_numbers(slot)))
        if not numbers:
            return no_answer(
                "no number after ####" if not found.answers else f"no number in {found.answers[-1][:40]!r}"
            )
        answer = ", ".join(canonical(number) for number in numbers)
        fault = "" if numbers == [gold] else f"not {canonical(gold)}"
        if not fault and found.withdrawn:
            fault = "it was taken back"
        return Judgement(float(not fault), "scored", answer, fault)

    def canary(self, gold: Any) -> str:
        """The gold number after the mark."""
        number = gold_number(gold)
        return f"#### {canonical(number if number is not None else Fraction(0))}"

    def _found(self, text: str, prompt: str) -> Commitment:
        """What the text commits to."""
        marked = committed(text, _places(_MARK, text, _line))
        free = self.options.extract == "flexible" or (
            self.options.extract == "auto" and prompt and "####" not in prompt
        )
        if marked.answers or not free:
            return marked
        for places in (boxes(text)[0][-_MOST:], _places(_CUE, text, _statement)):
            found = committed(text, [p for p in places if slot_numbers(p.content)])
            if found.answers:
                return found
        return Commitment(tuple(_last_numbers(text)))


def _asked_only(text: str) -> str:
    """The text up to where a next question was made up, after an answer was given."""
    first = re.search(r"####|\banswer\b|\d", text, re.IGNORECASE)
    return before_next_question(text, first.end()) if first else text


def _places(pattern: re.Pattern[str], text: str, trim: Callable[[str], str]) -> list[Box]:
    """Every mark with what it says, up to where that ends."""
    trimmed = [(match, trim(match["slot"])) for match in list(pattern.finditer(text))[-_MOST:]]
    return [Box(slot.strip("*_ `!"), match.start(), match.end() + len(slot)) for match, slot in trimmed]


def _line(slot: str) -> str:
    return _ASIDE.sub("", slot)


def _statement(slot: str) -> str:
    return _line(_SENTENCE.sub("", slot))


def slot_numbers(slot: str) -> list[Fraction]:
    r"""The numbers that stand in an answer's place: one, or several that compete.

    >>> [[str(n) for n in slot_numbers(s)] for s in ("$31.00", "12 apples", "40 + 2 = 42", "40 or 42", "84/2", "5 1/2")]
    [['31'], ['12'], ['42'], ['40', '42'], ['42'], ['11/2']]
    """
    slot = re.sub(r"<<[^<>]*>>", "", slot)  # GSM8K's calculator
    for reading in read(slot)[:1]:
        values = [real_value(item.values[-1]) if item.values else None for item in reading.items]
        if values and all(isinstance(value, Fraction) for value in values):
            return [value for value in values if isinstance(value, Fraction)]
    numbers = numbers_in(slot.rpartition("=")[2]) or numbers_in(slot)
    return numbers[:2] if hedges(slot) else numbers[:1]


def _last_numbers(text: str) -> list[str]:
    """The last number of a text, with the one before it where the two are alternatives."""
    numbers = numbers_in(text)
    if not numbers:
        return []
    offered = hedges(text)
    if offered and numbers_in(offered[-1][1]) == numbers[-1:]:
        return list(offered[-1])
    return [canonical(numbers[-1])]
