"""Where scored groups come from: admits prompts, follows their rollouts through the engine and the verifiers."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from assay.data.prompts import PromptSet
from assay.data.sampler import PromptSampler
from assay.errors import AssayError
from assay.records import Group, Prompt, Rollout, Verdict
from assay.reward.scorer import Scorer
from assay.rollout.engine import Engine, Request
from assay.rollout.sampling import Sampling
from assay.track.phases import Phases


@dataclass(frozen=True)
class Order:
    """A wish: ``n`` rollouts of a prompt, numbered from ``first_index``."""

    admission: int
    prompt: Prompt
    n: int
    first_index: int = 0


@dataclass(frozen=True)
class Harvest:
    """What a step's generation brought in."""

    groups: tuple[Group, ...]
    """What the step is trained on, in the order of admission."""
    unused: tuple[Group, ...] = ()
    """Generated and judged, then left out for want of signal (dynamic sampling)."""
    extra: int = 0
    """Groups admitted beyond ``prompts_per_step``."""
    retried: int = 0
    """Rollouts sampled anew because their verdict was invalid."""


async def collect(
    engine: Engine,
    scorer: Scorer,
    orders: Sequence[Order],
    sampling: Sampling,
    seed: int,
    phases: Phases,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[int, tuple[list[Rollout], list[Verdict]]]:
    """Generate every order and judge the answers while others are still being generated.

    Returns rollouts and their verdicts by admission number, each in the order of their index: a verdict is kept with
    its rollout from the start and nothing is matched up by position afterwards.
    """
    pending = {o.admission: o for o in orders}
    if len(pending) != len(orders):
        raise ValueError("admission numbers must be distinct")
    arrived: dict[int, list[Rollout]] = {a: [] for a in pending}
    judging: list[asyncio.Task[tuple[int, list[Rollout], list[Verdict]]]] = []

    async def judge(admission: int, rollouts: list[Rollout]) -> tuple[int, list[Rollout], list[Verdict]]:
        return admission, rollouts, await scorer.score(pending[admission].prompt, rollouts)

    total, done = sum(o.n for o in orders), 0
    for order in orders:
        await engine.submit(
            Request(order.admission, order.prompt, order.n, sampling, seed, first_index=order.first_index)
        )
    try:
        with phases("generate"):
            async for admission, rollout in engine.finished():
                arrived[admission].append(rollout)
                done += 1
                progress(done, total)
                if not scorer.per_group:
                    judging.append(asyncio.create_task(judge(admission, [rollout])))
                elif len(arrived[admission]) == pending[admission].n:
                    siblings = sorted(arrived[admission], key=lambda r: r.index)
                    judging.append(asyncio.create_task(judge(admission, siblings)))
        with phases("score"):
            judged = await asyncio.gather(*judging)
    except BaseException:
        for task in judging:
            task.cancel()
        for order in orders:
            await engine.cancel(order.admission)
        raise
    pairs: dict[int, list[tuple[Rollout, Verdict]]] = {a: [] for a in pending}
    for admission, rollouts, verdicts in judged:
        pairs[admission] += zip(rollouts, verdicts, strict=True)
    lost = {a: pending[a].n - len(p) for a, p in pairs.items() if len(p) != pending[a].n}
    if lost:
        raise AssayError(f"the engine lost rollouts of {len(lost)} groups: {lost}")
    result = {}
    for admission, rows in pairs.items():
        rows.sort(key=lambda row: row[0].index)
        result[admission] = ([r for r, _ in rows], [v for _, v in rows])
    return result


class Source(Protocol):
    """Anything that hands the loop a step's groups; its two counters are part of a checkpoint."""

    cursor: int
    admissions: int

    async def next_groups(self) -> Harvest:
        """The groups of the next step."""
        ...


@dataclass
class GroupSource:
    """Scored groups for training, step after step.

    ``cursor`` (prompts drawn) and ``admissions`` (groups started) are its whole state: prompts, their order and every
    sampling seed are functions of the two. Synchronous: all that is started for a step is finished in it.
    """

    engine: Engine
    scorer: Scorer
    prompts: PromptSet
    sampler: PromptSampler
    sampling: Sampling
    seed: int
    prompts_per_step: int
    group_size: int
    max_extra: int | None
    """Replacement groups allowed in a step; ``None``: no dynamic sampling, every group is trained on."""
    max_retries: int
    max_invalid: float
    has_signal: Callable[[Group], bool]
    phases: Phases
    progress: Callable[[int, int], None] = lambda done, of: None
    cursor: int = 0
    admissions: int = 0

    async def next_groups(self) -> Harvest:
        """The groups of the next step.

        With dynamic sampling, groups without signal are replaced by further prompts until ``prompts_per_step`` have
        signal or ``max_extra`` replacements were started; then the step has what there is. Raises AssayError when
        more than ``max_invalid`` of the verdicts are invalid.
        """
        kept: list[Group] = []
        unused: list[Group] = []
        extra = retried = 0
        wanted = self.prompts_per_step
        while wanted > 0:
            groups, again = await self._generate(self._draw(wanted))
            retried += again
            self._refuse_broken_verifiers(groups)
            if self.max_extra is None:
                return Harvest(tuple(groups), retried=retried)
            for group in groups:
                (kept if self.has_signal(group) else unused).append(group)
            wanted = min(self.prompts_per_step - len(kept), self.max_extra - extra)
            extra += max(wanted, 0)
        return Harvest(tuple(kept), tuple(unused), extra, retried)

    def _draw(self, n: int) -> list[Order]:
        indices, self.cursor = self.sampler.take(self.cursor, n)
        first, self.admissions = self.admissions, self.admissions + n
        return [Order(first + i, self.prompts.prompts[k], self.group_size) for i, k in enumerate(indices)]

    async def _generate(self, orders: Sequence[Order]) -> tuple[list[Group], int]:
        """Groups of ``orders``; rollouts with invalid verdicts are replaced by fresh ones, at most ``max_retries`` times."""
        answers = await collect(self.engine, self.scorer, orders, self.sampling, self.seed, self.phases, self.progress)
        retried = 0
        for attempt in range(1, self.max_retries + 1):
            lost = {o.admission: _invalid(answers[o.admission][1]) for o in orders}
            redo = [
                replace(o, n=len(lost[o.admission]), first_index=attempt * self.group_size)
                for o in orders
                if lost[o.admission]
            ]
            if not redo:
                break
            fresh = await collect(self.engine, self.scorer, redo, self.sampling, self.seed, self.phases, self.progress)
            for order in redo:
                rollouts, verdicts = answers[order.admission]
                for place, rollout, verdict in zip(lost[order.admission], *fresh[order.admission], strict=True):
                    rollouts[place], verdicts[place] = replace(rollout, index=place), verdict
                    retried += 1
        groups = [
            Group(o.prompt, tuple(answers[o.admission][0]), tuple(answers[o.admission][1]), o.admission)
            for o in orders
        ]
        return groups, retried

    def _refuse_broken_verifiers(self, groups: Sequence[Group]) -> None:
        verdicts = [v for g in groups for v in g.verdicts]
        bad = [v for v in verdicts if not v.valid]
        if verdicts and len(bad) / len(verdicts) > self.max_invalid:
            (outcome, message), count = Counter((v.outcome, v.message) for v in bad).most_common(1)[0]
            raise AssayError(
                f"{len(bad)} of {len(verdicts)} verdicts are invalid (reward.max_invalid={self.max_invalid}); "
                f"{count} times {outcome}: {message}"
            )


def _invalid(verdicts: Sequence[Verdict]) -> list[int]:
    return [i for i, v in enumerate(verdicts) if not v.valid]


def stream_seed(seed: int, stream: str) -> int:
    """A seed of its own for each purpose (training, evaluation) that draws from one run seed.

    >>> stream_seed(0, "train") == stream_seed(0, "train"), stream_seed(0, "train") == stream_seed(0, "eval")
    (True, False)
    """
    return zlib.crc32(f"{seed}/{stream}".encode())
