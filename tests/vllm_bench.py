"""A real vLLM over a tiny model, beside the test or as a server: each is started once for all tests (conftest.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import torch
from tiny import tiny_model, tiny_tokenizer

from assay.recipe.schema import Recipe
from assay.records import Prompt, Rollout
from assay.rollout.engine import Request
from assay.rollout.sampling import Sampling
from assay.rollout.vllm.engine import VllmEngine

needs_vllm = pytest.mark.vllm
"""Marks a test that runs the real one (conftest.py skips it where there is none)."""
WIDE = {"hidden_size": 128, "num_hidden_layers": 6, "max_position_embeddings": 8192}
"""vLLM's attention on a CPU wants heads of 32; answers long enough to have something happen meanwhile."""
TOKENIZER = tiny_tokenizer()
LONG = "a much longer prompt than the others, 0123456789"
T = TypeVar("T")


def recipe(**sections: dict[str, Any]) -> Recipe:
    values: dict[str, Any] = {
        "rollout": {"dtype": "float32", "max_tokens": 8000, "max_running": 16, "timeout_s": 60},
        "data": {"max_prompt_tokens": 64},
    }
    for name, keys in sections.items():
        values[name] = {**values.get(name, {}), **keys}
    return Recipe.model_validate(values)


def prompt(text: str) -> Prompt:
    return Prompt(text, (), text, tuple(TOKENIZER(text).input_ids))


def llama(seed: int = 0) -> Any:
    return tiny_model("llama", seed=seed, **WIDE)


def overwrite(model: Any, seed: int) -> None:
    """Give the trainer's module other weights in place, as an optimizer does."""
    with torch.no_grad():
        for mine, other in zip(model.parameters(), llama(seed).parameters(), strict=True):
            mine.copy_(other)


@dataclass
class Bench:
    """An engine, the trainer's model that it is to follow, and the event loop that it lives in."""

    engine: VllmEngine
    model: Any
    runner: asyncio.Runner
    version: int = 0

    def run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return self.runner.run(awaited())

    async def publish(self, seed: int | None = None) -> int:
        """Publish the model, with the weights of ``seed`` first, as the next version."""
        if seed is not None:
            overwrite(self.model, seed)
        self.version += 1
        await self.engine.publish(self.version)
        return self.version

    async def answers(self, *requests: Request) -> dict[tuple[int, int], Rollout]:
        for request in requests:
            await self.engine.submit(request)
        return {(i, r.index): r async for i, r in self.engine.finished()}

    @contextmanager
    def endless(self) -> Iterator[None]:
        """Answers do not stop of themselves: they run for as long as they may."""
        stop, self.engine._stop = self.engine._stop, frozenset()
        yield
        self.engine._stop = stop

    async def until(self, holds: Callable[[dict[int, Rollout]], bool]) -> dict[int, Rollout]:
        """Wait until what the unfinished answers hold, by index, is as wished."""
        while not holds(held := {r.index: r for _, r in await self.engine.partials()}):
            await asyncio.sleep(0.005)
        return held


@contextmanager
def bench(make: Callable[[Any], VllmEngine], publish: bool = True) -> Iterator[Bench]:
    """A bench over what ``make`` makes of the model, closed at the end; without a publish a server is only starting."""
    model = llama()
    with asyncio.Runner() as runner:

        async def made() -> VllmEngine:
            return make(model)

        it = Bench(runner.run(made()), model, runner)
        try:
            if publish:
                it.run(it.publish())
            yield it
        finally:
            it.run(it.engine.close())


def ask(text: str = LONG, n: int = 1, id: int = 0, **more: Any) -> Request:
    sampling = {k: more.pop(k) for k in ("temperature", "top_p", "top_k", "greedy", "max_tokens") if k in more}
    return Request(id, prompt(text), n, Sampling(**{"max_tokens": 20, **sampling}), seed=5, **more)


@torch.no_grad()
def gap(model: Any, request: Request, rollout: Rollout, temperature: float = 1.0, tokens: slice = slice(None)) -> float:
    """Largest difference of the log-probs of some ``tokens`` of a rollout from the model's own at a temperature."""
    ids = torch.tensor([[*request.prompt.token_ids, *rollout.token_ids]], device=model.device)
    logits = model(ids).logits[0, len(request.prompt.token_ids) - 1 : -1].float().cpu()
    known = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(rollout.token_ids)[:, None])[:, 0]
    differences = (known - torch.tensor(rollout.sampler_logprobs)).abs()[tokens]
    return float(differences.max()) if len(differences) else 0.0


def texts(answers: dict[tuple[int, int], Rollout]) -> dict[tuple[int, int], str]:
    return {name: rollout.text for name, rollout in answers.items()}
