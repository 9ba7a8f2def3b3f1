"""Several engines behind one: requests are spread over them, and what a dying one leaves undone goes on elsewhere.

A request goes whole to the replica with the fewest rollouts in flight; those of an urgent one, which probes, go to all
replicas in turn. A replica *is lost* when a call of it raises AssayError, which is how an engine says that its process
or server has died or fallen silent. It is then closed, and started anew where that is possible; its unfinished rollouts
are asked for again, behind the tokens that are known of them, at most ``retries`` times each. Two errors are not a
loss, because every other replica would raise them too: UserError and EngineFailed.

Every rollout that was submitted is yielded exactly once: what a lost replica still says is not listened to.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

from assay.errors import AssayError, UserError
from assay.records import Rollout
from assay.rollout.engine import Engine, EngineFailed, Limits, Request, Stats
from assay.rollout.ledger import Flight, Ledger, requests_for
from assay.rollout.outbox import Outbox

LOG = logging.getLogger("assay")

RESTARTS = 3
"""How often one replica is started anew in the life of a fleet."""


@dataclass(frozen=True)
class Replica:
    """An engine, and how to make it anew."""

    name: str
    """In warnings: ``process 2``, ``http://gpu3:8000``."""
    engine: Engine
    restart: Callable[[], Awaitable[Engine]] | None = None
    """Makes the engine anew, or raises AssayError; absent: nobody can. The new one has, or takes at its `publish`, the
    weights *last published*: the trainer may be writing its own at that moment."""


@dataclass(eq=False)
class Member:
    """A replica's present state."""

    replica: Replica
    engine: Engine
    serves: bool = True
    starting: bool = False
    restarts: int = 0
    pump: asyncio.Task[None] | None = None
    """Follows its ``finished()`` while it has rollouts in flight."""


