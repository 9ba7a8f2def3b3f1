"""Tiny runs: a model, sums, a recipe whose reward a fresh model sometimes earns; and an engine that only talks."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny import save_tiny, tiny_tokenizer

from assay.data.prompts import PromptSet
from assay.data.sampler import PromptSampler
from assay.loop.harvest import Harvest
from assay.loop.making import Asking
from assay.loop.schedule import Schedule
from assay.loop.source import GroupSource
from assay.loop.trainer import Outcome, train
from assay.recipe.schema import Recipe
from assay.records import Group, Prompt, Rollout, Segment, Verdict
from assay.rollout.dispatch import Dispatcher
from assay.rollout.engine import Limits, Request, Stats
from assay.rollout.sampling import Sampling
from assay.track.console import make_console
from assay.track.metrics import read_metrics
from assay.track.phases import Phases

SCHEDULED = {"max_staleness", "max_groups", "max_extra", "last_version", "in_order"}

DIGIT = {"verifier": "regex", "options": {"pattern": "[0-9]"}}
"""Right where the answer holds a digit: a fresh model does so about half the time, and learns it in a few steps."""


def make_place(folder: Path, sums: int = 16) -> Path:
    """A folder with a tiny model and ``sums`` distinct problems."""
    save_tiny(folder / "model")
    pairs = [(a, b) for a in range(10) for b in range(a, 10)][:sums]
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "completion": str(a + b)} for a, b in pairs]
    (folder / "sums.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return folder


def settings(place: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """The values of a recipe for a run in seconds; ``sections`` are laid over it, key by key."""
    values: dict[str, Any] = {
        "model": {"path": str(place / "model"), "compute_dtype": "float32"},
        "data": {"train": [str(place / "sums.jsonl")], "holdout": 4},
        "rollout": {"prompts_per_step": 3, "group_size": 4, "max_tokens": 6},
        "reward": {"parts": [DIGIT]},
        "update": {"learning_rate": 1e-3},
        "eval": {"samples": 2},
        "run": {"steps": 2, "folder": str(place / "runs"), "threads": 1},
    }
    for name, keys in sections.items():
        values[name] = {**values.get(name, {}), **keys} if isinstance(keys, dict) else keys
    return values


def quick(place: Path, resume: bool | Path = False, **sections: Any) -> Outcome:
    """Run the recipe of `settings` in this process, silently."""
    recipe = Recipe.from_dict(settings(place, **sections))
    return train(recipe, resume=resume, console=make_console("silent"))


def metrics_of(outcome: Outcome) -> list[dict[str, float]]:
    """The lines of a run's metrics.jsonl."""
    return read_metrics(outcome.folder / "metrics.jsonl")


def prompts(n: int) -> PromptSet:
    """``n`` prompts, the k-th of id and text ``k``."""
    tokenizer = tiny_tokenizer()
    asked = [Prompt(f"p{k}", (), f"{k}", tuple(tokenizer(f"{k}").input_ids), problem=f"p{k}") for k in range(n)]
    return PromptSet(tuple(asked))


class TalkingEngine:
    """An engine without a model: its answers say whose they are, and come in an order that ``seed`` shuffles.

    An answer's text is ``prompt/admission/index``. It remembers what was asked of it.
    """

    def __init__(self, seed: int = 0) -> None:
        self.version = 0
        self.limits = Limits(None, 64)
        self.stats = Stats()
        self.asked: list[Request] = []
        self.cancelled: list[int] = []
        self.hanging = False
        self._random = random.Random(seed)
        self._waiting: list[tuple[int, Rollout]] = []
        self._woken = asyncio.Event()

    async def submit(self, request: Request) -> None:
        self.asked.append(request)
        for index in range(request.first_index, request.first_index + request.n):
            text = f"{request.prompt.id}/{request.id}/{index}"
            segment = Segment("policy", (7, 2), (-1.0, -0.5), (self.version,) * 2)
            self._waiting.append((request.id, Rollout(request.prompt.id, index, (segment,), "stop", text)))

    async def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        self._random.shuffle(self._waiting)
        while self._waiting:
            if self.hanging and self._waiting[-1][1].finish != "cancelled":
                await self._woken.wait()
            for _ in range(self._random.randrange(3)):
                await asyncio.sleep(0)
            yield self._waiting.pop()

    async def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)
        self._woken.set()
        self._waiting = [(i, replace(r, finish="cancelled") if i == request_id else r) for i, r in self._waiting]

    async def partials(self) -> list[tuple[int, Rollout]]:
        return [(i, replace(r, finish="cancelled")) for i, r in self._waiting]

    async def publish(self, version: int) -> None:
        self.version = version

    async def sleep(self) -> None: ...

    async def close(self) -> None: ...


class TalkingScorer:
    """Judges by a function of the answer's text, after a while that ``seed`` decides; remembers what it was shown."""

    def __init__(self, judge: Callable[[str], Verdict], seed: int = 0, per_group: bool = False) -> None:
        self.per_group = per_group
        self.shown: list[tuple[str, tuple[str, ...]]] = []
        self._judge = judge
        self._random = random.Random(seed)

    async def score(self, prompt: Prompt, rollouts: Sequence[Rollout]) -> list[Verdict]:
        self.shown.append((prompt.id, tuple(r.text for r in rollouts)))
        for _ in range(self._random.randrange(6)):
            await asyncio.sleep(0)
        return [self._judge(r.text) for r in rollouts]


def talking_source(
    engine: TalkingEngine,
    scorer: Any,
    n_prompts: int = 50,
    has_signal: Callable[[Group], bool] = lambda g: True,
    **more: Any,
) -> GroupSource:
    """A source of 4 prompts x 3 answers a step over an engine and a scorer of this file."""
    values: dict[str, Any] = {"group_size": 3, "max_invalid": 1.0, **more}
    schedule = Schedule(prompts_per_step=4, **{k: values.pop(k) for k in SCHEDULED & values.keys()})
    return GroupSource(
        dispatcher=Dispatcher(engine),
        scorer=scorer,
        prompts=prompts(n_prompts),
        sampler=PromptSampler(n_prompts, seed=3),
        asking=Asking(Sampling(max_tokens=4), 11, values.pop("max_retries", 0)),
        schedule=schedule,
        has_signal=has_signal,
        phases=Phases(),
        **values,
    )


async def next_step(source: GroupSource) -> Harvest:
    """The next step's groups; its update is then published, as the loop does it."""
    harvest = await source.next_groups()
    await source.dispatcher.engine.publish(source.schedule.version)
    return harvest
