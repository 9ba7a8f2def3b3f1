"""The native engine in a process of its own: the same answers, and no way to die, hang or half-read unnoticed."""

import asyncio
import os
from contextlib import asynccontextmanager

import pytest
import torch
from rollout_helpers import TOKENIZER, collect, requests
from tiny import tiny_model

from assay.errors import UserError
from assay.records import Prompt
from assay.rollout.engine import Request
from assay.rollout.native import NativeEngine
from assay.rollout.process.board import Board
from assay.rollout.process.engine import ProcessEngine
from assay.rollout.process.messages import Settings
from assay.rollout.sampling import Sampling

PATIENCE = 120.0
"""Seconds after which a scenario is taken to hang."""


def play(scenario):
    return asyncio.run(asyncio.wait_for(scenario, PATIENCE))


@asynccontextmanager
async def process_on(model, *, timeout_s=60.0, board=None, **settings):
    values = {"dtype": "float32", "max_running": 5, "threads": 1, **settings}
    engine = ProcessEngine(board or Board(model), model, TOKENIZER, Settings(**values), timeout_s=timeout_s)
    try:
        yield engine
    finally:
        await engine.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def shake(model, seed: int) -> None:
    """Other weights, in place, as an optimizer writes them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)


async def rounds(engine, model, wanted, steps=2):
    """Segments, texts and statistics of rounds with other weights before each."""
    seen = []
    for version in range(1, steps + 1):
        shake(model, version)
        await engine.publish(version)
        answers = await collect(engine, wanted)
        seen.append(({k: (r.segments, r.finish, r.text) for k, r in answers.items()}, engine.stats))
        await engine.sleep()
    return seen


@pytest.mark.parametrize(
    ("family", "settings", "options"),
    [("llama", {}, {}), ("gemma2", {"top_k": 6}, {}), ("qwen2", {}, {"dtype": "bfloat16"}), ("llama", {}, {"lora": 1})],
)
def test_its_rounds_are_those_of_the_engine_in_this_process_bit_for_bit(family, settings, options):
    """Tied and untied weights, norms with an offset, biases, adapters, another precision; sleep in between."""
    dtype = options.get("dtype", "float32")

    def made():
        model = tiny_model(family, sharpness=2.0 if settings else 1.0)
        if "lora" in options:
            from assay.policy.model import add_lora
            from assay.recipe.schema import LoraRecipe

            model = add_lora(model, LoraRecipe(rank=2), 0)
        return model

    async def both():
        wanted = requests(n=3, max_tokens=12, **settings)
        model = made()
        native = NativeEngine(model, TOKENIZER, dtype=getattr(torch, dtype), max_running=5, deterministic=True)
        here = await rounds(native, model, wanted)
        model = made()
        async with process_on(model, dtype=dtype, deterministic=True) as engine:
            there = await rounds(engine, model, wanted)
            assert "in a process of its own" in engine.path
            with pytest.raises(UserError, match="context is 256"):
                await engine.submit(Request(0, Prompt("p", (), "", (5,) * 256), 1, Sampling()))
        return here, there

    here, there = play(both())
    assert here == there
    assert here[0][0] != here[1][0]