class Fleet:
    """An :class:`~assay.rollout.engine.Engine` of engines. All methods are called from one event loop."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        retries: int,
        restarts_of_each: int = RESTARTS,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """``retries``: how often a rollout is asked for again (``rollout.max_retries``); then it ends as ``error``.

        ``restarts_of_each``: how often a replica that can be is started anew. ``warn``: told of each loss and return,
        in a line; absent: the log.
        """
        if not replicas:
            raise ValueError("a fleet needs a replica")
        self._members = [Member(r, r.engine) for r in replicas]
        self._retries, self._restarts, self._warn = retries, restarts_of_each, warn or LOG.warning
        self._ledger: Ledger[Member] = Ledger()
        self._outbox = Outbox()
        self._waiting: deque[Flight[Member]] = deque()
        self._change = asyncio.Event()
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retired = Stats()
        self._version = replicas[0].engine.version
        self._closed = False

    @property
    def version(self) -> int:
        """The version last published."""
        return self._version

    @property
    def path(self) -> str:
        """How answers are made, in words."""
        paths = [m.engine.path for m in self._members]
        if len(paths) == 1:
            return paths[0]
        return f"{len(paths)} x {paths[0]}" if len(set(paths)) == 1 else "; ".join(paths)

    @property
    def limits(self) -> Limits:
        """The shortest context, and the slots of all."""
        limits = [m.engine.limits for m in self._members]
        contexts = [x.context for x in limits if x.context is not None]
        engines = sum(m.engine.limits.engines for m in self._serving())
        return Limits(min(contexts, default=None), sum(x.max_running for x in limits), max(1, engines))

    @property
    def stats(self) -> Stats:
        """The sum over all engines, lost ones included."""
        total = self._retired
        for member in self._members:
            total = total.plus(member.engine.stats)
        return total

    @property
    def serving(self) -> int:
        """How many replicas answer."""
        return len(self._serving())

    async def submit(self, request: Request) -> None:
        """Queue a request at a replica. Raises UserError as its engine does, AssayError when none is left."""
        self._outbox.check()
        flights = self._ledger.enter(request)
        try:
            if request.urgent and request.n > 1:
                await self._probe(request, flights)
            else:
                await self._send(request, flights)
        except (AssayError, asyncio.CancelledError):
            self._ledger.strike(flights)
            raise

    def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        """Yield (request id, rollout) as rollouts finish; ends when nothing is in flight. One consumer at a time.

        Raises AssayError when no replica is left, UserError or EngineFailed as an engine does.
        """
        return self._outbox.drain(lambda: bool(self._ledger.flights))

    async def cancel(self, request_id: int) -> None:
        """End the request's unfinished rollouts as ``cancelled``, tokens kept; ``finished`` yields them."""
        flights = self._ledger.of_request(request_id)
        for flight in flights:
            flight.cancelled = True
        waiting = [f for f in self._waiting if f.cancelled]
        self._waiting = deque(f for f in self._waiting if not f.cancelled)
        self._end(waiting)
        for member in dict.fromkeys(f.owner for f in flights):
            if member is not None:
                await self._ask(member, member.engine.cancel(request_id))

    async def publish(self, version: int) -> None:
        """Give every replica the policy's present weights; one that is being started anew joins with them.

        Where none serves it waits for one. Raises AssayError when none is left.
        """
        self._version = version
        while True:
            self._outbox.check()
            async with self._turn:
                await asyncio.gather(*(self._ask(m, m.engine.publish(version)) for m in self._serving()))
            if self._serving():
                return
            if self._outbox.failure is None:
                self._change.clear()
                await self._change.wait()

    async def partials(self) -> list[tuple[int, Rollout]]:
        """(request id, what its unfinished rollouts hold so far), those between two replicas included."""
        known: dict[tuple[int, int], Rollout] = {}
        for member in self._serving():
            try:
                for request_id, rollout in await member.engine.partials():
                    if self._ledger.find(member, request_id, rollout.index):
                        known[request_id, rollout.index] = rollout
            except AssayError as error:
                self._lose(member, error)
        flights = self._ledger.flights.values()
        unfinished = [(f.request.id, known.get(f.name) or f.rollout("cancelled")) for f in flights]
        return unfinished + self._outbox.unseen()

    async def sleep(self) -> None:
        """Put every replica to sleep: nothing is in flight."""
        if self._ledger.flights:
            raise RuntimeError("answers are in flight: drain finished() before sleep()")
        await asyncio.gather(*(self._ask(m, m.engine.sleep()) for m in self._serving()))

    async def close(self) -> None:
        """Stop every replica, and what was being started."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(m.engine.close() for m in self._members))

    def _serving(self) -> list[Member]:
        return [m for m in self._members if m.serves]

    def _fail(self, failure: BaseException) -> None:
        self._outbox.fail(failure)
        self._change.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside: what a caller who is cancelled must not leave half done."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    async def _ask(self, member: Member, work: Awaitable[None]) -> None:
        """Await a call of an engine; when that raises, the replica is lost."""
        try:
            await work
        except (UserError, EngineFailed):
            raise
        except AssayError as error:
            self._lose(member, error)

    async def _probe(self, request: Request, flights: list[Flight[Member]]) -> None:
        """Spread the rollouts of one request over all replicas."""
        for k, flight in enumerate(flights):
            serving = self._serving()
            one = replace(request, n=1, first_index=flight.index)
            await self._send(one, [flight], to=serving[k % len(serving)] if serving else None)

    async def _send(
        self,
        request: Request,
        flights: list[Flight[Member]],
        avoid: Member | None = None,
        to: Member | None = None,
    ) -> None:
        """Submit ``to`` a replica, absent that with the least to do (if possible not ``avoid``).

        They wait where none serves.
        """
        serving = self._serving()
        if not serving:
            self._waiting.extend(flights)
            return
        loads = Counter(id(f.owner) for f in self._ledger.flights.values())
        member = to or min(serving, key=lambda m: (m is avoid, loads[id(m)]))
        for flight in flights:
            flight.owner = member
        await self._ask(member, member.engine.submit(request))
        mine = [f for f in flights if f.owner is member]
        for flight in mine:
            flight.sent = True
        if any(f.cancelled for f in mine):
            await self._ask(member, member.engine.cancel(request.id))
        if member.serves and (member.pump is None or member.pump.done()):
            member.pump = self._start(self._pump(member))

    async def _pump(self, member: Member) -> None:
        """Take in what a replica finishes, until it has nothing in flight."""
        try:
            while asked := [f for f in self._ledger.owned(member) if f.sent]:
                async with aclosing(member.engine.finished()) as stream:
                    async for request_id, rollout in stream:
                        self._take(member, request_id, rollout)
                self._reissue([f for f in asked if self._ledger.find(member, *f.name) is f], avoid=member)
        except (UserError, EngineFailed) as error:
            self._fail(error)
        except AssayError as error:
            self._lose(member, error)

    def _take(self, member: Member, request_id: int, rollout: Rollout) -> None:
        flight = self._ledger.find(member, request_id, rollout.index)
        if flight is None:
            return
        if rollout.finish == "error":
            flight.known = rollout if rollout.segments else flight.known
            self._reissue([flight], avoid=member)
            return
        self._deliver(flight, rollout)

    def _deliver(self, flight: Flight[Member], rollout: Rollout) -> None:
        self._ledger.strike([flight])
        self._outbox.put(flight.request.id, rollout)

    def _lose(self, member: Member, error: AssayError) -> None:
        """Take a replica out: it is closed and started anew where possible, the others are asked for the rest."""
        if not member.serves or self._closed:
            return
        member.serves = False
        member.starting = member.replica.restart is not None and member.restarts < self._restarts
        flights = self._ledger.owned(member)
        _detach(flights)
        if member.pump is not None and member.pump is not asyncio.current_task():
            member.pump.cancel()
        what = f"{len(flights)} unfinished answers go on elsewhere" if flights else "nothing was in flight there"
        then = "; it is started anew" if member.starting else ""
        self._warn(f"{member.replica.name} is lost: {error}; {what}{then}")
        self._start(self._recover(member, flights, error))

    async def _recover(self, member: Member, flights: list[Flight[Member]], error: AssayError) -> None:
        """Save what a lost replica has made, and close it."""
        with suppress(AssayError):
            partials = {(i, r.index): r for i, r in await member.engine.partials() if r.segments}
            for flight in flights:
                flight.known = partials.get(flight.name, flight.known)
        with suppress(AssayError):
            await member.engine.close()
        self._mourn(error)
        self._reissue(flights)
        if member.starting:
            await self._restart(member)

    def _mourn(self, error: AssayError) -> None:
        """Without a replica that serves or is being started there is nothing to wait for."""
        if not any(m.serves or m.starting for m in self._members):
            count = len(self._members)
            lost = "the engine is lost" if count == 1 else f"all {count} engines are lost"
            self._fail(AssayError(f"{lost}; the last error: {error}"))

    async def _restart(self, member: Member) -> None:
        """Start a lost replica anew, as often as it may be; it serves once it has the version last published."""
        make = member.replica.restart
        while make is not None and member.starting:
            member.restarts += 1
            try:
                await self._join(member, await make())
            except AssayError as error:
                member.starting = member.restarts < self._restarts
                self._warn(f"{member.replica.name} cannot be started anew: {error}")
                self._mourn(error)
        self._change.set()

    async def _join(self, member: Member, engine: Engine) -> None:
        try:
            async with self._turn:
                if engine.version != self._version:
                    await engine.publish(self._version)
                self._retired = self._retired.plus(member.engine.stats)
                member.engine, member.serves, member.starting = engine, True, False
        except BaseException:
            await engine.close()
            raise
        self._warn(f"{member.replica.name} serves again")
        waiting, self._waiting = list(self._waiting), deque()
        await self._resend(waiting)

    def _reissue(self, flights: Sequence[Flight[Member]], avoid: Member | None = None) -> None:
        """Ask for lost rollouts again; those that were cancelled, or lost too often, end here."""
        _detach(flights)
        over = [f for f in flights if f.cancelled or f.losses >= self._retries]
        self._end(over)
        again = [f for f in flights if not (f.cancelled or f.losses >= self._retries)]
        for flight in again:
            flight.losses += 1
        if again:
            self._start(self._resend(again, avoid))

    async def _resend(self, flights: list[Flight[Member]], avoid: Member | None = None) -> None:
        for request, some in list(requests_for(flights)):
            try:
                await self._send(request, some, avoid)
            except EngineFailed as error:
                self._fail(error)
            except UserError:
                self._end(some)

    def _end(self, flights: Iterable[Flight[Member]]) -> None:
        """Yield them as they are: ``cancelled`` where that was asked for, else ``error``."""
        for flight in flights:
            self._deliver(flight, flight.rollout("cancelled" if flight.cancelled else "error"))


def _detach(flights: Iterable[Flight[Member]]) -> None:
    for flight in flights:
        flight.owner, flight.sent = None, False
