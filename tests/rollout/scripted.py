"""An engine in memory that follows a script: when it answers, errs, loses a rollout, or dies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace

from assay.errors import AssayError
from assay.records import Rollout, Segment
from assay.rollout.engine import Limits, Request, Stats

Script = Callable[[], str]
"""What the engine does next, by name: see `ScriptedEngine._act`."""


@dataclass
class ScriptedEngine:
    """Gives each rollout the tokens 0, 1, 2 ... up to the request's ``max_tokens``, one for each act ``token``."""

    script: Script
    version: int = 0
    stats: Stats = Stats()
    limits: Limits = Limits(None, 8)
    path: str = "scripted"
    asked: list[Request] = field(default_factory=list)
    published: list[int] = field(default_factory=list)
    dead: bool = False
    closed: bool = False

    def __post_init__(self) -> None:
        self._running: dict[tuple[int, int], tuple[Request, Rollout]] = {}
        self._done: deque[tuple[int, Rollout]] = deque()

    def _alive(self) -> None:
        if self.dead:
            raise AssayError("it died")

    def _act(self) -> None:
        act = self.script()
        if act == "die":
            self.dead = True
        names = list(self._running)
        if self.dead or not names:
            return
        name = names[len(self._done) % len(names)]
        request, rollout = self._running[name]
        if act == "token":
            self._grow(name, request, rollout)
        elif act == "error":
            self._end(name, "error")
        elif act == "lose":
            del self._running[name]

    def _grow(self, name: tuple[int, int], request: Request, rollout: Rollout) -> None:
        held = len(rollout)
        segment = Segment("policy", (held,), (-1.0,), (self.version,))
        rollout = replace(rollout, segments=(*rollout.segments, segment))
        self._running[name] = (request, rollout)
        self.stats = replace(self.stats, generated_tokens=self.stats.generated_tokens + 1)
        if held + 1 >= request.sampling.max_tokens:
            self._end(name, "length")

    def _end(self, name: tuple[int, int], finish: str) -> None:
        _, rollout = self._running.pop(name)
        self._done.append((name[0], replace(rollout, finish=finish)))

    async def submit(self, request: Request) -> None:
        await asyncio.sleep(0)
        self._alive()
        self.asked.append(request)
        for i in range(request.first_index, request.first_index + request.n):
            start = Rollout(request.prompt.id, i, request.begun, "cancelled", "")
            self._running[request.id, i] = (request, start)
        await asyncio.sleep(0)

    async def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        while self._running or self._done:
            self._act()
            self._alive()
            if self._done:
                yield self._done.popleft()
            await asyncio.sleep(0)

    async def cancel(self, request_id: int) -> None:
        await asyncio.sleep(0)
        self._alive()
        for name in [n for n in self._running if n[0] == request_id]:
            self._end(name, "cancelled")

    async def partials(self) -> list[tuple[int, Rollout]]:
        return [(i, rollout) for (i, _), (_, rollout) in self._running.items()]

    async def publish(self, version: int) -> None:
        await asyncio.sleep(0)
        self._alive()
        self.version = version
        self.published.append(version)

    async def sleep(self) -> None:
        self._alive()

    async def close(self) -> None:
        self.closed = True
