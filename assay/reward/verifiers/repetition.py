"""``repetition``: a punishment of repeated n-grams of words (as in Yeo et al. 2025, arXiv:2502.03373).

Score 0 for text without repeats, down to ``-penalty``: minus the penalty times the share of n-grams that stood
before in the text, beyond the share that is ``free``. The whole completion counts, its thinking too: that is
where loops begin. Never above 0, so it cannot be farmed. Letters that stand alone (``aaaa`` is one word) are
caught by ``run``: more equal characters than that in a row count as a repeat of everything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from assay.recipe.schema import Section
from assay.reward.prose import words
from assay.reward.verifier import Case, Judgement, register


class RepetitionOptions(Section):
    """Options of ``repetition``."""

    n: int = Field(4, ge=1)
    """Words of an n-gram."""
    penalty: float = Field(1.0, gt=0)
    """The punishment of a text that only repeats."""
    free: float = Field(0.0, ge=0, lt=1)
    """Share of repeated n-grams that costs nothing."""
    run: int = Field(80, ge=2)
    """Longest run of one character (blanks aside) that is not taken for a loop."""


@register("repetition", RepetitionOptions)
@dataclass(frozen=True)
class Repetition:
    """Score ``-penalty * max(0, share - free) / (1 - free)``, share = 1 - distinct n-grams / n-grams.

    >>> judge = Repetition(RepetitionOptions(n=2))
    >>> judge(Case(completion="a b a b a")).score, judge(Case(completion="one two three")).score
    (-0.5, 0.0)
    """

    options: RepetitionOptions

    @property
    def lowest(self) -> float:
        """The least score that it gives."""
        return -self.options.penalty

    def __call__(self, case: Case) -> Judgement:
        """Count the n-grams, whatever their case."""
        if re.search(rf"([^\s])\1{{{self.options.run},}}", case.completion):
            return Judgement(-self.options.penalty, message=f"more than {self.options.run} equal characters in a row")
        said = [word.casefold() for word in words(case.completion)]
        grams = list(zip(*(said[i:] for i in range(self.options.n)), strict=False))
        share = 1 - len(set(grams)) / len(grams) if grams else 0.0
        over = max(0.0, share - self.options.free) / (1 - self.options.free)
        return Judgement(-self.options.penalty * over if over else 0.0, message=f"{share:.0%} of {len(grams)} repeated")

    def canary(self, gold: Any) -> str:
        """Any text: what is tried is whether a verdict comes."""
        return "canary"
