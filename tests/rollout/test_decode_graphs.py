"""Replayed decoding steps give what steps give, whatever joins, leaves, grows, sleeps or is published."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from rollout_helpers import TEXTS, TOKENIZER, requests, run
from tape import taped
from tiny import tiny_model
from torch import nn

from assay.rollout import graphs, selfcheck
from assay.rollout.graphs import DecodeGraphs, Record, Step, recorder, rounded
from assay.rollout.native import NativeEngine

FAMILIES = ("llama", "qwen3", "gemma2", "gemma3", "olmo2")


@pytest.fixture
def on_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines record here too, as on a CUDA device."""
    monkeypatch.setattr(selfcheck, "recorder", lambda device: lambda: taped)


def engine_of(model: nn.Module, **settings: Any) -> NativeEngine:
    """In 64 bits, where weights are not arranged for MKL, which makes them anew."""
    return NativeEngine(model, TOKENIZER, dtype=torch.float64, **settings)


def graphs_of(engine: NativeEngine) -> DecodeGraphs:
    assert engine._runner.graphs is not None
    return engine._runner.graphs


def same(recorded: NativeEngine, plain: NativeEngine, **asked: Any) -> None:
    """Both give the same answers and log-probs."""
    ours, theirs = run(recorded, requests(**asked)), run(plain, requests(**asked))
    assert {k: r.token_ids for k, r in ours.items()} == {k: r.token_ids for k, r in theirs.items()}
    for key, rollout in ours.items():
        assert rollout.sampler_logprobs == pytest.approx(theirs[key].sampler_logprobs, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_plain_steps(family: str, on_tape: None) -> None:
    model = tiny_model(family, sharpness=2.0)
    recorded, plain = engine_of(model, max_running=5), engine_of(model, max_running=5, graphs=False)
    assert recorded.path == "native, fused products, CUDA graphs"
    assert plain.path == "native, fused products"
    for seed in range(2):
        same(recorded, plain, first_id=100 * seed)
    stats = recorded.stats
    assert graphs_of(recorded).replayed > stats.steps / 2
    assert stats.decode_rows == plain.stats.decode_rows
    assert stats.attended - stats.attended_padding == plain.stats.attended - plain.stats.attended_padding


def test_a_publish_in_place_keeps_what_was_recorded_and_its_weights_count(on_tape: None) -> None:
    model = tiny_model("qwen3", sharpness=2.0, attention_bias=True)
    recorded, plain = engine_of(model), engine_of(model, graphs=False)
    same(recorded, plain)
    before, held = graphs_of(recorded).replayed, dict(graphs_of(recorded)._steps)
    assert held
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    for engine in (recorded, plain):
        asyncio.run(engine.publish(1))
    same(recorded, plain)
    assert all(graphs_of(recorded)._steps[shape] is step for shape, step in held.items())
    assert graphs_of(recorded).replayed > before


def test_weights_that_lie_elsewhere_are_not_read_where_they_lay(on_tape: None) -> None:
    model = tiny_model("llama", sharpness=2.0).double()
    recorded, plain = engine_of(model), engine_of(model, graphs=False)
    same(recorded, plain)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = 0.9 * parameter + 0.01
    for engine in (recorded, plain):
        asyncio.run(engine.publish(1))
    assert not graphs_of(recorded)._steps
    same(recorded, plain)


def test_a_cache_that_has_grown_or_slept_is_recorded_anew(on_tape: None) -> None:
    model = tiny_model("llama", sharpness=2.0)
    recorded, plain = engine_of(model), engine_of(model, graphs=False)
    same(recorded, plain, texts=TEXTS[:1], max_tokens=4)
    memory = graphs_of(recorded)._memory
    same(recorded, plain, max_tokens=40)
    assert graphs_of(recorded)._memory > memory
    for engine in (recorded, plain):
        asyncio.run(engine.sleep())
        asyncio.run(engine.publish(1))
    assert not graphs_of(recorded)._steps
    same(recorded, plain, max_tokens=40)


def test_spare_rows_disturb_nobody(on_tape: None) -> None:
    """An urgent answer runs alone while five, whose weights have changed, wait for their prefill in the next slots."""
    model = tiny_model("llama", sharpness=2.0)

    async def story(engine: NativeEngine) -> dict[tuple[int, int], tuple[int, ...]]:
        found = {}
        for request in requests(texts=TEXTS[:5], n=1, max_tokens=12):
            await engine.submit(request)
        async for i, rollout in engine.finished():
            if not found:
                await engine.publish(1)
                await engine.submit(replace(*requests(texts=TEXTS[5:], n=1, first_id=50, max_tokens=8), urgent=True))
            found[i, rollout.index] = rollout.token_ids
        return found

    ours = asyncio.run(story(engine_of(model, max_running=5)))
    assert ours == asyncio.run(story(engine_of(model, max_running=5, graphs=False)))
    assert len(ours) == 6


def asking(step: Step) -> Step:
    """Records a step that asks the device for a value on its way."""
    return taped(lambda: step() + 0 * int(step().argmax()))


def stale(step: Step) -> Step:
    """A replay that gives what was computed when it was recorded."""
    first = step().clone()
    return lambda: first


@pytest.mark.parametrize(("record", "why"), [(asking, "asks for a value"), (stale, "replayed logits differ")])
def test_what_cannot_be_recorded_is_not(
    record: Record, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(selfcheck, "recorder", lambda device: lambda: record)
    with caplog.at_level(logging.WARNING, "assay"):
        engine = engine_of(tiny_model("llama"))
    assert engine.path == "native, fused products"
    assert why in caplog.text
    assert len(run(engine, requests(texts=TEXTS[:2], n=1))) == 2


def test_the_oldest_graph_goes(on_tape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST", 2)
    model = tiny_model("llama", sharpness=2.0)
    recorded = engine_of(model)
    same(recorded, engine_of(model, graphs=False), max_tokens=60)
    assert len(graphs_of(recorded)._steps) == 2 < len(graphs_of(recorded)._met)


def test_sizes_grow_by_a_quarter_at_most() -> None:
    for least in (1, 64):
        sizes = sorted({rounded(n, least) for n in range(1, 5000)})
        assert all(rounded(size, least) == size for size in sizes)
        assert all(n <= rounded(n, least) < max(n + least, 1.25 * n + 1) for n in range(1, 5000))
        assert len(sizes) < 90


def test_only_a_device_that_can_records() -> None:
    assert recorder(torch.device("cpu")) is None
    assert recorder(torch.device("mps")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_device(family: str) -> None:
    model = tiny_model(family, sharpness=2.0).cuda()
    recorded, plain = NativeEngine(model, TOKENIZER), NativeEngine(model, TOKENIZER, graphs=False)
    assert recorded.path.endswith("CUDA graphs")
    for version in range(1, 4):
        same(recorded, plain)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.01
        for engine in (recorded, plain):
            asyncio.run(engine.sleep() if version == 2 else engine.publish(version))
            asyncio.run(engine.publish(version))
    assert graphs_of(recorded).replayed > 0
