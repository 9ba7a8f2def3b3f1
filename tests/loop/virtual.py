"""A virtual clock: an event loop that jumps to its next timer, and engines, verifiers and trainers that only take time.

Nothing waits, so thousands of schedules run in seconds; a loop with nothing left to wait for is a deadlock, and raises.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from assay.errors import AssayError
from assay.records import Finish, Prompt, Rollout, Segment, Verdict
from assay.rollout.engine import Limits, Request, Stats

T = TypeVar("T")

STRETCH = 40
"""Tokens that are sampled at one blow, at most: a publish meanwhile counts from the next ones on."""


class Deadlock(Exception):
    """Everything waits for something, and nothing will happen."""


class _Jumping(selectors.SelectSelector):
    """Instead of waiting for a timer it moves the clock to it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is the selector's."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a virtual clock; raises Deadlock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


@dataclass(eq=False)
class _Answer:
    request: Request
    index: int
    tokens: int
    versions: list[int]
    end: Finish
    """How it will finish."""
    finish: Finish | None = None


class SlowEngine:
    """An engine that takes its time: one token a ``pace`` for each running answer, lengths as ``length`` draws them.

    Tokens carry the version they are sampled under. ``dies_at``: the moment from which every call raises.
    """

    def __init__(
        self, length: Callable[[], int], slots: int, pace: float = 1.0, dies_at: float | None = None, version: int = 0
    ) -> None:
        self.version = version
        self.path = "slow"
        self.limits = Limits(None, slots)
        self.stats = Stats()
        self.generated: dict[tuple[int, int], int] = {}
        """Length of every answer that came to its end."""
        self._length, self._slots, self._pace, self._dies_at = length, slots, pace, dies_at
        self._waiting: deque[_Answer] = deque()
        self._running: list[_Answer] = []
        self._done: deque[tuple[int, Rollout]] = deque()

    async def submit(self, request: Request) -> None:
        self._alive()
        for index in range(request.first_index, request.first_index + request.n):
            begun = [v for s in request.begun for v in s.versions]
            wanted, cap = max(self._length(), len(begun) + 1), request.sampling.max_tokens
            answer = _Answer(request, index, min(wanted, cap), begun, "length" if wanted > cap else "stop")
            self._waiting.appendleft(answer) if request.urgent else self._waiting.append(answer)

    async def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        while self._done or self._running or self._waiting:
            self._alive()
            while self._done:
                yield self._done.popleft()
            while self._waiting and (len(self._running) < self._slots or self._waiting[0].request.urgent):
                self._running.append(self._waiting.popleft())
            if not self._running:
                continue
            stretch = min(STRETCH, *(a.tokens - len(a.versions) for a in self._running), STRETCH)
            version = self.version
            await asyncio.sleep(self._pace * stretch)
            self._alive()
            for answer in self._running:
                if answer.finish is None:
                    answer.versions += [version] * stretch
                    answer.finish = answer.end if len(answer.versions) >= answer.tokens else None
            self._retire()

    async def cancel(self, request_id: int) -> None:
        self._alive()
        for answer in (*self._running, *self._waiting):
            if answer.request.id == request_id:
                answer.finish = "cancelled"
        self._retire()

    async def partials(self) -> list[tuple[int, Rollout]]:
        self._alive()
        return [(a.request.id, self._rollout(a, "cancelled")) for a in (*self._running, *self._waiting)]

    async def publish(self, version: int) -> None:
        self._alive()
        self.version = version

    async def sleep(self) -> None: ...

    async def close(self) -> None: ...

    def _alive(self) -> None:
        if self._dies_at is not None and asyncio.get_running_loop().time() >= self._dies_at:
            raise AssayError("the engine has died")

    def _retire(self) -> None:
        for answer in [a for a in (*self._running, *self._waiting) if a.finish]:
            if answer.finish == "stop":
                self.generated[answer.request.id, answer.index] = len(answer.versions)
            self._done.append((answer.request.id, self._rollout(answer, answer.finish or "stop")))
        self._running = [a for a in self._running if not a.finish]
        self._waiting = deque(a for a in self._waiting if not a.finish)

    @staticmethod
    def _rollout(answer: _Answer, finish: Finish) -> Rollout:
        n = len(answer.versions)
        segment = Segment("policy", (7,) * n, (-1.0,) * n, tuple(answer.versions))
        return Rollout(answer.request.prompt.id, answer.index, (segment,) if n else (), finish, "x" * n)


class SlowScorer:
    """Verdicts after a while; some invalid, as ``verdict`` draws them."""

    def __init__(self, rng: random.Random, slowest: float, invalid: float = 0.0, per_group: bool = False) -> None:
        self.per_group = per_group
        self._rng, self._slowest, self._invalid = rng, slowest, invalid

    async def score(self, prompt: Prompt, rollouts: Sequence[Rollout]) -> list[Verdict]:
        await asyncio.sleep(self._rng.random() * self._slowest)
        return [
            Verdict(None, "verifier_timeout")
            if self._rng.random() < self._invalid
            else Verdict(float(self._rng.random() < 0.5), "scored")
            for _ in rollouts
        ]
