"""``regex``: the completion matches a pattern, or the pattern captures the gold answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import Field, field_validator

from assay.recipe.schema import Section
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error


class RegexOptions(Section):
    """Options of ``regex``."""

    pattern: str
    """A Python regular expression."""
    full: bool = False
    """The whole completion, stripped, must match; else the last match anywhere counts."""
    ignore_case: bool = False
    """Match upper and lower case alike."""
    dotall: bool = False
    """Let `.` match line breaks."""
    compare: bool = False
    """Score the first group (or the whole match) against the gold text, not the mere match."""
    score: float = Field(1.0, allow_inf_nan=False)
    """Score of success; a negative one makes a punishment of the pattern."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{error} in the regular expression") from None
        return pattern


@register("regex", RegexOptions)
@dataclass(frozen=True)
class Regex:
    """Score ``score`` for a match (with ``compare``: of the gold text), else 0."""

    options: RegexOptions

    @property
    def lowest(self) -> float:
        """The least score that it gives."""
        return min(0.0, self.options.score)

    def __call__(self, case: Case) -> Judgement:
        """Search the pattern in the completion."""
        if self.options.compare and (case.gold is None or not str(case.gold).strip()):
            return verifier_error("the gold answer is missing")
        flags = re.IGNORECASE * self.options.ignore_case | re.DOTALL * self.options.dotall
        if self.options.full:
            match = re.fullmatch(self.options.pattern, case.completion.strip(), flags)
        else:
            match = next(reversed(list(re.finditer(self.options.pattern, case.completion, flags))), None)
        if match is None:
            return no_answer("no match") if self.options.compare else Judgement(0.0, message="no match")
        found = (match.group(1) if match.re.groups else match.group()) or ""
        right = not self.options.compare or found.strip() == str(case.gold).strip()
        return Judgement(self.options.score * right, "scored", found.strip())
