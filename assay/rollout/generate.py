"""The engine ``transformers``: plain ``generate``, one request after the other. Slow, and what others are held to.

Left out on purpose: continuous batching, shared prefixes, paged caches. A request is one batch of equal prompts (in
parts of ``rollout.max_running``), so there is no padding either. Tokens are drawn by ``generate`` itself from torch's
generator, seeded for each batch by the run, the admission, the prompt and the first index, and put back afterwards: the
answers of a request are a function of the request and the weights, whatever else is asked for. Log-probs are taken from
the logits that no processor has touched.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.records import Finish, Rollout, Segment
from assay.rollout.engine import EngineFailed, Limits, Request, Stats, check_prompt, room_of
from assay.rollout.native import stop_tokens
from assay.rollout.outbox import unseen
from assay.rollout.sampling import Sampling
from assay.rollout.seeds import seed_of
from assay.rollout.segments import appended, begun_tokens, decoder, is_whole
from assay.rollout.weights import GenerationWeights, causal_lm_of


@dataclass(frozen=True)
class Batch:
    """Rollouts of one request that are generated together."""

    request: Request
    first: int
    n: int

    @property
    def seed(self) -> int:
        """Of torch's generator."""
        return seed_of(self.request, self.first, len(begun_tokens(self.request.begun)))


class GenerateEngine:
    """An :class:`~assay.rollout.engine.Engine` of transformers' own ``generate``, in this process."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        dtype: torch.dtype | None = None,
        max_running: int = 128,
        snapshot: bool = False,
        stop: frozenset[int] | None = None,
    ) -> None:
        """``dtype``: precision of generation, absent the model's own. ``snapshot``: sample from a copy of the weights.

        ``stop``: ids that end an answer, absent those of the model and its tokenizer.
        """
        causal_lm = causal_lm_of(model)
        self._weights = GenerationWeights(model, dtype, snapshot=snapshot)
        self._decode = decoder(tokenizer)
        self._stop = stop_tokens(causal_lm, tokenizer) if stop is None else stop
        context = getattr(causal_lm.config.get_text_config(), "max_position_embeddings", None)
        self._limits = Limits(context, max_running)
        self._waiting: deque[Batch] = deque()
        self._done: deque[tuple[int, Rollout]] = deque()
        self._consumed = False
        self._version = 0
        self._stats = Stats()

    @property
    def version(self) -> int:
        """The policy version that tokens sampled from now on carry."""
        return self._version

    @property
    def path(self) -> str:
        """How answers are made, in words."""
        return "transformers generate"

    @property
    def limits(self) -> Limits:
        """The model's context and the size of a batch."""
        return self._limits

    @property
    def stats(self) -> Stats:
        """Counts since the engine was built."""
        return self._stats

    async def submit(self, request: Request) -> None:
        """Queue a request, an urgent one first. Raises UserError when its prompt leaves no room in the context."""
        check_prompt(request.prompt, self._limits.context)
        size, end = self._limits.max_running, request.first_index + request.n
        batches = [Batch(request, i, min(size, end - i)) for i in range(request.first_index, end, size)]
        if request.urgent:
            self._waiting.extendleft(reversed(batches))
        else:
            self._waiting.extend(batches)

    async def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        """Yield (request id, rollout), a batch after the other; ends when nothing waits. One consumer at a time."""
        if self._consumed:
            raise RuntimeError("finished() is already being consumed")
        self._consumed = True
        try:
            while self._done or self._waiting:
                if not self._done:
                    batch = self._waiting.popleft()
                    self._done.extend((batch.request.id, r) for r in self._generate(batch))
                yield self._done.popleft()
        finally:
            self._consumed = False

    async def cancel(self, request_id: int) -> None:
        """End what waits of the request as ``cancelled``; a batch that has begun is generated whole."""
        dropped = [b for b in self._waiting if b.request.id == request_id]
        self._waiting = deque(b for b in self._waiting if b.request.id != request_id)
        self._done.extend((request_id, r) for b in dropped for r in self._unbegun(b))

    async def partials(self) -> list[tuple[int, Rollout]]:
        """What has not been yielded: the finished ones, and those that wait with what they had begun."""
        waiting = [(b.request.id, r) for b in self._waiting for r in self._unbegun(b)]
        return unseen(self._done) + waiting

    async def publish(self, version: int) -> None:
        """Sample from the trainer's present weights, as ``version``, from the next batch on."""
        self._weights.refresh()
        self._version = version

    async def sleep(self) -> None:
        """Nothing is held between batches; RuntimeError with answers in flight."""
        if self._waiting or self._done:
            raise RuntimeError("answers are in flight: drain finished() before sleep()")

    async def close(self) -> None:
        """Drop what waits."""
        self._waiting.clear()
        self._done.clear()

    def _generate(self, batch: Batch) -> list[Rollout]:
        request, started = batch.request, time.perf_counter()
        begun = begun_tokens(request.begun)
        room, whole = room_of(request, self._limits.context), is_whole(request.begun, self._stop)
        if whole or room <= 0:
            return [self._record(batch, 0, None, "stop" if whole else "length", started)]
        new, logits, scores = self._sample(batch, (*request.prompt.token_ids, *begun), room)
        full, kept = _logprobs(new, logits, scores, request.sampling)
        return [self._taken(batch, row, new[row], full[row], kept[row], started) for row in range(batch.n)]

    def _sample(self, batch: Batch, ids: tuple[int, ...], room: int) -> tuple[Tensor, Tensor, Tensor]:
        """New tokens (n, T), the logits (n, T, V) and what ``generate`` drew from (n, T, V), on the CPU."""
        from transformers import GenerationConfig

        model: Any = self._weights.causal_lm
        model.generation_config = GenerationConfig()  # the copy's: a checkpoint's own cuts are not asked for
        prompt = torch.tensor([ids], device=model.device).expand(batch.n, -1)
        config = generation_config(batch.request.sampling, room, self._stop)
        cuda = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda), torch.inference_mode():
            torch.manual_seed(batch.seed)
            found = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
        new = found.sequences[:, prompt.shape[1] :].cpu()
        self._count(batch, len(ids), new)
        return new, torch.stack(found.logits, 1).float().cpu(), torch.stack(found.scores, 1).float().cpu()

    def _count(self, batch: Batch, prefill: int, new: Tensor) -> None:
        old, steps = self._stats, new.shape[1]
        generated = sum(len(_until(row, self._stop)) for row in new.tolist())
        self._stats = Stats(
            generated_tokens=old.generated_tokens + generated,
            prefill_tokens=old.prefill_tokens + batch.n * prefill,
            prefilled=old.prefilled + batch.n,
            steps=old.steps + steps - 1,
            decode_rows=old.decode_rows + generated - batch.n,
        )

    def _taken(self, batch: Batch, row: int, new: Tensor, full: Tensor, kept: Tensor | None, started: float) -> Rollout:
        tokens = _until(new.tolist(), self._stop)
        n = len(tokens)
        if not torch.isfinite(full[:n]).all():
            raise EngineFailed("the model's logits are NaN or infinite: its weights have diverged")
        cut = None if kept is None else tuple(kept[:n].tolist())
        segment = Segment("policy", tuple(tokens), tuple(full[:n].tolist()), (self._version,) * n, cut)
        return self._record(batch, row, segment, "stop" if tokens[-1] in self._stop else "length", started)

    def _unbegun(self, batch: Batch) -> list[Rollout]:
        return [self._record(batch, row, None, "cancelled", None) for row in range(batch.n)]

    def _record(
        self, batch: Batch, row: int, segment: Segment | None, finish: Finish, started: float | None
    ) -> Rollout:
        segments = appended(batch.request.begun, segment)
        tokens = begun_tokens(segments)
        return Rollout(
            prompt_id=batch.request.prompt.id,
            index=batch.first + row,
            segments=segments,
            finish=finish,
            text=self._decode(tokens[:-1] if finish == "stop" else tokens),
            seconds=0.0 if started is None else time.perf_counter() - started,
        )


