"""``judge``: a chat model grades the completion by a rubric (LLM as a judge, Zheng et al. 2023)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

import jinja2
from pydantic import Field

from assay.errors import UserError
from assay.http import Unavailable
from assay.reward.judge.chat import Chat, ChatOptions
from assay.reward.judge.fleet import Fleet
from assay.reward.judge.once import once
from assay.reward.judge.reading import Read, read_score
from assay.reward.judge.rubric import SCORE_TEMPLATE, Rubric, load_rubric, shown
from assay.reward.verifier import Case, Judgement, register, verifier_error

_COMBINE: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": fmean, "median": median, "min": min}


class JudgeOptions(ChatOptions):
    """Options of ``judge``."""

    low: float = 0.0
    """The worst score that a judge may give."""
    high: float = Field(default=10.0)
    """The best one; (score - low) / (high - low) is the part's score."""
    combine: Literal["mean", "median", "min"] = "mean"
    """How the scores of several models become one. All must be had."""


@register("judge", JudgeOptions, remote=True)
def judge(options: JudgeOptions) -> Judge:
    """Build the verifier; UserError for options that contradict each other, MissingExtra without its packages."""
    if options.low >= options.high:
        raise UserError(f"verifier 'judge', option 'low': {options.low:g} must be below high = {options.high:g}")
    rubric = load_rubric(
        "judge", options.template, options.template_file, options.criteria, SCORE_TEMPLATE, ("completion",)
    )
    return Judge(options, rubric, Chat(Fleet("judge", options), options))


@dataclass(frozen=True)
class Judge:
    """The score that one or several models give, brought to [0, 1]; ``unavailable`` when one of them gives none."""

    options: JudgeOptions
    rubric: Rubric
    chat: Chat

    per_group = False

    async def judge(self, cases: Sequence[Case]) -> list[Judgement]:
        """Ask all models of each case at once."""
        return list(await asyncio.gather(*(self._judge(case) for case in cases)))

    async def close(self) -> None:
        """Hang up."""
        await self.chat.fleet.close()

    def __call__(self, case: Case) -> Judgement:
        """Ask about one case, and hang up."""
        return once(self, case)

    async def _judge(self, case: Case) -> Judgement:
        low, high = self.options.low, self.options.high
        text = shown(case.completion, self.options.max_chars)
        try:
            question = self.rubric.fill(case, {"completion": text}, low, high)
        except jinja2.TemplateError as error:
            return verifier_error(f"the template cannot be filled: {error}")

        def read(words: str) -> Read:
            return read_score(words, low, high)

        asked = (self.chat.ask(model, question, _schema(low, high), read) for model in self.options.models)
        found = await asyncio.gather(*asked, return_exceptions=True)
        for failure in found:
            if isinstance(failure, Unavailable):
                return Judgement(None, "unavailable", None, str(failure))
            if isinstance(failure, BaseException):
                raise failure
        given = [one for one in found if isinstance(one, Read)]
        score = (_COMBINE[self.options.combine]([one.value for one in given]) - low) / (high - low)
        said = [f"{m} {r.value:g}: {r.reason}" for m, r in zip(self.options.models, given, strict=True)]
        return Judgement(score, "scored", None, "; ".join(said))


def _schema(low: float, high: float) -> dict[str, Any]:
    """Reason first: a judge that writes the number first has nothing to base it on."""
    score = {"type": "number", "minimum": low, "maximum": high}
    return {
        "type": "object",
        "properties": {"reason": {"type": "string"}, "score": score},
        "required": ["reason", "score"],
        "additionalProperties": False,
    }
