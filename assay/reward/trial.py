"""How a judgement is reached when workers time out or die: once more, then a canary, and a group one by one.

A completion that makes its verifier time out twice while a completion known to be right passes in the same
pool is the policy's doing: ``unverifiable``, with the least reward there is. So is one that ends its worker
twice, or once each. If the right one does not pass either, the verifier is to blame: ``verifier_timeout`` or
``verifier_error``, by the last try. When a function judges whole groups, each member is tried alone, and the
others are judged again without those that fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from assay.reward.pool import Answered, Crashed, Reply, TimedOut
from assay.reward.verifier import Case, Judgement, verifier_error

Ask = Callable[[Sequence[Case], bool], Awaitable[Reply]]
"""Cases, and whether to put right completions in their place -> the pool's reply."""


@dataclass(frozen=True)
class Finding:
    """A judgement and the seconds of worker time that it took."""

    judgement: Judgement
    seconds: float


async def judge(ask: Ask, cases: Sequence[Case]) -> list[Finding]:
    """Judge cases that belong together: a single one, or a group that a function sees as a whole."""
    first = await ask(cases, False)
    if isinstance(first, Answered):
        return _findings(first)
    second = await ask(cases, False)
    if isinstance(second, Answered):
        return _findings(second, first.seconds)
    spent = (first.seconds + second.seconds) / len(cases)
    if len(cases) == 1:
        return [Finding(await _sentence(ask, cases[0], second), spent)]
    return await _one_by_one(ask, cases, second, spent)


async def _one_by_one(ask: Ask, cases: Sequence[Case], failure: Reply, spent: float) -> list[Finding]:
    alone = await asyncio.gather(*(ask([case], False) for case in cases))
    judgements: dict[int, Judgement] = {}
    for index, (case, reply) in enumerate(zip(cases, alone, strict=True)):
        if not isinstance(reply, Answered):
            judgements[index] = await _sentence(ask, case, reply)
    others = [index for index in range(len(cases)) if index not in judgements]
    if others:
        # When each member passes alone, the group as a whole is what fails: nothing new to try.
        again = await ask([cases[i] for i in others], False) if judgements else failure
        if isinstance(again, Answered):
            judgements |= dict(zip(others, again.judgements, strict=True))
        else:
            judgements |= dict.fromkeys(others, _blame_verifier(again))
    return [Finding(judgements[index], spent + alone[index].seconds) for index in range(len(cases))]


async def _sentence(ask: Ask, case: Case, reply: Reply) -> Judgement:
    """Whose fault is it that a case could not be judged twice? ``reply``: how the last try ended."""
    canary = await ask([case], True)
    if isinstance(canary, Answered) and all(j.score is not None for j in canary.judgements):
        how = "timed out" if isinstance(reply, TimedOut) else reply.reason if isinstance(reply, Crashed) else "failed"
        return Judgement(0.0, "unverifiable", None, f"{how} twice while a right answer passed")
    return _blame_verifier(reply)


def _blame_verifier(reply: Reply) -> Judgement:
    if isinstance(reply, TimedOut):
        return Judgement(None, "verifier_timeout", None, f"no verdict within {reply.seconds:.1f} s")
    return verifier_error(reply.reason if isinstance(reply, Crashed) else "no verdict")


def _findings(reply: Answered, before: float = 0.0) -> list[Finding]:
    seconds = (reply.seconds + before) / max(len(reply.judgements), 1)
    return [Finding(judgement, seconds) for judgement in reply.judgements]
