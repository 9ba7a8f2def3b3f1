"""The work of the decoding benchmarks, said once for all sides, and Assay's side of it.

Every prompt is answered several times with exactly so many new tokens (ends of sequence do not stop an answer), sampled
at temperature 1 from the full softmax. A training step does this under new weights each time: nothing computed in one
round may serve the next.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from assay.data.demo_model import resolve_model_path
from assay.data.prompts import load_prompts
from assay.hardware import fast_precision
from assay.policy.model import load_model, load_tokenizer
from assay.recipe.schema import DataRecipe, ModelRecipe
from assay.records import Prompt, Rollout
from assay.rollout.engine import Request, Stats
from assay.rollout.native import NativeEngine
from assay.rollout.sampling import Sampling

TASK = (
    'reasoning_gym:chain_sum{"size": 400, "seed": 1, "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}'
)
FLOATS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True)
class Work:
    """What every side is to do."""

    place: str
    """The model's folder or hub name."""
    prompts: tuple[Prompt, ...]
    samples: int
    """Answers to each prompt."""
    tokens: int
    """Length of every answer."""
    precision: str
    """Of Assay's side, and of the others where they have a choice."""

    @property
    def rows(self) -> int:
        """Answers in all."""
        return len(self.prompts) * self.samples


def options(parser: argparse.ArgumentParser, dtypes: Sequence[str] = (*FLOATS, "int8")) -> None:
    """The options that the decoding benchmarks share."""
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8, help="answers to each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="length of every answer")
    parser.add_argument("--dtype", choices=dtypes, default="auto", help="precision of Assay's generation")


def work_of(chosen: argparse.Namespace, device: str = "cpu") -> Work:
    """The work that the command line asks for."""
    place = resolve_model_path(chosen.model)
    return Work(place, first_prompts(place, chosen.prompts), chosen.samples, chosen.tokens, precision(chosen, device))


def precision(chosen: argparse.Namespace, device: str) -> str:
    """The precision that the command line asks for, or the one that is fast on the device."""
    return fast_precision(device) if chosen.dtype == "auto" else chosen.dtype


def first_prompts(place: str, count: int) -> tuple[Prompt, ...]:
    """The first prompts of the task, under the model's own chat template. Raises SystemExit without enough."""
    tokenizer = load_tokenizer(place, ModelRecipe(path=place))
    prompts = load_prompts(DataRecipe(train=[TASK]), tokenizer).prompts
    if len(prompts) < count:
        raise SystemExit(f"the task has {len(prompts)} distinct prompts, not {count}: give each prompt more samples")
    return prompts[:count]


class Native:
    """The native engine, ready for rounds of the work; ``model`` is the Hugging Face model that it samples from."""

    def __init__(
        self,
        work: Work,
        device: torch.device,
        model: Any = None,
        max_running: int | None = None,
        graphs: bool = True,
        compiled: bool = True,
    ) -> None:
        recipe = ModelRecipe(path=work.place)
        floats = fast_precision(device.type) if work.precision == "int8" else work.precision
        self.model = load_model(work.place, recipe, device, floats) if model is None else model
        self.tokenizer = load_tokenizer(work.place, recipe)
        self._work = work
        self._engine = NativeEngine(
            self.model,
            self.tokenizer,
            dtype=getattr(torch, work.precision),
            max_running=max_running or work.rows,
            stop=frozenset(),
            graphs=graphs,
            compiled=compiled,
        )

    @property
    def stats(self) -> Stats:
        """What the engine has computed so far."""
        return self._engine.stats

    def answers(self, seed: int, tokens: int | None = None) -> list[list[Rollout]]:
        """One round: each prompt's rollouts, in the order of their indices."""
        return asyncio.run(self._answers(seed, tokens or self._work.tokens))

    def rate(self, seed: int, tokens: int | None = None) -> float:
        """Tokens per second of one round."""
        start = time.perf_counter()
        found = self.answers(seed, tokens)
        return sum(len(r) for group in found for r in group) / (time.perf_counter() - start)

    async def _answers(self, seed: int, tokens: int) -> list[list[Rollout]]:
        work = self._work
        for i, prompt in enumerate(work.prompts):
            await self._engine.submit(Request(i, prompt, work.samples, Sampling(max_tokens=tokens), seed))
        found: list[list[Rollout]] = [[] for _ in work.prompts]
        async for i, rollout in self._engine.finished():
            found[i].append(rollout)
        return [sorted(group, key=lambda r: r.index) for group in found]
