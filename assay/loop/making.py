"""Groups in the making: what is still to be sampled of each, what is there, and its verdicts as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from assay.records import Group, Prompt, Rollout, Segment, Verdict
from assay.rollout.dispatch import Dispatcher
from assay.rollout.engine import Request
from assay.rollout.sampling import Sampling
from assay.rollout.thinking import ThinkingBudget


class Judge(Protocol):
    """Who gives verdicts: see `assay.reward.scorer.Scorer`."""

    @property
    def per_group(self) -> bool:
        """Must all rollouts of a prompt be shown at once?"""
        ...

    async def score(self, prompt: Prompt, rollouts: Sequence[Rollout]) -> list[Verdict]:
        """The verdict of each rollout, in the order given."""
        ...


Progress = Callable[[int, int], None]
"""Told how many answers are there, and of how many."""


def unheard(done: int, of: int) -> None:
    """Progress that nobody follows."""


@dataclass(frozen=True)
class Asking:
    """How answers are asked for: the same for every group of a run, or of an evaluation."""

    sampling: Sampling
    seed: int
    max_retries: int = 0
    """Times that a rollout with an invalid verdict is sampled anew."""
    thinking: ThinkingBudget | None = None

    def onward(self, rollout: Rollout) -> tuple[Segment, ...] | None:
        """What an answer goes on behind that has come to its thinking budget; ``None`` for every other."""
        return None if self.thinking is None else self.thinking.goes_on(rollout, self.sampling.max_tokens)


@dataclass
class Making:
    """A group while it is sampled and judged.

    A *place* is where a rollout will stand in the group; its *index* is the number it is sampled under, a fresh one for
    each attempt, so that no two attempts share random numbers.
    """

    admission: int
    prompt: Prompt
    size: int
    """Places."""
    keep: int
    """Rollouts that the group shall have; with more places the slowest are cancelled."""
    first_index: int = 0
    rollouts: dict[int, Rollout] = field(default_factory=dict)
    """By place, in the order of completion."""
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    """By place."""
    begun: dict[int, tuple[Segment, ...]] = field(default_factory=dict)
    """By place: what an unfinished rollout holds, and goes on behind."""
    replaced: list[tuple[Rollout, Verdict]] = field(default_factory=list)
    """What was sampled anew because its verdict was invalid."""
    cancelled: list[Rollout] = field(default_factory=list)
    """What was cut off, or finished too late, because enough others were there."""
    attempts: int = 0
    """Rounds of sampling anew."""
    indices: dict[int, int] = field(default_factory=dict)
    """By place: the index of its rollout."""

    def __post_init__(self) -> None:
        if not self.indices:
            self.indices = {place: self.first_index + place for place in range(self.size)}

    @property
    def missing(self) -> list[int]:
        """Places without a rollout, in order."""
        return [place for place in self.indices if place not in self.rollouts]

    def requests(self, asking: Asking) -> Iterator[Request]:
        """What is to be asked of the engine now: one request for fresh indices in a row, one for each begun rollout."""
        fresh: list[int] = []
        for place in self.missing:
            index, begun = self.indices[place], self.begun.get(place)
            if begun is None and fresh and index == fresh[-1] + 1:
                fresh.append(index)
                continue
            if fresh:
                yield self._request(asking, fresh)
            fresh = [index] if begun is None else []
            if begun is not None:
                yield self._request(asking, [index], begun)
        if fresh:
            yield self._request(asking, fresh)

    def take(self, rollout: Rollout, asking: Asking) -> int | None:
        """Note an answer; its place if it is one to be judged now."""
        place = next(p for p, index in self.indices.items() if index == rollout.index)
        onward = asking.onward(rollout)
        if onward is not None:
            self.begun[place] = onward
            return None
        self.begun.pop(place, None)
        if rollout.finish == "cancelled" or len(self.rollouts) == self.keep:
            del self.indices[place]
            self.cancelled.append(rollout)
            return None
        self.rollouts[place] = rollout
        if rollout.finish == "error":
            self.verdicts[place] = Verdict(None, "unavailable", message="the engine could not make this answer")
            return None
        return place

    def unjudged(self) -> list[int]:
        """Places whose rollout waits for its verdict."""
        return [place for place in sorted(self.rollouts) if place not in self.verdicts]

    def trim(self) -> None:
        """Drop the places without a rollout once there are ``keep`` rollouts."""
        if len(self.rollouts) == self.keep:
            for place in self.missing:
                del self.indices[place]
                self.begun.pop(place, None)

    def forget_invalid(self) -> bool:
        """Have rollouts whose verdict is the verifier's fault judged again; were there any?"""
        lost = [p for p, v in self.verdicts.items() if not v.valid and self.rollouts[p].finish != "error"]
        for place in lost:
            del self.verdicts[place]
        return bool(lost)

    def all_verdicts(self) -> Iterator[Verdict]:
        """Every verdict so far, also of rollouts that were sampled anew."""
        yield from self.verdicts.values()
        yield from (verdict for _, verdict in self.replaced)

    def settle(self, asking: Asking) -> None:
        """After a round: have rollouts with an invalid verdict sampled anew, as long as attempts are left.

        Then they stay as they are, without a reward.
        """
        self.trim()
        lost = [p for p in sorted(self.rollouts) if p in self.verdicts and not self.verdicts[p].valid]
        if not lost or self.attempts == asking.max_retries:
            return
        self.attempts += 1
        for j, place in enumerate(lost):
            self.replaced.append((self.rollouts.pop(place), self.verdicts.pop(place)))
            self.indices[place] = self.first_index + self.attempts * self.size + j

    def group(self) -> Group:
        """The finished group, its rollouts numbered from ``first_index``."""
        places = sorted(self.rollouts)
        rollouts = tuple(replace(self.rollouts[p], index=self.first_index + i) for i, p in enumerate(places))
        return Group(self.prompt, rollouts, tuple(self.verdicts[p] for p in places), self.admission)

    def lost(self) -> Group | None:
        """The rollouts that were sampled anew with their verdicts, if any."""
        if not self.replaced:
            return None
        rollouts, verdicts = zip(*self.replaced, strict=True)
        return Group(self.prompt, rollouts, verdicts, self.admission)

    def _request(self, asking: Asking, indices: Sequence[int], begun: tuple[Segment, ...] = ()) -> Request:
        sampling = asking.thinking.sampling(begun, asking.sampling) if asking.thinking else asking.sampling
        return Request(self.admission, self.prompt, len(indices), sampling, asking.seed, indices[0], begun)


