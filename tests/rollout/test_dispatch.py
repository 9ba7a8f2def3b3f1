"""Several askers at one engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from rollout_helpers import prompt

from assay.errors import AssayError
from assay.records import Rollout, Segment
from assay.rollout.dispatch import Dispatcher
from assay.rollout.engine import Request
from assay.rollout.sampling import Sampling


class Bursts:
    """An engine whose ``finished`` ends whenever it has nothing left, and forgets requests of the ids in ``deaf``."""

    version = 0

    def __init__(self, deaf: frozenset[int] = frozenset()) -> None:
        self.deaf = deaf
        self.waiting: list[tuple[int, Rollout]] = []

    async def submit(self, request: Request) -> None:
        for index in range(request.first_index, request.first_index + request.n):
            segment = Segment("policy", (1,), (-1.0,), (0,))
            if request.id not in self.deaf:
                self.waiting.append((request.id, Rollout(request.prompt.id, index, (segment,), "stop", "")))

    async def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        while self.waiting:
            await asyncio.sleep(0)
            yield self.waiting.pop()
        await asyncio.sleep(0)

    async def cancel(self, request_id: int) -> None:
        self.waiting = [w for w in self.waiting if w[0] != request_id]


def ask(dispatcher: Dispatcher, request_id: int, heard: list[tuple[int, int]], n: int = 1):
    request = Request(request_id, prompt("1"), n, Sampling())
    return dispatcher.ask([request], lambda i, rollout: heard.append((i, rollout.index)))


def test_each_hears_of_its_own_and_the_same_number_may_be_asked_again_while_others_wait() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(Bursts())
        probes: list[tuple[int, int]] = []
        many: list[tuple[int, int]] = []

        async def probing() -> None:
            for _ in range(40):
                await ask(dispatcher, 99, probes)

        async def asking(i: int) -> None:
            for turn in range(i, i + 60):
                await asyncio.sleep(0)
                await ask(dispatcher, 1000 * i + turn, many, n=3)

        await asyncio.gather(probing(), *(asking(i) for i in range(3)))
        assert probes == [(99, 0)] * 40
        assert len(many) == len(set(many)) == 3 * 60 * 3
        await asyncio.wait_for(dispatcher.quiet(), 1)

    asyncio.run(scenario())


def test_what_the_engine_forgets_is_missed() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(Bursts(frozenset({3})))
        with pytest.raises(AssayError, match="lost 2 rollouts"):
            await ask(dispatcher, 3, [], n=2)
        heard: list[tuple[int, int]] = []
        await ask(dispatcher, 4, heard)
        assert heard == [(4, 0)]

    asyncio.run(scenario())


def test_the_same_rollout_cannot_be_asked_for_twice_at_once() -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(Bursts())
        first = asyncio.create_task(ask(dispatcher, 1, []))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="twice"):
            await ask(dispatcher, 1, [])
        await first

    asyncio.run(scenario())
