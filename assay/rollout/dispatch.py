"""One engine, many askers: training groups, an evaluation and a probe share it, each hearing of its own answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from assay.errors import AssayError
from assay.records import Rollout
from assay.rollout.engine import Engine, Request

Heard = Callable[[int, Rollout], None]
"""Told (request id, rollout) of each answer as it arrives."""


@dataclass(eq=False)
class _Asker:
    heard: Heard | None
    left: int
    done: asyncio.Future[None]

    def end(self) -> None:
        """All is heard."""
        if not self.done.done():
            self.done.set_result(None)


class Dispatcher:
    """Asks an engine for several askers at once; for use from one event loop.

    The engine is read while anything is asked of it. In its deterministic mode what is asked in one call of `ask`
    is one round; further askers wait for its end.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._askers: dict[tuple[int, int], _Asker] = {}
        self._since: dict[tuple[int, int], int] = {}
        self._readings = 0
        self._pump: asyncio.Task[None] | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def ask(self, requests: Sequence[Request], heard: Heard) -> None:
        """Submit ``requests`` and return when all of their rollouts were ``heard``.

        Abandoned, it cancels what is unfinished and waits for the engine to let go of it. Raises what the engine
        raises, and AssayError when it loses rollouts.
        """
        keys = [(r.id, r.first_index + i) for r in requests for i in range(r.n)]
        if not keys:
            return
        if len(set(keys)) < len(keys) or not self._askers.keys().isdisjoint(keys):
            raise ValueError("a rollout is asked for twice")
        asker = _Asker(heard, len(keys), asyncio.get_running_loop().create_future())
        try:
            for request in requests:
                await self.engine.submit(request)
                for index in range(request.first_index, request.first_index + request.n):
                    self._askers[request.id, index] = asker
                    self._since[request.id, index] = self._readings
            self._start()
            await asyncio.shield(asker.done)  # an abandoned asker still waits for the engine to let go
        except BaseException:
            asker.heard = None
            await self._abandon(asker)
            raise

    async def cancel(self, request_id: int) -> None:
        """End the unfinished rollouts of a request: its asker hears them, as ``cancelled``."""
        await self.engine.cancel(request_id)

    async def quiet(self) -> None:
        """Wait until nothing is asked of the engine."""
        await self._quiet.wait()

    def _start(self) -> None:
        self._quiet.clear()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Hand answers to their askers until the engine has none left and nobody has asked for more meanwhile."""
        try:
            while self._askers:
                self._readings += 1
                last: _Asker | None = None
                async with aclosing(self.engine.finished()) as answers:
                    async for request_id, rollout in answers:
                        asker = self._deliver(request_id, rollout)
                        if not self._askers:
                            last = asker  # it goes on when the engine is let go
                            break
                        if asker.left == 0:
                            asker.end()
                if last is not None:
                    last.end()
                lost = [key for key in self._askers if self._since[key] < self._readings]  # asked for before it began
                if lost:
                    raise AssayError(f"the engine lost {len(lost)} rollouts that were asked of it")
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                self._fail(AssayError("the engine is read no more"))
                raise
            self._fail(error)
        finally:
            self._quiet.set()

    def _deliver(self, request_id: int, rollout: Rollout) -> _Asker:
        key = request_id, rollout.index
        if key not in self._askers:
            raise AssayError(f"the engine gave rollout {rollout.index} of request {request_id}, which nobody asked for")
        asker = self._askers[key]
        if asker.heard is not None:
            asker.heard(request_id, rollout)  # should it raise, its asker is told
        del self._askers[key], self._since[key]
        asker.left -= 1
        return asker

    def _fail(self, error: BaseException) -> None:
        askers, self._askers, self._since = set(self._askers.values()), {}, {}
        for asker in askers:
            if not asker.done.done():
                asker.done.set_exception(error)

    async def _abandon(self, asker: _Asker) -> None:
        """Cancel what the asker still waits for, and read it out of the engine."""
        mine = {request_id for (request_id, _), a in self._askers.items() if a is asker}
        if not mine:
            return
        for request_id in mine:
            await self.engine.cancel(request_id)
        self._start()
        await asyncio.wait({asker.done})
        asker.done.exception()  # the engine's failure, if any, is no news to one who has left
