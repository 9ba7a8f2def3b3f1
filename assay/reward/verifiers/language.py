"""``language``: the share of a completion's words that are in the wanted language; against mixing languages.

A word counts when its letters belong to the language's scripts. When the words as a whole clearly speak for
another language of the same script, the score is 0. Code blocks, formulas and single Latin letters are no
language and are left out. Without a word: ``no_answer``. Accepts: the wanted language, with names and numbers.
Left out: foreign words in the wanted script that are fewer than the wanted language's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, field_validator

from assay.data.conventions import column_at
from assay.errors import UserError
from assay.recipe.schema import Section
from assay.reward.extraction import after_thinking
from assay.reward.language_guess import LANGUAGES, guess, is_in, language_code, script
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error

_NO_LANGUAGE = re.compile(
    r"`[^`\n]*`|\$\$[^$]*\$\$|\$[^$\n]*\$|\\\(.{0,999}?\\\)|\\\[.{0,999}?\\\]"
    r"|\\[A-Za-z]+(?:\{[^{}]*\})*|</?\w+>|https?://\S+",
    re.DOTALL,
)
_RUN = re.compile(r"\w+")


class LanguageOptions(Section):
    """Options of ``language``."""

    language: str = "en"
    """The wanted language: ISO 639-1 code or English name."""
    column: str = ""
    """Column that names each row's language instead."""
    scope: Literal["whole", "answer"] = "whole"
    """Judge the `whole` completion with its thinking, or only the `answer` after it."""
    threshold: float | None = Field(None, gt=0, le=1)
    """Score 1 from this share on, else 0; absent: the share itself."""

    @field_validator("language")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            return language_code(name)
        except UserError as error:
            raise ValueError(str(error)) from None


@register("language", LanguageOptions)
@dataclass(frozen=True)
class LanguageShare:
    """Score the share of words in the language's script; 0 when the words are another language's.

    >>> judge = LanguageShare(LanguageOptions(language="ru"))
    >>> judge(Case(completion="это был the кот")).score, judge(Case(completion="это $x+1$")).score
    (0.75, 1.0)
    """

    options: LanguageOptions

    def __call__(self, case: Case) -> Judgement:
        """Strip what is no language, then count words by script."""
        code = self.options.language
        if self.options.column:
            named = column_at(case.columns, self.options.column)
            try:
                code = language_code(str(named))
            except UserError as error:
                return verifier_error(str(error))
        text = case.completion
        if self.options.scope == "answer":
            spoken = after_thinking(case)
            if spoken.text is None:
                return no_answer(spoken.why)
            text = spoken.text
        text = _NO_LANGUAGE.sub(" ", " ".join(text.split("```")[::2]))  # every second piece is code
        share, count = word_share(text, code)
        if not count:
            return no_answer("no words")
        message = f"{share:.0%} of {count} words in {code}"
        if share >= 0.5 and not is_in(_own(text, code), code):
            share, message = 0.0, f"{guess(text) or 'another language'}, not {code}"
        if self.options.threshold is not None:
            share = float(share >= self.options.threshold)
        return Judgement(share, message=message)

    def canary(self, gold: Any) -> str:
        """Any text: what is tried is whether a verdict comes."""
        return "canary"


def word_share(text: str, code: str) -> tuple[float, int]:
    """The share of words whose letters are all of the language's scripts, and the number of words.

    A run of letters without blanks between scripts is parted where the script changes; a Chinese or Japanese
    letter is a word; a single Latin letter is a symbol.

    >>> word_share("這是test吗 x", "zh")
    (0.75, 4)
    """
    right = total = 0
    for run in _pieces(text):
        total += 1
        right += script(run[0]) in LANGUAGES[code].scripts
    return (right / total if total else 0.0), total


def _pieces(text: str) -> list[str]:
    found: list[str] = []
    for run in _RUN.findall(text):
        piece = ""
        for letter in run:
            kind = script(letter)
            if piece and kind and (kind != script(piece[0]) or kind == "CJK"):
                found.append(piece)
                piece = ""
            piece += letter if kind else ""
        found.append(piece)
    return [piece for piece in found if piece and not (len(piece) == 1 and script(piece) == "LATIN")]


def _own(text: str, code: str) -> str:
    """The words of the language's scripts alone: which of the languages of that script are they?"""
    return " ".join(
        run for run in re.findall(r"[^\s.,!?;:()\"]+", text) if any(script(c) in LANGUAGES[code].scripts for c in run)
    )
