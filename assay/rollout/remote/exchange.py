"""What is asked of a server and what has come back: everything an engine over HTTP does but choose its weights.

A *call* is one streamed question for one answer, or for several that begin alike. Calls start while there are slots,
urgent ones always. A call that fails in a way that may pass is asked again after a growing wait with jitter, behind the
tokens that have arrived; after ``ATTEMPTS`` its answers end as ``error``. `pause` interrupts all calls and keeps their
tokens, `resume` goes on with them, at another server or under other weights.

*Silence* means that no token came for ``timeout_s`` though answers were asked for. When nothing at all comes, the
server is taken for dead; when only one call is silent, that one is asked again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from assay.errors import AssayError, UserError
from assay.http import Passing, Refused, Unavailable
from assay.records import Rollout
from assay.rollout.answer import Answer
from assay.rollout.engine import Limits, Request, Stats, room_of
from assay.rollout.outbox import Outbox
from assay.rollout.remote.client import Client
from assay.rollout.remote.dialect import Ask, Dialect, Malformed, Piece
from assay.rollout.seeds import seed_of

ATTEMPTS = 4
"""Times that an answer is asked for before it ends as ``error``."""
BACKOFF_S = 0.25
"""The first wait before asking again; it doubles, with jitter, up to `LONGEST_BACKOFF_S`."""
LONGEST_BACKOFF_S = 10.0
SEED_BITS = 31
"""Servers take seeds of so many bits; several continuations of one question use the following seeds too."""
_UNAUTHORISED = frozenset({401, 403, 404})


@dataclass(eq=False)
class Call:
    """One question, waiting or under way."""

    answers: list[Answer]
    urgent: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def open(self) -> list[Answer]:
        """Those without an end."""
        return [a for a in self.answers if a.finish is None]


@dataclass
class Exchange:
    """Requests out, rollouts in. All methods are called from one event loop."""

    dialect: Dialect
    limits: Limits
    stop: frozenset[int]
    decode: Callable[[list[int]], str]
    timeout_s: float
    backoff_s: float = BACKOFF_S
    _client: Client | None = None
    _version: int = 0
    _waiting: deque[Call] = field(default_factory=deque)
    _running: set[Call] = field(default_factory=set)
    _resting: dict[Call, asyncio.TimerHandle] = field(default_factory=dict)
    _outbox: Outbox = field(default_factory=Outbox)
    _heard: float = 0.0
    _stats: Stats = field(default_factory=Stats)
    _random: random.Random = field(default_factory=random.Random)

    @property
    def stats(self) -> Stats:
        """Counts since it was made."""
        return self._stats

    @property
    def busy(self) -> bool:
        """Is an answer without its end waiting or under way? A server may still be finishing a call without any."""
        return any(call.open for call in self._calls())

    async def submit(self, request: Request) -> None:
        """Queue a request. Raises UserError when its prompt leaves no room, AssayError when the server is gone."""
        self._outbox.check()
        room = room_of(request, self.limits.context, "the context")
        indices = range(request.first_index, request.first_index + request.n)
        answers = [Answer(request, i, room) for i in indices]
        for answer in answers:
            answer.settle(self.stop)
        self._end([a for a in answers if a.finish is not None])
        left = [a for a in answers if a.finish is None]
        size = min(len(left), self.limits.max_running) if self.dialect.several else 1
        calls = [Call(left[i : i + size], request.urgent) for i in range(0, len(left), size or 1)]
        if request.urgent:
            self._waiting.extendleft(reversed(calls))
        else:
            self._waiting.extend(calls)
        self._start()

    def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        """Yield (request id, rollout) as they end; ends when nothing is in flight. One consumer at a time."""
        return self._outbox.drain(lambda: self.busy)

    async def cancel(self, request_id: int) -> None:
        """End the unfinished rollouts of a request as ``cancelled``, tokens kept."""
        calls = [c for c in self._calls() if c.answers[0].request.id == request_id]
        await self._stop(calls)
        self._end([a for c in calls for a in c.open])
        self._start()

    def partials(self) -> list[tuple[int, Rollout]]:
        """(Request id, what it holds) of the unfinished rollouts, and of finished ones that nobody has taken yet."""
        return self._outbox.unseen() + [(a.request.id, self._record(a)) for c in self._calls() for a in c.open]

    async def pause(self) -> None:
        """Interrupt what is under way, keeping its tokens; nothing starts until `resume`."""
        client, self._client = self._client, None
        calls = [*self._running, *self._resting]
        await self._stop(calls)
        for call in sorted(calls, key=lambda c: c.answers[0].started, reverse=True):
            self._waiting.extendleft(Call([a], call.urgent) for a in reversed(call.open))
        if client is not None:
            await client.close()

    def resume(self, client: Client, version: int) -> None:
        """Go on at this server; what it samples is of ``version``."""
        self._client, self._version = client, version
        self._start()

    def fail(self, failure: BaseException) -> None:
        """The server is gone for good: whoever waits for rollouts is told."""
        self._outbox.fail(failure)

    async def close(self) -> None:
        """Hang up; what is unfinished is dropped."""
        await self.pause()
        self._waiting.clear()

    def _calls(self) -> list[Call]:
        return [*self._running, *self._resting, *self._waiting]

    def _start(self) -> None:
        """Start what waits, in its order, while there are slots; urgent calls whether or not there are."""
        while self._client is not None and self._outbox.failure is None and self._waiting:
            call = self._waiting[0]
            taken = sum(len(c.answers) for c in self._running)
            if not call.urgent and taken and taken + len(call.answers) > self.limits.max_running:
                return
            self._waiting.popleft()
            if not self._running:
                self._heard = time.monotonic()
            self._running.add(call)
            call.task = self._task(self._run(call, self._client, self._version))

    async def _stop(self, calls: Sequence[Call]) -> None:
        """Take calls out of the books, wherever they are, and wait until their connections are closed."""
        for call in calls:
            self._running.discard(call)
            if call in self._waiting:
                self._waiting.remove(call)
            handle = self._resting.pop(call, None)
            if handle is not None:
                handle.cancel()
        tasks = [c.task for c in calls if c.task is not None and not c.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, call: Call, client: Client, version: int) -> None:
        try:
            await self._follow(call, client, version)
            self._running.discard(call)
        except Passing as failure:
            self._running.discard(call)
            self._again(call, failure)
        except Refused as failure:
            self._running.discard(call)
            if failure.status in _UNAUTHORISED:
                self.fail(UserError(f"{failure}: check the address, the model's name and the key"))
            else:
                self._end(call.open, "error")
        except AssayError as failure:
            self._running.discard(call)
            self.fail(failure)
        self._start()
        self._outbox.wake()

    async def _follow(self, call: Call, client: Client, version: int) -> None:
        """Ask, and take in what comes, until all answers have an end, and the server has or says more than that.

        A server is let finish, so that its slots are free when the next question comes.
        """
        path, body = self.dialect.question(self._ask(call))
        async with aclosing(client.events(path, body)) as events:
            beyond = False
            while call.open or not beyond:
                try:
                    async with asyncio.timeout(self.timeout_s):
                        event = await anext(events, None)
                except TimeoutError:
                    if not call.open:
                        return
                    raise self._silence(client) from None
                if event is None and not call.open:
                    return
                if event is None:
                    raise Passing(f"{client.name}: the stream ended in the midst of an answer")
                self._heard = time.monotonic()
                try:
                    pieces = self.dialect.read(event)
                except Malformed as error:
                    raise Passing(f"{client.name}: {error}") from None
                for piece in pieces:
                    beyond |= self._take(call, piece, version)

    def _ask(self, call: Call) -> Ask:
        first = call.answers[0]
        ids = first.question()
        for answer in call.answers[1:]:
            answer.question()  # of the same beginning: several are asked for only where all begin alike
        seed = seed_of(first.request, first.index, len(first.held), SEED_BITS)
        seed = min(seed, (1 << SEED_BITS) - len(call.answers) - 1)
        self._count(prefilled=1, prefill_tokens=len(ids))
        return Ask(ids, len(call.answers), first.left, first.request.sampling, seed, self.stop)

    def _take(self, call: Call, piece: Piece, version: int) -> bool:
        """Add a piece to its answer, up to that one's end; does it go on behind it?"""
        if not 0 <= piece.place < len(call.answers):
            raise Passing(f"an event is of continuation {piece.place}, and {len(call.answers)} were asked for")
        answer = call.answers[piece.place]
        if answer.finish is not None:
            return bool(piece.token_ids)
        before = len(answer.tokens)
        if len(piece.token_ids) != len(piece.logprobs):
            answer.finish = "error"
        for token, logprob in zip(piece.token_ids, piece.logprobs, strict=False):
            if answer.finish is not None or not answer.add(token, logprob, version, complete=self.dialect.complete):
                break
            answer.settle(self.stop)
        answer.finish = answer.finish or piece.finish
        n = len(answer.tokens) - before
        self._count(generated_tokens=n, decode_rows=n - (before == answer.asked and n > 0))
        if answer.finish is not None:
            self._end([answer])
        return n < len(piece.token_ids)

    def _silence(self, client: Client) -> Exception:
        """What it means that a call heard nothing for so long."""
        quiet = time.monotonic() - self._heard
        said = f"{client.name}: no token within {self.timeout_s:g} s (rollout.timeout_s)"
        return AssayError(f"{said}: the server hangs") if quiet >= self.timeout_s else Passing(said)

    def _again(self, call: Call, failure: Passing) -> None:
        """Ask again for what is missing, each answer by itself once it has tokens; or end it."""
        left = call.open
        for answer in left:
            answer.attempts += 1
        over = [a for a in left if a.attempts >= ATTEMPTS]
        again = [a for a in left if a.attempts < ATTEMPTS]
        if over:
            ending = Call(over, urgent=True)
            ending.task = self._task(self._give_up(ending, failure))
            self._running.add(ending)
        if not again:  # too often, or it failed behind the last answer's end
            return
        fresh = self.dialect.several and all(not a.tokens for a in again) and _neighbours(again)
        wait = max(failure.wait, self._backoff(again[0].attempts))
        for part in [again] if fresh else [[a] for a in again]:
            self._rest(Call(part, call.urgent), wait)

    def _backoff(self, attempts: int) -> float:
        longest = min(LONGEST_BACKOFF_S, self.backoff_s * 2 ** (attempts - 1))
        return longest * self._random.uniform(0.5, 1.0)

    def _rest(self, call: Call, wait: float) -> None:
        def wake() -> None:
            self._resting.pop(call, None)
            self._waiting.appendleft(call)
            self._start()

        self._resting[call] = asyncio.get_running_loop().call_later(wait, wake)

    async def _give_up(self, call: Call, failure: Unavailable) -> None:
        """End answers as errors where the server is alive; else the server is gone."""
        try:
            if self._client is not None:
                await self._client.get(self.dialect.health)
        except Passing as dead:
            self.fail(AssayError(f"the server no longer answers ({dead}); before that: {failure}"))
        except Refused:
            pass  # it said something
        self._running.discard(call)
        self._end(call.open, "error")
        self._start()

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run beside the caller; a fault of it is raised to whoever waits for rollouts."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self.fail(fault)

    def _end(self, answers: Sequence[Answer], finish: str | None = None) -> None:
        for answer in answers:
            if finish == "error":
                answer.finish = "error"
            self._outbox.put(answer.request.id, self._record(answer))

    def _record(self, answer: Answer) -> Rollout:
        return answer.rollout(self.dialect.reported(answer.request.sampling), self.stop, self.decode)

    def _count(self, **more: int) -> None:
        old = self._stats
        self._stats = Stats(**{name: getattr(old, name) + more.get(name, 0) for name in Stats.__dataclass_fields__})


def _neighbours(answers: Sequence[Answer]) -> bool:
    """Are their indices in a row, so that one question's seeds stay theirs?"""
    return all(b.index - a.index == 1 for a, b in pairwise(answers))