def generation_config(sampling: Sampling, room: int, stop: frozenset[int]) -> Any:
    """transformers' settings that mean what ``sampling`` means, for at most ``room`` tokens."""
    from transformers import GenerationConfig

    ends = sorted(stop)
    drawn: dict[str, Any] = {"do_sample": False}
    if not sampling.greedy:
        cuts = {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p or None}
        drawn = {"do_sample": True, "temperature": sampling.temperature, **cuts}
    return GenerationConfig(
        max_new_tokens=room,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
        output_logits=True,
        output_scores=True,
        return_dict_in_generate=True,
        **drawn,
    )


def _logprobs(new: Tensor, logits: Tensor, scores: Tensor, sampling: Sampling) -> tuple[Tensor, Any]:
    """(n, T) log-probs of the tokens under softmax(logits / temperature); and renormalised over what cuts have left."""
    chosen = new[:, :, None]
    full = (logits / sampling.temperature).log_softmax(-1).gather(-1, chosen)[:, :, 0]
    kept = scores.log_softmax(-1).gather(-1, chosen)[:, :, 0] if sampling.cuts else [None] * len(new)
    return full, kept


def _until(tokens: list[int], stop: frozenset[int]) -> list[int]:
    """``tokens`` up to the first that ends an answer: what follows in the batch is padding."""
    end = next((i for i, token in enumerate(tokens) if token in stop), len(tokens) - 1)
    return tokens[: end + 1]
