"""``pairwise_judge``: a chat model compares the completions of a group two by two; the score is the share of wins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import jinja2
from pydantic import Field

from assay.http import Unavailable
from assay.reward.judge.chat import Chat, ChatOptions
from assay.reward.judge.fleet import Fleet
from assay.reward.judge.once import once
from assay.reward.judge.reading import read_winner
from assay.reward.judge.rubric import PAIR_TEMPLATE, Rubric, load_rubric, shown
from assay.reward.verifier import Case, Judgement, register, verifier_error

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "winner": {"type": "string", "enum": ["A", "B", "tie"]}},
    "required": ["reason", "winner"],
    "additionalProperties": False,
}
_POINTS = {"A": 1.0, "tie": 0.5, "B": 0.0}


class PairwiseJudgeOptions(ChatOptions):
    """Options of ``pairwise_judge``."""

    neighbours: int | None = Field(default=None, ge=1)
    """Each completion meets so many after it, in a ring; absent: all meet all, n (n - 1) / 2 pairs."""
    both_orders: bool = True
    """Ask of each pair twice, each standing first once: judges prefer what stands first."""


@register("pairwise_judge", PairwiseJudgeOptions, remote=True)
def pairwise_judge(options: PairwiseJudgeOptions) -> PairwiseJudge:
    """Build the verifier; UserError for a bad template, MissingExtra without its packages."""
    rubric = load_rubric(
        "pairwise_judge", options.template, options.template_file, options.criteria, PAIR_TEMPLATE, ("first", "second")
    )
    return PairwiseJudge(options, rubric, Chat(Fleet("pairwise_judge", options), options))


@dataclass(frozen=True)
class PairwiseJudge:
    """The share of its comparisons that a completion won, a tie counting half; equal texts tie unasked.

    A completion one of whose comparisons cannot be had is ``unavailable``: with fewer opponents than its siblings its
    share would mean something else. So is a completion without siblings.
    """

    options: PairwiseJudgeOptions
    rubric: Rubric
    chat: Chat

    per_group = True

    async def judge(self, cases: Sequence[Case]) -> list[Judgement]:
        """Compare the completions of one prompt."""
        if len(cases) < 2:
            return [Judgement(None, "unavailable", None, "there is no other completion to compare with")] * len(cases)
        meetings = list(pairs(len(cases), self.options.neighbours))
        try:
            found = await asyncio.gather(*(self._meet(cases[i], cases[j]) for i, j in meetings))
        except jinja2.TemplateError as error:
            return [verifier_error(f"the template cannot be filled: {error}")] * len(cases)
        points: list[list[float]] = [[] for _ in cases]
        lost: list[str] = [""] * len(cases)
        for (i, j), outcome in zip(meetings, found, strict=True):
            if isinstance(outcome, str):
                lost[i], lost[j] = outcome, outcome
            else:
                points[i].append(outcome)
                points[j].append(1 - outcome)
        return [
            Judgement(None, "unavailable", None, why)
            if why
            else Judgement(fmean(won), "scored", None, f"won {sum(won):g} of {len(won)} comparisons")
            for won, why in zip(points, lost, strict=True)
        ]

    async def close(self) -> None:
        """Hang up."""
        await self.chat.fleet.close()

    def __call__(self, case: Case) -> Judgement:
        """One case alone has nothing to be compared with: ``unavailable``."""
        return once(self, case)

    async def _meet(self, one: Case, other: Case) -> float | str:
        """The points of ``one`` against ``other``, over models and orders; or why they cannot be had."""
        if one.completion == other.completion:
            return 0.5
        orders = [(one, other, False), (other, one, True)][: 1 + self.options.both_orders]
        asked = [
            self._points(model, first, second, turned)
            for model in self.options.models
            for first, second, turned in orders
        ]
        found = await asyncio.gather(*asked, return_exceptions=True)
        for failure in found:
            if isinstance(failure, Unavailable):
                return str(failure)
            if isinstance(failure, BaseException):
                raise failure
        return fmean(points for points in found if isinstance(points, float))

    async def _points(self, model: str, first: Case, second: Case, turned: bool) -> float:
        """The points of the first, or ``turned`` of the second."""
        limit = self.options.max_chars
        texts = {"first": shown(first.completion, limit), "second": shown(second.completion, limit)}
        question = self.rubric.fill(replace(first, completion=""), texts)
        read = await self.chat.ask(model, question, _SCHEMA, read_winner)
        points = _POINTS[read.value]
        return 1 - points if turned else points


def pairs(n: int, neighbours: int | None) -> Iterator[tuple[int, int]]:
    """Who meets whom among ``n``, each pair once.

    >>> list(pairs(3, None)), list(pairs(5, 1)), len(list(pairs(8, 2))), list(pairs(2, 5))
    ([(0, 1), (0, 2), (1, 2)], [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)], 16, [(0, 1)])
    """
    if neighbours is None or 2 * neighbours >= n:
        yield from ((i, j) for i in range(n) for j in range(i + 1, n))
        return
    for i in range(n):
        for step in range(1, neighbours + 1):
            j = (i + step) % n
            yield (i, j) if i < j else (j, i)
