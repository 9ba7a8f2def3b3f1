"""The engine in this process: continuous batching on the trainer's own weights.

A step admits waiting answers to free slots, prefills the new ones (each distinct prompt once), samples their
first token, then decodes one token for every running answer; finished ones leave after each sampling. No
padding is ever computed in decoding, and the vocabulary is sorted only for requests that cut it.

Between two steps the event loop has its turn, and hands finished rollouts to verifiers, which work in processes
of their own. Steps run in its thread, the one in which the trainer updates: OpenMP keeps a pool of threads for
each thread that computes, and with more of them than cores each product waits for a sleeper to be woken
(benchmarks/choices.py).

Deterministic mode: a *round* is everything submitted before ``finished()`` is called, sorted by (id, first
index). What is submitted or published while it runs waits for, or is refused until, its end; so the rows of
every forward are a function of the requests, never of the clock. (Cancelling is the clock's doing: in this
mode only to abandon a round.) Outside it, requests submitted during a round join at its next step.

What is sampled from changes at ``publish`` only. With ``snapshot`` False and equal precision the engine reads
the trainer's own tensors where it can: no step may run between the optimizer's writing them and the publish, so
drain ``finished()`` before updating. Answers running at a publish keep tokens and log-probs, and their keys and
values are computed anew; with ``kv: keep`` they are kept too, which is cheaper and not what the new weights would have
computed. How far off that is gets measured once after each publish (`Stats.kv_gap`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from assay.records import Rollout
from assay.rollout.engine import Limits, Request, Stats, check_prompt, room_of
from assay.rollout.outbox import unseen
from assay.rollout.sampling import draw_kernel, sample
from assay.rollout.scheduler import Scheduler
from assay.rollout.seeds import uniforms
from assay.rollout.segments import begun_tokens, decoder
from assay.rollout.selfcheck import prepare
from assay.rollout.sequence import Sequence
from assay.rollout.weights import causal_lm_of

Heard = Callable[[list[Sequence]], None]
"""Told of the sequences that have just been given a token each."""

PASSES = 8
"""Turns of the event loop after a step: enough for a finished rollout to reach its verifier, and for a verdict back."""


def stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """All end-of-sequence ids: of the generation config, the config and the tokenizer."""
    found = [getattr(getattr(model, "generation_config", None), "eos_token_id", None)]
    found += [getattr(model.config.get_text_config(), "eos_token_id", None), tokenizer.eos_token_id]
    ids: set[int] = set()
    for entry in found:
        ids.update(entry if isinstance(entry, list | tuple) else () if entry is None else (entry,))
    return frozenset(int(i) for i in ids)


class NativeEngine:
    """An :class:`~assay.rollout.engine.Engine` on any Hugging Face causal LM that passes its self-check."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        dtype: torch.dtype | None = None,
        max_running: int = 128,
        prefill_tokens: int = 4096,
        deterministic: bool = False,
        snapshot: bool = False,
        stop: frozenset[int] | None = None,
        kv: Literal["recompute", "keep"] = "recompute",
        heard: Heard | None = None,
        busy: Callable[[], None] | None = None,
        graphs: bool = True,
        compiled: bool = True,
        version: int = 0,
    ) -> None:
        """Raises UserError for an architecture that the engine cannot serve.

        ``dtype``: precision of generation, absent the model's own; int8: 8-bit matrices (see
        :mod:`assay.rollout.projection`). ``max_running``: answers at once.
        ``prefill_tokens``: most positions of one prefill. ``snapshot``: sample from a copy even at equal
        precision. ``stop``: ids that end an answer, absent those of the model and its tokenizer. ``kv``: what becomes
        of running answers' keys and values at a publish. ``heard``: see `Heard`.
        ``busy``: called after each batch of a prefill. ``graphs``: record and replay decoding steps where the device
        can (not in deterministic mode). ``compiled``: compile what a decoding step does beside its matrix products for
        the processor (`assay.kernels`), where there is a compiler. ``version``: of the present weights.
        """
        graphs = graphs and not deterministic
        self._runner = prepare(model, prefill_tokens, dtype, snapshot, graphs=graphs, compiled=compiled)
        self._network = self._runner.network
        self._draw = draw_kernel(self._network.dtype) if compiled and self._network.device.type == "cpu" else None
        causal_lm = causal_lm_of(model)
        self._decode = decoder(tokenizer)
        self._stop = stop_tokens(causal_lm, tokenizer) if stop is None else stop
        context = getattr(causal_lm.config.get_text_config(), "max_position_embeddings", None)
        self._limits = Limits(context, max_running)
        self._scheduler = Scheduler(max_running)
        self._deterministic = deterministic
        self._inbox: deque[Request] = deque()
        self._done: deque[tuple[int, Rollout]] = deque()
        self._kv, self._heard = kv, heard
        self._aged: Sequence | None = None
        self._runner.busy = busy
        self._version = version
        self._generated = 0
        self._news: asyncio.Event | None = None
        self._stopping = False
        self._asleep = False

    @property
    def version(self) -> int:
        """The policy version that tokens sampled from now on carry."""
        return self._version

    @property
    def path(self) -> str:
        """How answers are made, in words."""
        return f"native, {self._network.path}{', CUDA graphs' if self._runner.graphs else ''}"

    @property
    def limits(self) -> Limits:
        """The model's context and the number of slots."""
        return self._limits

    @property
    def stats(self) -> Stats:
        """Counts since the engine was built."""
        return replace(self._runner.stats, generated_tokens=self._generated)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The ids that end an answer."""
        return self._stop

    async def submit(self, request: Request) -> None:
        """Queue a request. Raises UserError when its prompt is empty or leaves no room in the context."""
        check_prompt(request.prompt, self._limits.context)
        self._inbox.append(request)

    async def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        """Run what was submitted; yield (request id, rollout) as they finish. One consumer at a time.

        In deterministic mode it ends with its round, even when requests were submitted meanwhile. Leaving it
        early (close it, as by ``contextlib.aclosing``) keeps what is unfinished for the next call.
        """
        if self._news is not None:
            raise RuntimeError("finished() is already being consumed")
        if self._asleep and self._inbox:
            raise RuntimeError("the engine sleeps: publish the weights first")
        self._news, self._stopping = asyncio.Event(), False
        self._open_inbox()
        driver = asyncio.create_task(self._drive(self._news))
        try:
            while True:
                while self._done:
                    yield self._done.popleft()
                if driver.done():
                    await driver
                    if self._deterministic or not self._inbox:
                        return
                    driver = asyncio.create_task(self._drive(self._news))
                self._news.clear()
                await self._news.wait()
        finally:
            self._stopping = True
            if not driver.done():
                await driver
            self._news = None

    async def cancel(self, request_id: int) -> None:
        """End the request's unfinished rollouts as ``cancelled``, tokens kept; ``finished()`` yields them."""
        self._done.extend(self._cancel(request_id))
        if self._news:
            self._news.set()

    async def partials(self) -> list[tuple[int, Rollout]]:
        """What the unfinished rollouts hold so far, those that wait included, and those nobody has seen yet."""
        self._open_inbox()
        return unseen(self._done) + self._records([*self._scheduler.running, *self._scheduler.waiting])

    async def publish(self, version: int) -> None:
        """Sample from the trainer's present weights, as ``version``, from the next token on.

        Raises RuntimeError in deterministic mode while a round is running.
        """
        if self._deterministic and self._scheduler.busy:
            raise RuntimeError("deterministic mode publishes between rounds only: drain finished() first")
        self._publish(version)

    async def sleep(self) -> None:
        """Free the cache and the arranged weights until the next publish; RuntimeError with answers in flight."""
        if self._scheduler.busy or self._inbox:
            raise RuntimeError("answers are in flight: drain finished() before sleep()")
        if self._asleep:
            return
        self._asleep = True
        self._runner.clear()
        self._network.release()

    async def close(self) -> None:
        """Stop after the step in progress and free the cache."""
        self._stopping = True
        self._runner.clear()

    async def _drive(self, news: asyncio.Event) -> None:
        """Step until nothing is in flight; the event loop has its turn after each step."""
        try:
            while self._scheduler.busy or (self._inbox and not self._deterministic):
                if self._stopping:
                    return
                self._done.extend(self._step())
                news.set()
                for _ in range(PASSES):
                    await asyncio.sleep(0)
        finally:
            news.set()

    def _open_inbox(self) -> None:
        """Queue what was submitted."""
        requests = [self._inbox.popleft() for _ in range(len(self._inbox))]
        if self._deterministic:
            requests.sort(key=lambda r: (not r.urgent, r.id, r.first_index))
        for request in requests:
            sequences = self._sequences(request)
            self._scheduler.add(s for s in sequences if not s.finish)
            self._done.extend(self._records([s for s in sequences if s.finish]))

    def _sequences(self, request: Request) -> list[Sequence]:
        room = room_of(request, self._limits.context) + len(begun_tokens(request.begun))
        name = (request.seed, request.id, request.prompt.id)
        indices = range(request.first_index, request.first_index + request.n)
        return [Sequence(request, i, uniforms(*name, i, room)).begin(self._stop) for i in indices]

    def _publish(self, version: int) -> None:
        self._network.refresh()
        self._asleep = False
        self._runner.refreshed()
        running = self._scheduler.running
        if self._kv == "keep":
            self._aged = max(running, key=lambda s: s.cached, default=None)
        else:
            for sequence in running:
                sequence.cached = 0
        self._version = version

    def _cancel(self, request_id: int) -> list[tuple[int, Rollout]]:
        self._open_inbox()
        unstarted = self._scheduler.cancel(request_id)
        return self._records([*unstarted, *self._retire()])

    def _step(self) -> list[tuple[int, Rollout]]:
        """Admit, prefill, decode: one step; returns what finished."""
        if not self._deterministic:
            self._open_inbox()
        finished: list[Sequence] = []
        with torch.inference_mode():
            self._scheduler.admit()
            if slots := self._scheduler.due:
                rows = [self._scheduler.running[slot] for slot in slots]
                self._take(rows, self._runner.fill(rows, slots, self._scheduler.next_up))
                finished += self._retire()
            if running := self._scheduler.running[: self._scheduler.warm]:
                logits = self._runner.decode(running)
                if self._aged in running:
                    spare = len(self._scheduler.running)
                    self._runner.measure(self._aged, logits[running.index(self._aged)], spare)
                self._aged = None
                self._take(running, logits)
                finished += self._retire()
        return self._records(finished)

    def _records(self, sequences: list[Sequence]) -> list[tuple[int, Rollout]]:
        return [(s.request.id, s.rollout(self._decode)) for s in sequences]

    def _take(self, rows: list[Sequence], logits: Tensor) -> None:
        """Sample one token for each row."""
        numbers = torch.tensor([s.uniforms.item(len(s.tokens)) for s in rows], dtype=torch.float64)
        draw = sample(logits, numbers, [s.request.sampling for s in rows], self._draw)
        kept = draw.kept_logprobs.tolist() if draw.kept_logprobs is not None else [None] * len(rows)
        for row, token, full, cut in zip(rows, draw.tokens.tolist(), draw.full_logprobs.tolist(), kept, strict=True):
            row.append(token, full, cut if row.request.sampling.cuts else None, self._version, self._stop)
        self._generated += len(rows)
        if self._heard is not None:
            self._heard(rows)

    def _retire(self) -> list[Sequence]:
        finished, moves = self._scheduler.retire()
        with torch.inference_mode():
            for source, target in moves:
                self._runner.cache.move(source, target, self._scheduler.running[target].cached)
        return finished
