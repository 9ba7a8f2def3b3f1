"""``reward_model``: the score of a sequence classifier that `assay serve-reward` serves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assay.http import Unavailable
from assay.reward.judge.fleet import Fleet
from assay.reward.judge.once import once
from assay.reward.judge.options import ServiceOptions
from assay.reward.judge.rubric import question_of
from assay.reward.verifier import Case, Judgement, register


class RewardModelOptions(ServiceOptions):
    """Options of ``reward_model``."""

    activation: Literal["none", "sigmoid"] = "none"
    """What is made of the model's number; `sigmoid` brings it to (0, 1)."""


@register("reward_model", RewardModelOptions, remote=True)
def reward_model(options: RewardModelOptions) -> RewardModel:
    """Build the verifier; UserError for a bad address, MissingExtra without its packages."""
    return RewardModel(options, Fleet("reward_model", options))


@dataclass(frozen=True)
class RewardModel:
    """The served model's score of prompt and completion; the server does the batching."""

    options: RewardModelOptions
    fleet: Fleet

    per_group = False

    async def judge(self, cases: Sequence[Case]) -> list[Judgement]:
        """Ask for each case at once."""
        return list(await asyncio.gather(*(self._judge(case) for case in cases)))

    async def close(self) -> None:
        """Hang up."""
        await self.fleet.close()

    def __call__(self, case: Case) -> Judgement:
        """Ask about one case, and hang up."""
        return once(self, case)

    async def _judge(self, case: Case) -> Judgement:
        messages = [{"role": str(m.get("role")), "content": str(m.get("content"))} for m in case.messages]
        item = {"prompt": question_of(case), "messages": messages, "completion": case.completion}
        try:
            score = score_of(await self.fleet.ask("/score", {"items": [item]}))
        except Unavailable as error:
            return Judgement(None, "unavailable", None, str(error))
        if self.options.activation == "sigmoid":
            return Judgement(sigmoid(score), "scored", None, f"logit {score:.4g}")
        return Judgement(score)


def score_of(reply: Any) -> float:
    """The one score of a reply ``{"scores": [0.3]}``. Raises :class:`Unavailable` for anything else.

    >>> score_of({"scores": [0.3]})
    0.3
    """
    scores = reply.get("scores") if isinstance(reply, dict) else None
    if not isinstance(scores, list) or len(scores) != 1 or isinstance(scores[0], bool):
        raise Unavailable(f"the reply holds no score: {str(reply)[:120]}")
    if not isinstance(scores[0], int | float) or not math.isfinite(scores[0]):
        raise Unavailable(f"the reward model gave {str(scores[0])[:40]}")
    return float(scores[0])


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow.

    >>> sigmoid(0.0), sigmoid(-1000.0), sigmoid(1000.0)
    (0.5, 0.0, 1.0)
    """
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
