"""Parts -> findings, wherever a part is judged: in worker processes that can be killed, or by a service.

A verifier that computes goes to the pool: it may hang or crash. One that asks a service only waits, and hundreds of
questions must be under way at once: those are asked in a thread of the trainer's process (:class:`Desk`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from assay.reward.desk import Desk
from assay.reward.pool import Pool, Reply
from assay.reward.trial import Finding, judge
from assay.reward.verifier import AsyncVerifier, Case, Part, verifiers


class Jury:
    """Judges by all ``parts``, each known by its index. Close it: then no process and no thread is left.

    Raises :class:`UserError` from the constructor for parts that cannot be loaded.
    """

    def __init__(self, parts: Sequence[Part], *, workers: int, timeout_s: float) -> None:
        asked = {index: verifier for index, part in enumerate(parts) if (verifier := _service(part)) is not None}
        local = [index for index in range(len(parts)) if index not in asked]
        self._place = {index: place for place, index in enumerate(local)}
        self._pool = Pool([parts[i] for i in local], workers=workers, timeout_s=timeout_s) if local else None
        self._desk = Desk(asked) if asked else None
        self.per_group = tuple(
            asked[index].per_group if index in asked else self._ready(index)[0] for index in range(len(parts))
        )
        """By part: does it judge all rollouts of a prompt at once?"""
        self.wants_ids = tuple(index not in asked and self._ready(index)[1] for index in range(len(parts)))
        """By part: does it read ``Case.token_ids``?"""
        self.lowest = tuple(
            getattr(asked[index], "lowest", 0.0) if index in asked else self._ready(index)[2]
            for index in range(len(parts))
        )
        """By part: the least score that it is known to give."""

    def _ready(self, index: int) -> tuple[bool, bool, float]:
        assert self._pool is not None
        place, ready = self._place[index], self._pool.ready
        return ready.per_group[place], ready.wants_ids[place], ready.lowest[place]

    async def judge(self, index: int, cases: Sequence[Case]) -> list[Finding]:
        """What the part of this index finds of each case of one prompt, in their order."""
        together = [cases] if self.per_group[index] else [[case] for case in cases]
        if index not in self._place:
            assert self._desk is not None
            return list(chain.from_iterable(await asyncio.gather(*(self._desk.judge(index, c) for c in together))))
        pool, place = self._pool, self._place[index]
        assert pool is not None

        async def ask(cases: Sequence[Case], canary: bool) -> Reply:
            return await asyncio.wrap_future(pool.submit(place, cases, canary=canary))

        return list(chain.from_iterable(await asyncio.gather(*(judge(ask, some) for some in together))))

    def processes(self) -> list[int]:
        """Process ids of the workers."""
        return [] if self._pool is None else self._pool.processes()

    def close(self) -> None:
        """Kill the workers and hang up on the services; verdicts still awaited fail. May be called twice."""
        if self._desk is not None:
            self._desk.close()
        if self._pool is not None:
            self._pool.close()


def _service(part: Part) -> AsyncVerifier | None:
    """The part's verifier where it asks a service, else ``None``; UserError for bad options."""
    if part.verifier not in verifiers or not verifiers[part.verifier].remote:
        return None
    return verifiers[part.verifier](part.options)
