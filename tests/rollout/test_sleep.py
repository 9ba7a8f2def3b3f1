"""An engine that sleeps holds no copies and no cache, refuses to answer, and wakes with the publish that follows."""

from __future__ import annotations

import asyncio
import gc

import pytest
import torch
from rollout_helpers import TOKENIZER, requests, run
from tiny import tiny_model
from torch import nn

from assay.rollout.native import NativeEngine
from assay.rollout.packed import Packed, library_for
from assay.rollout.projection import Int8

PACKS = library_for(torch.float32) is not None


def held(model: nn.Module) -> int:
    """Elements of all tensors but the model's own (packed weights are opaque: they count by their shape)."""
    own = {id(p) for p in model.parameters()} | {id(b) for b in model.buffers()}
    tensors = [o for o in gc.get_objects() if isinstance(o, torch.Tensor) and id(o) not in own]
    return sum(t.numel() for t in tensors)


def copies_in(engine: NativeEngine) -> list[str]:
    """Where the engine's network keeps arranged weights."""
    blocks = getattr(engine._network, "_blocks", ())
    parts = [(name, part) for block in blocks for name, part in vars(block).items() if isinstance(part, Packed | Int8)]
    return [name for name, part in parts if any(vars(part).get(name) is not None for name in ("_arranged", "weight"))]


@pytest.mark.parametrize("dtype", [None, torch.int8])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_asleep_and_awake(family: str, dtype: torch.dtype | None) -> None:
    if family == "gpt2" and dtype is not None:
        pytest.skip("8 bits are for fused products")
    model = tiny_model(family)
    engine = NativeEngine(model, TOKENIZER, dtype=dtype)
    before = run(engine, requests(greedy=True))
    gc.collect()
    awake = held(model)
    assert bool(copies_in(engine)) == (family == "llama" and (dtype is not None or PACKS))
    asyncio.run(engine.sleep())
    asyncio.run(engine.sleep())
    gc.collect()
    cache = 2 * model.config.num_hidden_layers * 128 * model.config.hidden_size
    assert awake - held(model) >= cache
    if dtype is not None or PACKS:
        assert not copies_in(engine)
    with pytest.raises(RuntimeError, match="the engine sleeps: publish the weights first"):
        run(engine, requests(greedy=True))
    asyncio.run(engine.publish(1))
    after = run(engine, [])
    assert {k: r.token_ids for k, r in after.items()} == {k: r.token_ids for k, r in before.items()}


def test_an_engine_with_answers_in_flight_stays_awake() -> None:
    engine = NativeEngine(tiny_model(), TOKENIZER)

    async def sleepy() -> None:
        await engine.submit(requests()[0])
        await engine.sleep()

    with pytest.raises(RuntimeError, match=r"^answers are in flight"):
        asyncio.run(sleepy())
    assert run(engine, [])
