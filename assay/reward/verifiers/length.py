"""``length``: three shapes of reward for how long a completion is.

- ``overlong`` (default): DAPO's soft punishment near the cap (Yu et al. 2025, arXiv:2503.14476, eq. 13).
- ``range``: 1 when the answer has at least ``min`` and at most ``max`` of a unit, else 0.
- ``cosine``: Yeo et al. 2025 (arXiv:2502.03373): right answers earn less, and wrong ones are punished less, the
  longer they are; another verifier says which are right. At the cap: ``exceed``.

Options of another shape are refused, not ignored.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from assay.recipe.schema import Section
from assay.reward.extraction import after_thinking
from assay.reward.prose import paragraphs, sentences, visible, words
from assay.reward.verifier import Case, Judgement, Verifier, no_answer, register, verifier_error, verifiers

Unit = Literal[
    "tokens", "words", "chars", "characters", "non_whitespace_chars", "sentences", "lines", "paragraphs", "bytes"
]

_READ_BY = {
    "overlong": {"buffer", "penalty"},
    "range": {"unit", "min", "max"},
    "cosine": {"correct_by", "correct_options", "right_short", "right_long", "wrong_short", "wrong_long", "exceed"},
}
COUNTS: dict[str, Callable[[str], int]] = {
    "words": lambda text: len(words(text)),
    "chars": lambda text: len(unicodedata.normalize("NFC", text)),
    "characters": lambda text: len(unicodedata.normalize("NFC", text)),
    "non_whitespace_chars": lambda text: len("".join(unicodedata.normalize("NFC", text).split())),
    "sentences": lambda text: len(sentences(text)),
    "lines": lambda text: sum(bool(line.strip()) for line in text.splitlines()),
    "paragraphs": lambda text: len(paragraphs(text)),
    "bytes": lambda text: len(text.encode("utf-8", "surrogatepass")),
}
"""How much of a unit a text has; tokens are counted by the sampler."""


class LengthOptions(Section):
    """Options of ``length``."""

    shape: Literal["auto", "overlong", "range", "cosine"] = "auto"
    """`overlong`, `range` or `cosine`; `auto`: the one whose options are given, else `overlong`."""
    buffer: float = Field(0.2, gt=0, le=1)
    """overlong: the last share of `max_tokens`, over which the punishment grows."""
    penalty: float = Field(1.0, ge=0)
    """overlong: the punishment at the cap."""
    unit: Unit = "tokens"
    """range: what is counted, in the answer after the thinking; `tokens` counts the whole completion's."""
    min: int | None = Field(None, ge=0)
    """range: the least that is right."""
    max: int | None = Field(None, ge=0)
    """range: the most that is right."""
    correct_by: str = ""
    """cosine: the verifier that says which answers are right."""
    correct_options: dict[str, Any] = Field(default_factory=dict)
    """cosine: that verifier's options."""
    right_short: float = 2.0
    """cosine: score of a right answer of no length."""
    right_long: float = 1.0
    """cosine: score of a right answer at the cap."""
    wrong_short: float = -10.0
    """cosine: score of a wrong answer of no length."""
    wrong_long: float = 0.0
    """cosine: score of a wrong answer at the cap."""
    exceed: float = -10.0
    """cosine: score of a completion that was cut at the cap."""

    @model_validator(mode="after")
    def _belong_together(self) -> LengthOptions:
        shape = self.chosen
        given = self.model_fields_set - {"shape"}
        if strange := sorted(given - _READ_BY[shape]):
            raise ValueError(f"shape {shape!r} does not read {strange[0]!r}; it reads {', '.join(_READ_BY[shape])}")
        if shape == "range" and self.min is None and self.max is None:
            raise ValueError("shape 'range' needs min or max")
        if shape == "range" and self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if shape == "cosine" and not self.correct_by:
            raise ValueError("shape 'cosine' needs correct_by, the verifier that says which answers are right")
        return self

    @property
    def chosen(self) -> str:
        """The shape, resolved."""
        if self.shape != "auto":
            return self.shape
        given = self.model_fields_set
        return next((shape for shape in ("range", "cosine") if given & _READ_BY[shape]), "overlong")


