"""Where a step's scored groups come from: admits prompts, replaces what cannot be used, keeps its place in the data."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from assay.data.prompts import PromptSet
from assay.data.sampler import PromptSampler
from assay.loop.collect import Answers, Order, Progress, collect, refuse_broken_verifiers, unheard
from assay.records import Group, Verdict
from assay.reward.scorer import Scorer
from assay.rollout.engine import Engine, Stats
from assay.rollout.sampling import Sampling
from assay.track.phases import Phases


@dataclass(frozen=True)
class Harvest:
    """What a step's generation brought in."""

    groups: tuple[Group, ...]
    """What the step is trained on, in the order of admission; none where nothing had signal."""
    unused: tuple[Group, ...] = ()
    """Generated and judged, then left out for want of signal (dynamic sampling)."""
    extra: int = 0
    """Groups admitted beyond ``prompts_per_step``."""
    replaced: tuple[Group, ...] = ()
    """The rollouts that were sampled anew because their verdict was invalid, with those verdicts."""
    sampling: Stats = Stats()
    """What the engine computed for all of it."""
    origin: Literal["generated", "given"] = "generated"
    """Were its answers sampled, or given to be imitated? The name under which their tokens are counted."""

    @property
    def retried(self) -> int:
        """How many rollouts were sampled anew."""
        return sum(len(g.rollouts) for g in self.replaced)

    @property
    def generated(self) -> tuple[Group, ...]:
        """All groups, used or not, as they came to be."""
        return self.groups + self.unused


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
    progress: Progress = unheard
    cursor: int = 0
    admissions: int = 0

    async def next_groups(self) -> Harvest:
        """The groups of the next step; abandoned or failed, the same prompts come again.

        With dynamic sampling, groups without signal are replaced by further prompts until ``prompts_per_step`` have
        signal or ``max_extra`` replacements were started; then the step has what there is. Raises AssayError when
        more than ``max_invalid`` of the step's verdicts are invalid.
        """
        place = self.cursor, self.admissions
        try:
            return await self._harvest()
        except BaseException:
            self.cursor, self.admissions = place
            raise

    async def _harvest(self) -> Harvest:
        kept: list[Group] = []
        unused: list[Group] = []
        replaced: list[Group] = []
        extra, before = 0, self.engine.stats
        wanted = self.prompts_per_step
        while wanted > 0:
            groups, lost = await self._generate(self._draw(wanted))
            replaced += lost
            refuse_broken_verifiers([*kept, *unused, *groups, *replaced], self.max_invalid)
            for group in groups:
                used = self.max_extra is None or self.has_signal(group)
                (kept if used else unused).append(group)
            room = 0 if self.max_extra is None else self.max_extra - extra
            wanted = min(self.prompts_per_step - len(kept), room)
            extra += wanted
        return Harvest(tuple(kept), tuple(unused), extra, tuple(replaced), self.engine.stats.since(before))

    def _draw(self, n: int) -> list[Order]:
        indices, self.cursor = self.sampler.take(self.cursor, n)
        first, self.admissions = self.admissions, self.admissions + n
        return [Order(first + i, self.prompts.prompts[k], self.group_size) for i, k in enumerate(indices)]

    async def _generate(self, orders: Sequence[Order]) -> tuple[list[Group], list[Group]]:
        """Groups of ``orders``, and what of them was sampled anew.

        A rollout whose verdict is invalid is replaced by a fresh one, at most ``max_retries`` times; the valid ones
        of its group stay as they are.
        """
        answers = await self._collect(orders)
        prompts = {o.admission: o.prompt for o in orders}
        replaced: list[Group] = []
        for attempt in range(1, self.max_retries + 1):
            lost = {o.admission: _invalid(answers[o.admission][1]) for o in orders}
            redo = [
                replace(
                    o,
                    n=len(lost[o.admission]),
                    first_index=attempt * self.group_size,
                    siblings=tuple(r for r, v in zip(*answers[o.admission], strict=True) if v.valid),
                )
                for o in orders
                if lost[o.admission]
            ]
            if not redo:
                break
            for admission, fresh in (await self._collect(redo)).items():
                rollouts, verdicts = answers[admission]
                replaced.append(
                    Group(
                        prompts[admission],
                        tuple(rollouts[i] for i in lost[admission]),
                        tuple(verdicts[i] for i in lost[admission]),
                        admission,
                    )
                )
                for place, rollout, verdict in zip(lost[admission], *fresh, strict=True):
                    rollouts[place], verdicts[place] = replace(rollout, index=place), verdict
        groups = [
            Group(o.prompt, tuple(answers[o.admission][0]), tuple(answers[o.admission][1]), o.admission) for o in orders
        ]
        return groups, replaced

    async def _collect(self, orders: Sequence[Order]) -> Answers:
        return await collect(self.engine, self.scorer, orders, self.sampling, self.seed, self.phases, self.progress)


def _invalid(verdicts: Sequence[Verdict]) -> list[int]:
    return [i for i, v in enumerate(verdicts) if not v.valid]


def stream_seed(seed: int, stream: str) -> int:
    """A seed of its own for each purpose (training, evaluation) that draws from one run seed.

    >>> stream_seed(0, "train") == stream_seed(0, "train"), stream_seed(0, "train") == stream_seed(0, "eval")
    (True, False)
    """
    return zlib.crc32(f"{seed}/{stream}".encode())
