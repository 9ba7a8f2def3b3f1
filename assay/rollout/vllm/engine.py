"""The engine over vLLM: answers in slots, each a stream of pieces; weights published between two of vLLM's steps.

An answer is asked for by itself, not with its siblings: vLLM's prefix cache forwards the shared prompt once, and every
answer keeps its own seed, can be cancelled and can go on behind what it holds. A publish pauses vLLM, sends the
weights and resumes: running answers keep their tokens and log-probs, and their keys and values are computed anew
(``regime.kv: keep`` leaves them). The prefix cache starts empty with each version.

What fails is bounded: an answer whose stream breaks is asked for again, behind the tokens it has, `RETRIES` times; a
vLLM that is gone, or silent for ``timeout_s`` with answers running, ends the engine with an AssayError.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from assay.errors import AssayError
from assay.records import Rollout
from assay.rollout.answer import Answer, of_the_draw
from assay.rollout.engine import EngineFailed, Limits, Request, Stats, room_of
from assay.rollout.outbox import Outbox
from assay.rollout.segments import decoder
from assay.rollout.vllm.answer import ask_for, name_of, take
from assay.rollout.vllm.delivery import Delivery
from assay.rollout.vllm.port import Port, PortError, Refused

RETRIES = 2
"""How often an answer is asked for again after its stream broke."""


class VllmEngine:
    """An :class:`~assay.rollout.engine.Engine` over a `Port`."""

    def __init__(
        self,
        port: Port,
        delivery: Delivery | None,
        tokenizer: Any,
        *,
        stop: frozenset[int],
        limits: Limits,
        path: str,
        timeout_s: float = 300.0,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """``delivery`` None: the weights are fixed, and a publish only counts.

        ``stop``: ids that end an answer. ``timeout_s``: longest silence. ``on_close`` is called last.
        """
        self._port = port
        self._delivery = delivery
        self._decode = decoder(tokenizer)
        self._stop = stop
        self._limits = limits
        self._path = path
        self._timeout = timeout_s
        self._on_close = on_close
        self._version = 0
        self._published = False
        self._first = asyncio.Lock()
        self._waiting: deque[Answer] = deque()
        self._running: dict[Answer, asyncio.Task[None]] = {}
        self._outbox = Outbox()
        self._publishing = False
        self._heard = time.monotonic()
        self._stats = Stats()

    @property
    def version(self) -> int:
        """The policy version that tokens sampled from now on carry."""
        return self._version

    @property
    def path(self) -> str:
        """How answers are made, in words."""
        return self._path

    @property
    def limits(self) -> Limits:
        """What fits."""
        return self._limits

    @property
    def stats(self) -> Stats:
        """What was done so far; vLLM tells nothing of steps and padding."""
        return self._stats

    async def submit(self, request: Request) -> None:
        """Queue a request, or start it where there is a slot. What was never published is published first.

        Raises UserError when the prompt is empty or leaves no room in the context, AssayError when the engine is gone.
        """
        self._outbox.check()
        if self._delivery is not None and self._delivery.asleep:
            raise RuntimeError("the engine sleeps: publish the weights first")
        async with self._first:
            if not self._published:
                await self.publish(self._version)
        room = room_of(request, self._limits.context, "vLLM's context (max_model_len)")
        answers = [Answer(request, request.first_index + i, room) for i in range(request.n)]
        self._stats = replace(
            self._stats,
            prefill_tokens=self._stats.prefill_tokens + len(request.prompt.token_ids) + len(answers[0].held),
            prefilled=self._stats.prefilled + 1,
        )
        for answer in answers:
            answer.settle(self._stop)
            if answer.finish is not None:
                self._retire(answer)
            elif request.urgent:
                self._start(answer)
            else:
                self._waiting.append(answer)
        self._fill()

    def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        """Yield (request id, rollout) as rollouts finish; ends when nothing is in flight. One consumer at a time.

        Raises AssayError when vLLM is gone, or silent for too long while it has answers to make.
        """
        self._heard = time.monotonic()
        return self._outbox.drain(lambda: bool(self._running or self._waiting), self._wait)

    async def cancel(self, request_id: int) -> None:
        """End the request's unfinished rollouts as ``cancelled``, tokens kept; ``finished()`` yields them."""
        for answer in [a for a in self._waiting if a.request.id == request_id]:
            self._waiting.remove(answer)
            answer.finish = "cancelled"
            self._retire(answer)
        running = [a for a in self._running if a.request.id == request_id and not a.cancelled]
        for answer in running:
            answer.cancelled = True
        if running:
            try:
                await self._port.abort([name_of(answer) for answer in running])
            except PortError:
                for answer in running:  # what is there is kept
                    if task := self._running.get(answer):
                        task.cancel()

    async def partials(self) -> list[tuple[int, Rollout]]:
        """What the unfinished rollouts hold so far, those that wait included; they run on."""
        unfinished = [a for a in (*self._running, *self._waiting) if a.finish is None]
        return self._outbox.unseen() + [(a.request.id, self._record(a)) for a in unfinished]

    async def publish(self, version: int) -> None:
        """Send the policy's present weights, and sample from them as ``version`` from the next token on.

        Raises UserError when vLLM refuses its arguments, AssayError when it is gone or did not take the weights.
        """
        self._outbox.check()
        self._publishing = True
        try:
            await self._port.ready()
            if self._delivery is not None:
                await self._delivery.deliver(version)
        except AssayError as error:
            self._outbox.fail(error)
            raise
        except PortError as error:
            there = await self._port.alive()
            said = f"{'vLLM did not take' if there else 'vLLM was lost while it took'} version {version}: {error}"
            self._outbox.fail(EngineFailed(said) if there else AssayError(said))
            self._outbox.check()
        finally:
            self._publishing, self._heard = False, time.monotonic()
        self._version, self._published = version, True

    async def sleep(self) -> None:
        """Free weights and cache until the next publish, where vLLM can; RuntimeError with answers in flight."""
        if self._running or self._waiting:
            raise RuntimeError("answers are in flight: drain finished() before sleep()")
        try:
            if self._delivery is not None:
                await self._delivery.sleep()
        except PortError as error:
            raise AssayError(f"vLLM could not be put to sleep: {error}") from error

    async def close(self) -> None:
        """End what runs, stop a vLLM of our own, free what was sent."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting.clear()
        try:
            if self._delivery is not None:
                await self._delivery.close()
        finally:
            await self._port.close()
            self._on_close()

    def _fill(self) -> None:
        """Start waiting answers in free slots; urgent ones take none."""
        taken = sum(not answer.request.urgent for answer in self._running)
        while self._waiting and taken < self._limits.max_running:
            self._start(self._waiting.popleft())
            taken += 1

    def _start(self, answer: Answer) -> None:
        if not self._running:
            self._heard = time.monotonic()
        self._running[answer] = asyncio.create_task(self._follow(answer))

    async def _follow(self, answer: Answer) -> None:
        """Take an answer's pieces to its end, asking again where the stream breaks."""
        try:
            while answer.finish is None and self._outbox.failure is None:
                try:
                    await self._stream(answer)
                except Refused as error:
                    self._outbox.fail(EngineFailed(f"vLLM refuses a request: {error}"))
                except PortError as error:
                    await self._broken(answer, error)
        except asyncio.CancelledError:
            answer.finish = "cancelled"
        finally:
            self._running.pop(answer, None)
            if answer.finish is not None:
                self._retire(answer)
            if self._outbox.failure is None:
                self._fill()
            self._outbox.wake()

    async def _stream(self, answer: Answer) -> None:
        """One ask. Raises PortError when it breaks off, or ends without a finish."""
        await self._port.ready()
        ask = ask_for(answer, self._stop, salt=f"version-{self._version}")
        told = False
        async with aclosing(self._port.pieces(ask)) as pieces:
            async for piece in pieces:
                self._heard = time.monotonic()
                sound = take(answer, piece, self._version)
                if not told and (not sound or (answer.cancelled and answer.finish is None)):
                    told = True  # with a piece the request is there, which it may not have been at the first abort
                    with suppress(PortError):
                        await self._port.abort([ask.name])
                if answer.finish is not None:
                    return
        raise PortError("the stream ended before the answer did")

    async def _broken(self, answer: Answer, error: PortError) -> None:
        """An ask failed: again, or ``error``; where vLLM itself is gone the engine ends."""
        if answer.cancelled:
            answer.finish = "cancelled"
        elif not await self._port.alive():
            self._outbox.fail(AssayError(f"vLLM is gone: {error}"))
        elif answer.attempts >= RETRIES:
            answer.finish = "error"
        else:
            answer.attempts += 1

    def _retire(self, answer: Answer) -> None:
        self._stats = replace(
            self._stats,
            generated_tokens=self._stats.generated_tokens + len(answer.tokens),
            decode_rows=self._stats.decode_rows + max(len(answer.tokens) - 1, 0),
        )
        self._outbox.put(answer.request.id, self._record(answer))

    def _record(self, answer: Answer) -> Rollout:
        return answer.rollout(of_the_draw(answer.request.sampling), self._stop, self._decode)

    async def _wait(self) -> None:
        """Wait for news, as long as vLLM is not silent for too long."""
        left = self._heard + self._timeout - time.monotonic()
        try:
            await asyncio.wait_for(self._outbox.news(), max(left, 0.0) + 0.01)
        except TimeoutError:
            silent = time.monotonic() - self._heard
            if silent >= self._timeout and not self._publishing:
                n = len(self._running)
                said = f"vLLM was silent for {silent:.0f} s with {n} answers running: taken for dead"
                self._outbox.fail(AssayError(said))
