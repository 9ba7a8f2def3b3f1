"""Judgements of the parts -> one verdict: a weighted sum, or no reward at all."""

from __future__ import annotations

from collections.abc import Sequence

from assay.records import Outcome, Verdict
from assay.reward.verifier import Judgement

_WORST_FIRST: tuple[Outcome, ...] = ("verifier_error", "verifier_timeout", "unavailable")


def combine(
    names: Sequence[str], weights: Sequence[float], judgements: Sequence[Judgement], seconds: float = 0.0
) -> Verdict:
    """The verdict of one rollout: reward = sum of weight * score.

    A part without a score leaves the verdict without a reward, with the worst such outcome; a part that is
    ``unverifiable`` makes the reward 0, whatever the others gave. Otherwise the outcome is the first part's.

    >>> verdict = combine(["right", "form"], [1.0, 0.5], [Judgement(1.0, answer="7"), Judgement(1.0)])
    >>> verdict.reward, verdict.outcome, verdict.correct, verdict.answer
    (1.5, 'scored', 1.0, '7')
    >>> down = Judgement(None, "unavailable", None, "down")
    >>> combine(["right", "form"], [1.0, 0.5], [Judgement(1.0), down]).message
    'form: down'
    """
    parts = {name: judgement.score for name, judgement in zip(names, judgements, strict=True)}
    answer = next((judgement.answer for judgement in judgements if judgement.answer is not None), None)
    found = list(zip(names, judgements, strict=True))
    invalid = [(name, judgement) for name, judgement in found if judgement.score is None]
    outcome: Outcome
    if invalid:
        outcome = next(worst for worst in _WORST_FIRST if any(j.outcome == worst for _, j in invalid))
        reward = None
        found = [(name, judgement) for name, judgement in invalid if judgement.outcome == outcome]
    elif unverifiable := [pair for pair in found if pair[1].outcome == "unverifiable"]:
        outcome, reward, found = "unverifiable", 0.0, unverifiable
    else:
        outcome = judgements[0].outcome
        reward = sum(weight * (judgement.score or 0.0) for weight, judgement in zip(weights, judgements, strict=True))
    message = "; ".join(f"{name}: {judgement.message}" for name, judgement in found if judgement.message)
    return Verdict(reward, outcome, parts, answer, seconds, message, judgements[0].score)
