"""``length``: DAPO's soft punishment of answers near the cap (Yu et al. 2025, arXiv:2503.14476, eq. 13)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from assay.recipe.schema import Section
from assay.reward.verifier import Case, Judgement, register, verifier_error


class LengthOptions(Section):
    """Options of ``length``."""

    buffer: float = Field(0.2, gt=0, le=1)
    """The last share of `max_tokens`, over which the punishment grows."""
    penalty: float = Field(1.0, ge=0)
    """The punishment at the cap."""


@register("length", LengthOptions)
@dataclass(frozen=True)
class Length:
    """Score 0 up to ``max_tokens * (1 - buffer)`` tokens, then linear, to ``-penalty`` at ``max_tokens``.

    >>> judge = Length(LengthOptions(buffer=0.25))
    >>> [judge(Case(completion="", tokens=n, max_tokens=80)).score for n in (10, 60, 70, 80)]
    [0.0, 0.0, -0.5, -1.0]
    """

    options: LengthOptions

    def __call__(self, case: Case) -> Judgement:
        """Shape by the completion's number of tokens."""
        if case.max_tokens <= 0:
            return verifier_error("the longest allowed length is unknown")
        free = case.max_tokens * (1 - self.options.buffer)
        over = min(max(case.tokens - free, 0.0) / (case.max_tokens - free), 1.0)
        score = -self.options.penalty * over if over else 0.0
        return Judgement(score, message=f"{case.tokens} of {case.max_tokens} tokens" if over else "")
