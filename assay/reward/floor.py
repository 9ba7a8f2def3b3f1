"""The worst scores of a combination of parts: what a completion gets that breaks its verifier on purpose."""

from __future__ import annotations

from collections.abc import Sequence

from assay.reward.verifier import Judgement


class Floor:
    """By part, the score that takes most from the reward: the lowest, or the highest where the weight is below 0.

    Known at the start: a verifier's ``lowest`` score, 0 for most and for functions (the highest: 1). What is seen later
    moves it: a user's function may return anything.

    >>> floor = Floor([(1.0, 0.0), (-0.5, 0.0)])
    >>> floor.scores([0, 1])
    (0.0, 1.0)
    >>> floor.see([0, 1], [Judgement(-2.0), Judgement(0.5)])
    >>> floor.scores([0, 1])
    (-2.0, 1.0)
    """

    def __init__(self, parts: Sequence[tuple[float, float]]) -> None:
        """``parts``: of each its weight and its known lowest score."""
        self._signs = [1.0 if weight >= 0 else -1.0 for weight, _ in parts]
        self._worst = [min(low, 0.0) if weight >= 0 else 1.0 for weight, low in parts]

    def scores(self, parts: Sequence[int]) -> tuple[float, ...]:
        """Of these parts, by index, the score that takes most from the reward."""
        return tuple(self._worst[index] for index in parts)

    def see(self, parts: Sequence[int], judgements: Sequence[Judgement]) -> None:
        """Take in the scores that these parts gave a rollout."""
        for index, judgement in zip(parts, judgements, strict=True):
            if judgement.score is not None:
                sign = self._signs[index]
                self._worst[index] = sign * min(sign * self._worst[index], sign * judgement.score)