@register("length", LengthOptions)
def length(options: LengthOptions) -> Verifier:
    """Build the verifier of the chosen shape; UserError when ``correct_by`` or its options are wrong."""
    if options.chosen == "range":
        return LengthRange(options)
    if options.chosen == "cosine":
        return Cosine(options, verifiers[options.correct_by](options.correct_options))
    return Length(options)


@dataclass(frozen=True)
class Length:
    """Score 0 up to ``max_tokens * (1 - buffer)`` tokens, then linear, to ``-penalty`` at ``max_tokens``.

    >>> judge = Length(LengthOptions(buffer=0.25))
    >>> [judge(Case(completion="", tokens=n, max_tokens=80)).score for n in (10, 60, 70, 80)]
    [0.0, 0.0, -0.5, -1.0]
    """

    options: LengthOptions

    @property
    def lowest(self) -> float:
        """The least score that it gives."""
        return -self.options.penalty

    def __call__(self, case: Case) -> Judgement:
        """Shape by the completion's number of tokens."""
        if case.max_tokens <= 0:
            return verifier_error("the longest allowed length is unknown")
        free = case.max_tokens * (1 - self.options.buffer)
        over = min(max(case.tokens - free, 0.0) / (case.max_tokens - free), 1.0)
        score = -self.options.penalty * over if over else 0.0
        return Judgement(score, message=f"{case.tokens} of {case.max_tokens} tokens" if over else "")

    def canary(self, gold: Any) -> str:
        """Any text: what is tried is whether a verdict comes."""
        return "canary"


@dataclass(frozen=True)
class LengthRange:
    """Score 1 when the answer's length lies in the range, else 0; an empty answer is ``no_answer``.

    >>> judge = LengthRange(LengthOptions(unit="words", max=2))
    >>> judge(Case(completion="Well done!")).score, judge(Case(completion="Well done, you.")).score
    (1.0, 0.0)
    """

    options: LengthOptions

    def __call__(self, case: Case) -> Judgement:
        """Count and compare."""
        unit, least, most = self.options.unit, self.options.min, self.options.max
        spoken = after_thinking(case)
        said = visible(spoken.text or "").strip()
        if not said:
            return no_answer(spoken.why or "the completion is empty")
        if unit == "tokens" and not case.tokens:
            return verifier_error("the number of tokens is unknown: count another unit")
        count = (
            case.tokens if unit == "tokens" else COUNTS[unit]((spoken.text or "").strip() if unit == "bytes" else said)
        )
        right = (least is None or count >= least) and (most is None or count <= most)
        return Judgement(float(right), message=f"{count} {unit}")

    def canary(self, gold: Any) -> str:
        """Any text: what is tried is whether a verdict comes."""
        return "canary"


@dataclass(frozen=True)
class Cosine:
    """cos(L; short, long) = long + (short - long) / 2 * (1 + cos(pi * L / max_tokens)), by right and wrong."""

    options: LengthOptions
    verifier: Verifier

    @property
    def lowest(self) -> float:
        """The least score that it gives."""
        o = self.options
        return min(0.0, o.right_short, o.right_long, o.wrong_short, o.wrong_long, o.exceed)

    def __call__(self, case: Case) -> Judgement:
        """Judge, then shape; a judgement without a score stays as it is."""
        if case.max_tokens <= 0 or case.tokens <= 0:
            return verifier_error("the completion's length in tokens, or the longest allowed one, is unknown")
        found = self.verifier(case)
        if found.score is None:
            return found
        options, right = self.options, found.score >= 0.5
        if case.finish == "length" or case.tokens > case.max_tokens:
            score = options.exceed
        else:
            short, long = (
                (options.right_short, options.right_long) if right else (options.wrong_short, options.wrong_long)
            )
            score = long + (short - long) / 2 * (1 + math.cos(math.pi * case.tokens / case.max_tokens))
        message = f"{'right' if right else 'wrong'}, {case.tokens} of {case.max_tokens} tokens"
        return Judgement(score, found.outcome, found.answer, message)

    def canary(self, gold: Any) -> str:
        """The inner verifier's."""
        return getattr(self.verifier, "canary", str)(gold)
