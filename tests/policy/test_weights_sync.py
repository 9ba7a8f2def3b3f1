"""Weights that are published arrive at the engine, and a sync that did nothing is found out at once."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
import torch
from policy_helpers import batch_of, make_groups, make_policy, make_recipe
from tiny import tiny_model, tiny_tokenizer

from assay.errors import AssayError
from assay.policy.model import add_lora
from assay.records import Prompt
from assay.rollout.dispatch import Dispatcher
from assay.rollout.engine import Request
from assay.rollout.fleet import Fleet, Replica
from assay.rollout.native import NativeEngine
from assay.rollout.sampling import Sampling
from assay.sync.weights import Weights

TOKENIZER = tiny_tokenizer()
PROMPT = Prompt("p", (), "12+3=", tuple(TOKENIZER("12+3=").input_ids))
NARROW = {"model__compute_dtype": "bfloat16"}


class Deaf(NativeEngine):
    """An engine whose sync silently does nothing but count."""

    def _publish(self, version: int) -> None:
        self._version = version


def moved(policy) -> None:
    """The policy some large steps later."""
    for seed in range(4):
        policy.update(batch_of(make_groups(seed)), 0.0)


def make(lora: bool = False, **keys):
    recipe = make_recipe(
        update__learning_rate=0.02,
        rollout__temperature=0.8,
        **keys,
        **({"model__lora": {"rank": 4}} if lora else {}),
    )
    model = tiny_model()
    return make_policy(recipe, add_lora(model, recipe.model.lora, 0) if recipe.model.lora else model)


@asynccontextmanager
async def serving(policy, kind: type[NativeEngine] = NativeEngine, tolerance: float = 1e-3, **options):
    engine = kind(policy.model, TOKENIZER, **options)
    weights = Weights(Dispatcher(engine), PROMPT, tolerance, temperature=0.8)
    try:
        await weights.start(policy)
        yield weights
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("options", "keys", "tolerance"),
    [
        ({}, {}, 1e-3),
        ({"snapshot": True}, {}, 1e-3),
        ({"dtype": torch.bfloat16}, NARROW, 0.25),
        ({}, {"lora": True}, 1e-3),
        ({}, {"model__gradient_checkpointing": True}, 1e-3),
    ],
)
def test_a_publish_brings_the_new_weights(options, keys, tolerance):
    async def main() -> None:
        policy = make(**keys)
        async with serving(policy, tolerance=tolerance, **options) as weights:
            moved(policy)
            metrics = await weights.publish(policy)
            assert metrics["sync/probe_gap"] <= tolerance
            assert weights.version == weights.dispatcher.engine.version == 1
            await weights.dispatcher.engine.submit(Request(0, PROMPT, 2, Sampling(max_tokens=5, temperature=0.8)))
            async for _, rollout in weights.dispatcher.engine.finished():
                assert set(rollout.segments[0].versions) == {1}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "keys", "tolerance"),
    [({"snapshot": True}, {}, 1e-3), ({"dtype": torch.bfloat16}, NARROW, 0.25)],
)
def test_a_sync_that_does_nothing_stops_the_run(options, keys, tolerance):
    async def main() -> None:
        policy = make(**keys)
        async with serving(policy, Deaf, tolerance, **options) as weights:
            moved(policy)
            with pytest.raises(AssayError, match=r"after publishing version 1 .* the weights did not arrive") as caught:
                await weights.publish(policy)
            assert "\n" not in str(caught.value)

    asyncio.run(main())


def test_weights_that_are_not_numbers_do_not_pass_the_probe():
    async def main() -> None:
        policy = make()
        async with serving(policy, snapshot=True) as weights:
            with torch.no_grad():
                policy.model.model.norm.weight.fill_(torch.nan)
            with pytest.raises(AssayError):
                await weights.probe(policy)

    asyncio.run(main())


def test_a_resumed_run_goes_on_under_its_version():
    async def main() -> None:
        policy = make()
        engine = NativeEngine(policy.model, TOKENIZER)
        weights = Weights(Dispatcher(engine), PROMPT, 1e-3, temperature=0.8, version=17)
        await weights.start(policy)
        assert engine.version == 17
        await weights.publish(policy)
        assert engine.version == 18
        await engine.close()

    asyncio.run(main())


def test_the_probe_compares_at_the_training_temperature():
    """Log-probs of another temperature are those of another distribution."""

    async def main() -> None:
        policy = make()
        moved(policy)
        engine = NativeEngine(policy.model, TOKENIZER)
        with pytest.raises(AssayError, match="the weights did not arrive"):
            await Weights(Dispatcher(engine), PROMPT, 1e-3, temperature=1.0).start(policy)
        await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("deaf", [0, 1, 2])
def test_one_engine_of_several_without_the_new_weights_is_found_out(deaf):
    async def main() -> None:
        policy = make()
        kinds = [Deaf if k == deaf else NativeEngine for k in range(3)]
        engines = [kind(policy.model, TOKENIZER, snapshot=True) for kind in kinds]
        fleet = Fleet([Replica(f"replica {k}", engine) for k, engine in enumerate(engines)], retries=1)
        weights = Weights(Dispatcher(fleet), PROMPT, 1e-3, temperature=0.8)
        await weights.start(policy)
        assert all(engine.stats.generated_tokens for engine in engines)
        moved(policy)
        with pytest.raises(AssayError, match="the weights did not arrive"):
            await weights.publish(policy)
        await fleet.close()

    asyncio.run(main())
