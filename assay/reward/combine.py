"""Judgements of the parts -> one verdict: a weighted sum or a product of the parts that count, or no reward at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from assay.recipe.schema import Gate
from assay.records import Outcome, Verdict
from assay.reward.verifier import Judgement

_WORST_FIRST: tuple[Outcome, ...] = ("verifier_error", "verifier_timeout", "unavailable")


@dataclass(frozen=True)
class Term:
    """One part of the reward as it is combined."""

    name: str
    weight: float = 1.0
    when: Gate | None = None
    """It counts only when the part named there has a score of at least so much."""
    added: bool = False
    """Added to a product, not multiplied: the overlong punishment."""


def combine(
    terms: Sequence[Term],
    judgements: Sequence[Judgement],
    seconds: float = 0.0,
    how: Literal["sum", "product"] = "sum",
    worst: Sequence[float] = (),
) -> Verdict:
    """The verdict of one rollout: reward = sum of weight * score, or the product of the scores, of what counts.

    A part whose gate is closed does not count: its score stays in ``parts``, and the message says so. Among
    those that count, one without a score leaves the verdict without a reward, with the worst such outcome. A
    part that is ``unverifiable`` gives every part its ``worst`` score (0 without any) as far as that is a loss,
    whatever the others gave: breaking a verifier never pays. Otherwise the outcome is the first part's. A product
    with a score below 0 is the lowest score: two punishments are no reward.

    >>> terms = [Term("right"), Term("form", 0.5, Gate(part="right", at_least=1))]
    >>> verdict = combine(terms, [Judgement(1.0, answer="7"), Judgement(1.0)])
    >>> verdict.reward, verdict.outcome, verdict.correct, verdict.answer
    (1.5, 'scored', 1.0, '7')
    >>> wrong = combine(terms, [Judgement(0.0), Judgement(1.0)])
    >>> wrong.reward, wrong.parts, wrong.message
    (0.0, {'right': 0.0, 'form': 1.0}, 'form: did not count: right below 1')
    >>> combine(terms, [Judgement(1.0), Judgement(0.5)], how="product").reward
    0.5
    >>> down = Judgement(None, "unavailable", None, "down")
    >>> combine(terms, [Judgement(1.0), down]).message
    'form: down'
    """
    parts = {term.name: judgement.score for term, judgement in zip(terms, judgements, strict=True)}
    shown: Mapping[str, float | None] = parts
    answer = next((judgement.answer for judgement in judgements if judgement.answer is not None), None)
    found = list(zip(terms, judgements, strict=True))
    counted = [(term, judgement) for term, judgement in found if is_open(term.when, parts)]
    invalid = [(term, judgement) for term, judgement in counted if judgement.score is None]
    outcome: Outcome
    if invalid:
        outcome = next(worst for worst in _WORST_FIRST if any(j.outcome == worst for _, j in invalid))
        reward = None
        found = [(term, judgement) for term, judgement in invalid if judgement.outcome == outcome]
    elif unverifiable := [pair for pair in found if pair[1].outcome == "unverifiable"]:
        outcome, found = "unverifiable", unverifiable
        lost = list(zip(terms, worst or [0.0] * len(terms), strict=True))
        shown = {term.name: score for term, score in lost}
        reward = _total([(term, score if term.weight * score < 0 else 0.0) for term, score in lost], how)
    else:
        outcome = judgements[0].outcome
        reward = _total([(term, judgement.score or 0.0) for term, judgement in counted], how)
    message = "; ".join(f"{term.name}: {said}" for term, judgement in found if (said := _said(term, judgement, parts)))
    return Verdict(reward, outcome, shown, answer, seconds, message, judgements[0].score)


def is_open(when: Gate | None, scores: dict[str, float | None]) -> bool:
    """Does a part with this gate count, by the scores of the parts? One without a score opens nothing.

    >>> is_open(Gate(part="a", at_least=1), {"a": 0.5}), is_open(None, {})
    (False, True)
    """
    if when is None:
        return True
    score = scores.get(when.part)
    return score is not None and score >= when.at_least


def _total(scores: Sequence[tuple[Term, float]], how: str) -> float:
    if how == "sum":
        return sum(term.weight * score for term, score in scores)
    factors = [score for term, score in scores if not term.added]
    added = sum(term.weight * score for term, score in scores if term.added)
    return added + (min(factors) if min(factors, default=1.0) < 0 else math.prod(factors))


def _said(term: Term, judgement: Judgement, parts: dict[str, float | None]) -> str:
    if is_open(term.when, parts) or term.when is None:
        return judgement.message
    closed = f"did not count: {term.when.part} below {term.when.at_least:g}"
    return f"{closed} ({judgement.message})" if judgement.message else closed
