"""Requests over the tiny tokenizer, and one call that runs an engine to its end."""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from tiny import tiny_tokenizer

from assay.records import Prompt, Rollout
from assay.rollout.engine import Request
from assay.rollout.native import NativeEngine
from assay.rollout.sampling import Sampling

TOKENIZER = tiny_tokenizer()
TEXTS = ("7", "12+3=", "a much longer prompt than the others, 0123456789", "x-y", "5*5=?", "(1+2)*3")


def prompt(text: str) -> Prompt:
    return Prompt(text, (), text, tuple(TOKENIZER(text).input_ids))


def requests(texts=TEXTS, n=3, first_id=0, **sampling: Any) -> list[Request]:
    settings = Sampling(**{"max_tokens": 16, **sampling})
    return [Request(first_id + i, prompt(t), n, settings, seed=5) for i, t in enumerate(texts)]


async def collect(engine: NativeEngine, wanted: list[Request]) -> dict[tuple[int, int], Rollout]:
    for request in wanted:
        await engine.submit(request)
    return {(i, r.index): r async for i, r in engine.finished()}


def run(engine: NativeEngine, wanted: list[Request]) -> dict[tuple[int, int], Rollout]:
    return asyncio.run(collect(engine, wanted))


@torch.no_grad()
def logits_of(model: Any, request: Request, rollout: Rollout) -> torch.Tensor:
    """The plain model's logits (N, V) for each token of the answer."""
    ids = torch.tensor([[*request.prompt.token_ids, *rollout.token_ids]])
    start = len(request.prompt.token_ids) - 1
    return model(ids).logits[0, start:-1].float()
