"""``exact``: the answer is the gold text, but for white space and, if asked, case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.recipe.schema import Section
from assay.reward.extraction import Place, extract, place_answer
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error


class ExactOptions(Section):
    """Options of ``exact``."""

    extract: Place = "whole"
    """Where the answer stands: `whole` completion, `last_line`, `tagged` or `boxed`."""
    tag: str = "answer"
    """The tag that `tagged` reads."""
    ignore_case: bool = False
    """Take upper and lower case for the same."""
    collapse_whitespace: bool = True
    """Take any run of white space for one blank; ends are always stripped."""


@register("exact", ExactOptions)
@dataclass(frozen=True)
class Exact:
    """Score 1 when answer and gold are the same text after the chosen normalisation, else 0."""

    options: ExactOptions

    def __call__(self, case: Case) -> Judgement:
        """Compare the normalised answer with the normalised gold text."""
        if case.gold is None or isinstance(case.gold, (dict, list, tuple)):
            return verifier_error(f"the gold answer must be a text, not {type(case.gold).__name__}")
        gold = self._normalise(str(case.gold))
        if not gold:
            return verifier_error("the gold answer is empty")
        found = extract(case, self.options.extract, self.options.tag)
        if found.text is None:
            return no_answer(found.why)
        answer = self._normalise(found.text)
        right = answer == gold
        return Judgement(float(right), "scored", answer, "" if right else f"not {gold[:60]!r}")

    def canary(self, gold: Any) -> str:
        """The gold text where the verifier looks for it."""
        return place_answer(str(gold), self.options.extract, self.options.tag)

    def _normalise(self, text: str) -> str:
        text = " ".join(text.split()) if self.options.collapse_whitespace else text.strip()
        return text.casefold() if self.options.ignore_case else text
