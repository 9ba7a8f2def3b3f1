"""One round of generation: orders go to the engine, answers to the verifiers while others are still being sampled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from assay.errors import AssayError, UserError
from assay.records import Group, Prompt, Rollout, Verdict
from assay.reward.scorer import Scorer
from assay.rollout.engine import Engine, Request
from assay.rollout.sampling import Sampling
from assay.track.phases import Phases

Answers = dict[int, tuple[list[Rollout], list[Verdict]]]
"""By admission number: rollouts in the order of their index, each with its verdict at the same place."""

Progress = Callable[[int, int], None]
"""Told how many answers are there, and of how many."""


@dataclass(frozen=True)
class Order:
    """A wish: ``n`` rollouts of a prompt, numbered from ``first_index``."""

    admission: int
    prompt: Prompt
    n: int
    first_index: int = 0
    siblings: tuple[Rollout, ...] = ()
    """Rollouts of the group that have their verdicts already: shown again to verifiers that compare whole groups."""


def unheard(done: int, of: int) -> None:
    """Progress that nobody follows."""


async def collect(
    engine: Engine,
    scorer: Scorer,
    orders: Sequence[Order],
    sampling: Sampling,
    seed: int,
    phases: Phases,
    progress: Progress = unheard,
) -> Answers:
    """Generate every order and judge the answers while others are still being generated.

    A verdict is kept with its rollout from the start; nothing is matched up by position afterwards. However it fails,
    cancellation included, nothing of it stays in flight. Raises AssayError when the engine loses rollouts.
    """
    pending = {o.admission: o for o in orders}
    if len(pending) != len(orders):
        raise ValueError("admission numbers must be distinct")
    judging: list[asyncio.Task[_Judged]] = []
    try:
        for o in orders:
            await engine.submit(Request(o.admission, o.prompt, o.n, sampling, seed, first_index=o.first_index))
        with phases("generate"):
            await _follow(engine, scorer, pending, judging, progress)
        with phases("score"):
            judged = await asyncio.gather(*judging)
    except BaseException:
        await _abandon(engine, orders, judging)
        raise
    return _sorted(pending, judged)


_Judged = tuple[int, list[Rollout], list[Verdict]]


async def _follow(
    engine: Engine,
    scorer: Scorer,
    pending: dict[int, Order],
    judging: list[asyncio.Task[_Judged]],
    progress: Progress,
) -> None:
    """Start a judgement for each answer as it arrives, or for each group as it is complete."""

    async def judge(admission: int, rollouts: list[Rollout]) -> _Judged:
        order = pending[admission]
        siblings = order.siblings if scorer.per_group else ()
        verdicts = await scorer.score(order.prompt, [*siblings, *rollouts])
        return admission, rollouts, verdicts[len(siblings) :]

    arrived: dict[int, list[Rollout]] = {a: [] for a in pending}
    total, done = sum(o.n for o in pending.values()), 0
    finished = cast("AsyncGenerator[tuple[int, Rollout], None]", engine.finished())
    async with aclosing(finished):
        async for admission, rollout in finished:
            arrived[admission].append(rollout)
            done += 1
            progress(done, total)
            if not scorer.per_group:
                judging.append(asyncio.create_task(judge(admission, [rollout])))
            elif len(arrived[admission]) == pending[admission].n:
                whole = sorted(arrived[admission], key=lambda r: r.index)
                judging.append(asyncio.create_task(judge(admission, whole)))


async def _abandon(engine: Engine, orders: Sequence[Order], judging: Sequence[asyncio.Task[_Judged]]) -> None:
    """Take everything back: judgements, running answers, and the answers that cancelling hands out."""
    for task in judging:
        task.cancel()
    await asyncio.gather(*judging, return_exceptions=True)
    for order in orders:
        await engine.cancel(order.admission)
    async for _ in engine.finished():
        pass


def _sorted(pending: dict[int, Order], judged: Sequence[_Judged]) -> Answers:
    pairs: dict[int, list[tuple[Rollout, Verdict]]] = {a: [] for a in pending}
    for admission, rollouts, verdicts in judged:
        pairs[admission] += zip(rollouts, verdicts, strict=True)
    lost = sum(o.n - len(pairs[a]) for a, o in pending.items())
    if lost:
        raise AssayError(f"the engine lost {lost} of {sum(o.n for o in pending.values())} rollouts")
    answers: Answers = {}
    for admission, rows in pairs.items():
        rows.sort(key=lambda row: row[0].index)
        answers[admission] = ([r for r, _ in rows], [v for _, v in rows])
    return answers


def refuse_broken_verifiers(groups: Sequence[Group], max_invalid: float) -> None:
    """Raise with the commonest reason when more than this share of the verdicts is invalid.

    UserError where a verifier raised, which its author can mend; AssayError where it was slow or out of reach.
    """
    verdicts = [v for g in groups for v in g.verdicts]
    bad = [v for v in verdicts if not v.valid]
    if len(bad) > max_invalid * len(verdicts):
        (outcome, message), count = Counter((v.outcome, v.message) for v in bad).most_common(1)[0]
        kind = UserError if outcome == "verifier_error" else AssayError
        raise kind(
            f"{len(bad)} of {len(verdicts)} verdicts are invalid, more than reward.max_invalid={max_invalid:g} "
            f"allows; {count} times {outcome}: {message}"
        )