async def make(
    makings: Sequence[Making],
    dispatcher: Dispatcher,
    scorer: Judge,
    asking: Asking,
    heard: Callable[[], None] = lambda: None,
) -> None:
    """Sample and judge ``makings`` to their end; answers are judged while others are still being sampled.

    A verdict is kept with its rollout from the start; nothing is matched up by position afterwards. ``heard`` is called
    for each answer. However it fails, cancellation included, nothing of it stays in flight, and what was finished is
    kept in the makings. Raises what the engine raises.
    """
    by_id = {m.admission: m for m in makings}
    if len(by_id) != len(makings):
        raise ValueError("admission numbers must be distinct")
    while True:
        judging = Judging(scorer, dispatcher)
        try:
            for m in makings:
                m.trim()
                judging.catch_up(m)
            requests = [r for m in makings for r in m.requests(asking)]

            def take(request_id: int, rollout: Rollout, judging: Judging = judging) -> None:
                judging.take(by_id[request_id], rollout, asking)
                heard()

            await dispatcher.ask(requests, take)
            await judging.all()
        finally:
            await judging.end()
        for m in makings:
            m.settle(asking)
        if not any(m.missing or m.unjudged() for m in makings):
            return


class Judging:
    """The judgements under way of a round of answers."""

    def __init__(self, scorer: Judge, dispatcher: Dispatcher) -> None:
        self._scorer = scorer
        self._dispatcher = dispatcher
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, making: Making, rollout: Rollout, asking: Asking) -> None:
        """Note an answer, and judge it now, or its group once that is whole."""
        place = making.take(rollout, asking)
        arrived = any(r is rollout for r in making.rollouts.values())
        if arrived and len(making.rollouts) == making.keep and making.missing:
            self._spawn(self._dispatcher.cancel(making.admission))
        if self._scorer.per_group:
            if not making.missing:
                self.catch_up(making)
        elif place is not None:
            self._spawn(self._judge(making, [place]))

    def catch_up(self, making: Making) -> None:
        """Judge what the making holds without a verdict: of a whole group, or after a restart."""
        places = making.unjudged()
        if not places or (self._scorer.per_group and making.missing):
            return
        for chosen in [places] if self._scorer.per_group else [[p] for p in places]:
            self._spawn(self._judge(making, chosen))

    async def all(self) -> None:
        """Wait for every judgement, also those that others start."""
        while self._tasks:
            tasks = list(self._tasks)
            await asyncio.gather(*tasks)
            self._tasks.difference_update(tasks)

    async def end(self) -> None:
        """Take back what is still being judged."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _judge(self, making: Making, places: list[int]) -> None:
        """Verdicts for the rollouts at ``places``, beside those that have theirs where whole groups are compared."""
        shown = [p for p in sorted(making.verdicts) if p in making.rollouts and making.verdicts[p].valid]
        siblings = [making.rollouts[p] for p in shown] if self._scorer.per_group else []
        rollouts = [making.rollouts[p] for p in places]
        verdicts = await self._scorer.score(making.prompt, [*siblings, *rollouts])
        making.verdicts |= zip(places, verdicts[len(siblings) :], strict=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.create_task(work))
