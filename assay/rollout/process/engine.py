"""An engine whose steps run in a child process, on a snapshot of the weights: it samples while the trainer trains.

The parent hears of every token as it is sampled, so that it knows what the child held should the child die. A child
that dies, or says nothing for ``rollout.timeout_s`` while it has work, is an AssayError here, never a wait without end;
it is killed first. It cannot outlive its parent, and keeps no files.

In deterministic mode the child runs the rounds of `NativeEngine`: its rollouts are the same, bit for bit.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import socket
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import numpy as np

from assay.errors import AssayError, UserError
from assay.records import Rollout
from assay.rollout.engine import Limits, Request, Stats, check_prompt
from assay.rollout.outbox import Outbox
from assay.rollout.process.board import Board
from assay.rollout.process.channel import Channel
from assay.rollout.process.handle import Handle
from assay.rollout.process.messages import (
    Blueprint,
    Cancel,
    Done,
    Failed,
    Finished,
    Order,
    Ready,
    Round,
    Sampled,
    Settings,
    Setup,
    Submit,
)
from assay.rollout.process.watch import Watch
from assay.rollout.segments import begun_tokens, decoder
from assay.rollout.sequence import Sequence
from assay.rollout.weights import causal_lm_of

LOAD_SECONDS = 300.0
"""Longest start of a child: it imports libraries and checks the model."""


class ProcessEngine:
    """An :class:`~assay.rollout.engine.Engine` in a process of its own."""

    def __init__(
        self,
        board: Board,
        model: Any,
        tokenizer: Any,
        settings: Settings,
        *,
        timeout_s: float = 300.0,
        name: str = "the generation process",
    ) -> None:
        """Start the child; what it cannot do is known at the first call that awaits it. Raises AssayError, UserError.

        ``board`` is that of ``model``. ``timeout_s``: see ``rollout.timeout_s``. ``name``: in errors.
        """
        causal_lm = causal_lm_of(model)
        blueprint = _pickled(Blueprint.of(model, tokenizer))
        context = getattr(causal_lm.config.get_text_config(), "max_position_embeddings", None)
        self._settings, self._name, self._board = settings, name, board
        self._decode = decoder(tokenizer)
        self._limits = Limits(context, settings.max_running)
        self._path = "native"
        self._stats = Stats()
        self._flights: dict[tuple[int, int], Sequence] = {}
        self._outbox = Outbox()
        self._orders: dict[int, asyncio.Future[None]] = {}
        self._numbers = itertools.count()
        self._round: set[tuple[int, int]] = set()
        self._is_ready = self._asleep = False
        self._version = board.version
        self._watch = Watch(LOAD_SECONDS, self._silent)
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, self._hear, self._hung_up)
        try:
            self._child = Handle(theirs, board.descriptor, settings.threads)
        except OSError as error:
            ours.close()
            raise AssayError(f"{name} cannot be started: {error.strerror}") from error
        board.begin(self)
        plan, device = board.plan, str(causal_lm.device)
        self._channel.send(Setup(settings, plan, board.version, device, blueprint))
        self._timeout_s = timeout_s
        with suppress(RuntimeError):  # no event loop yet: the first call attaches
            self._attach()

    @property
    def version(self) -> int:
        """The policy version that tokens sampled from now on carry."""
        return self._version

    @property
    def path(self) -> str:
        """How answers are made, in words."""
        return f"{self._path}, in a process of its own on {_threads(self._settings.threads)}"

    @property
    def limits(self) -> Limits:
        """The model's context and the number of slots."""
        return self._limits

    @property
    def stats(self) -> Stats:
        """Counts since the engine was built."""
        return self._stats

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    async def ready(self) -> None:
        """Wait until the child serves. Raises UserError or AssayError when it cannot."""
        self._attach()
        while not self._is_ready:
            self._outbox.check()
            await self._outbox.news()

    async def submit(self, request: Request) -> None:
        """Queue a request. Raises UserError when its prompt is empty or leaves no room in the context."""
        self._attach()
        self._outbox.check()
        check_prompt(request.prompt, self._limits.context)
        for index in range(request.first_index, request.first_index + request.n):
            sequence = Sequence(request, index, np.empty(0), begun_tokens(request.begun))
            self._flights[request.id, index] = sequence
        self._channel.send(Submit(request))
        self._mind()

    def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        """Yield (request id, rollout) as they finish; ends when nothing is in flight. One consumer at a time.

        In deterministic mode it ends with its round. Raises AssayError when the child is gone, EngineFailed or
        UserError when it says why it cannot go on.
        """
        self._attach()
        if self._asleep and self._flights:
            raise RuntimeError("the engine sleeps: publish the weights first")
        if self._settings.deterministic and not self._round and self._flights:
            self._round = set(self._flights)
            self._channel.send(Round())
        return self._outbox.drain(lambda: self._generating)

    async def cancel(self, request_id: int) -> None:
        """End the request's unfinished rollouts as ``cancelled``, tokens kept; ``finished()`` yields them."""
        self._attach()
        self._outbox.check()
        self._channel.send(Cancel(request_id))

    async def partials(self) -> list[tuple[int, Rollout]]:
        """What the unfinished rollouts hold so far, also when the child has died."""
        return self._outbox.unseen() + [(s.request.id, s.rollout(self._decode)) for s in self._flights.values()]

    async def publish(self, version: int) -> None:
        """Have the child sample from the trainer's present weights, as ``version``, from its next step on.

        Returns once it does. Raises RuntimeError in deterministic mode while a round is running.
        """
        if self._round:
            raise RuntimeError("deterministic mode publishes between rounds only: drain finished() first")
        await self.ready()
        async with self._board.edition(self, version):
            await self._order(version)
        self._version, self._asleep = version, False

    async def sleep(self) -> None:
        """Free the cache and the arranged weights until the next publish; RuntimeError with answers in flight."""
        if self._flights or len(self._outbox):
            raise RuntimeError("answers are in flight: drain finished() before sleep()")
        await self.ready()
        await self._order(None)
        self._asleep = True

    async def close(self) -> None:
        """End the child."""
        self._end(AssayError(f"{self._name} was closed"))

    def _attach(self) -> None:
        self._channel.attach()
        self._mind()

    @property
    def _generating(self) -> bool:
        """Is there something to come?"""
        return bool(self._round if self._settings.deterministic else self._flights)

    async def _order(self, version: int | None) -> None:
        self._outbox.check()
        number = next(self._numbers)
        done = self._orders[number] = asyncio.get_running_loop().create_future()
        self._channel.send(Order(number, version))
        self._mind()
        try:
            await done
        finally:
            self._orders.pop(number, None)
        self._outbox.check()

    def _mind(self) -> None:
        """Watch for silence while there is something to wait for."""
        lost = self._outbox.failure is not None
        self._watch.mind(not lost and (not self._is_ready or bool(self._orders) or self._generating))

    def _hear(self, message: Any) -> None:
        self._watch.heard()
        match message:
            case Sampled(version, rows, stats):
                self._stats = stats
                for request_id, index, token, logprob, kept in rows:
                    self._flights[request_id, index].take(token, logprob, kept, version)
            case Finished(request_id, rollout, stats):
                self._stats = stats
                del self._flights[request_id, rollout.index]
                self._round.discard((request_id, rollout.index))
                self._outbox.put(request_id, rollout)
            case Done(number):
                if number in self._orders and not self._orders[number].done():
                    self._orders[number].set_result(None)
            case Ready(path, limits, stats):
                self._path, self._limits, self._stats, self._is_ready = path, limits, stats, True
                self._watch.seconds = self._timeout_s
                self._board.end(self)
            case Failed():
                error = message.error(self._name)
                error.__cause__ = message.cause
                self._end(error)
        self._outbox.wake()
        self._mind()

    def _hung_up(self) -> None:
        """The child's end of the connection is closed: it is dead, or about to be."""
        self._end(AssayError(f"{self._name} (pid {self.pid}) {self._child.death()}"))

    def _silent(self) -> None:
        waiting = f"{len(self._flights)} answers in flight" if self._is_ready else "its start unfinished"
        seconds, key = self._watch.seconds, " (rollout.timeout_s)" if self._is_ready else ""
        self._end(AssayError(f"{self._name} (pid {self.pid}) has said nothing for {seconds:g} s{key}, with {waiting}"))

    def _end(self, error: AssayError) -> None:
        """Kill the child, and tell everybody who waits for it."""
        if self._outbox.failure is not None:
            return
        self._outbox.fail(error)
        self._channel.close()
        self._child.kill()
        self._board.end(self)
        for done in self._orders.values():
            if not done.done():
                done.set_result(None)  # `_order` looks why
        self._mind()


def _pickled(blueprint: Blueprint) -> bytes:
    try:
        return pickle.dumps(blueprint)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"{blueprint.kind.__name__} or its tokenizer cannot be sent to another process ({error}): use "
            "rollout.process=trainer"
        ) from error


def _threads(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"
