"""The engine ``llama_server`` on the real llama.cpp: each version's weights, the full softmax, faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from rollout_helpers import TEXTS, TOKENIZER, logits_of, prompt, requests
from tiny import EOS, tiny_model

from assay.errors import AssayError, UserError
from assay.recipe.schema import DataRecipe, Recipe, RolloutRecipe, RunRecipe, SyncRecipe
from assay.records import Prompt
from assay.rollout.engine import Request
from assay.rollout.engines import make_engine
from assay.rollout.llama.engine import LlamaEngine
from assay.rollout.sampling import Sampling

FULL = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": None},
    "olmo2": {},
    "gemma2": {},
    "gemma3": {"num_hidden_layers": 7, "layer_types": FULL},
}
"""What differs from the tiny models' own fields, so that llama.cpp computes the same."""
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


LONG = 600
"""Tokens of answers that are still running when something happens."""


def endless(seed: int = 2):
    """A model that hardly ever ends an answer: the logit of the end token is 0, far below the likeliest."""
    model = tiny_model("llama", seed=seed, initializer_range=0.4, max_position_embeddings=4096)
    with torch.no_grad():
        model.model.embed_tokens.weight[EOS] = 0
    return model


async def begun(engine, tokens: int):
    """Wait until all unfinished answers have so many tokens."""
    async with asyncio.timeout(60):
        while min(len(r) for _, r in await engine.partials()) < tokens:
            await asyncio.sleep(0)


def first(fleet) -> LlamaEngine:
    """The engine of its first replica."""
    return fleet._members[0].engine


def recipe_of(gguf="f16", **rollout) -> Recipe:
    return Recipe(
        rollout=RolloutRecipe(
            **{"engine": "llama_server", "max_running": 8, "max_tokens": 32, "timeout_s": 60, **rollout}
        ),
        data=DataRecipe(max_prompt_tokens=64),
        sync=SyncRecipe(gguf=gguf),
        run=RunRecipe(threads=1),
    )


def with_engine(model, scenario, gguf="f16", **rollout):
    """Run ``scenario(engine)`` on an engine that is closed afterwards, whatever happens."""

    async def run():
        engine = make_engine(recipe_of(gguf, **rollout), model, TOKENIZER)
        try:
            return await scenario(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


async def answers_of(engine, wanted):
    for request in wanted:
        await engine.submit(request)
    return {(i, r.index): r async for i, r in engine.finished()}


def gaps(model, wanted, answers) -> list[float]:
    """|engine - trainer| of every token's log-prob at the temperature."""
    found = []
    for request in wanted:
        for index in range(request.first_index, request.first_index + request.n):
            answer = answers[request.id, index]
            scaled = logits_of(model, request, answer) / request.sampling.temperature
            full = scaled.log_softmax(-1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
            found += (torch.tensor(answer.sampler_logprobs) - full).abs().tolist()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_trainers_logprobs(family):
    model = tiny_model(family, seed=2, initializer_range=0.2, **FAMILIES[family])
    wanted = requests(TEXTS[:3], n=2, max_tokens=12)
    answers = with_engine(model, lambda engine: answers_of(engine, wanted))
    assert statistics.mean(gaps(model, wanted, answers)) < 0.01
    assert {len(r) for r in answers.values()} <= set(range(1, 13))


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_bias": True},
        {"tie_word_embeddings": False},
        {"rope_parameters": LLAMA3},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        {"num_key_value_heads": 4},
    ],
    ids=["bias", "untied", "llama3_rope", "linear_rope", "no_groups"],
)
def test_variants_of_llama(fields):
    model = tiny_model("llama", seed=4, initializer_range=0.2, **fields)
    wanted = requests(TEXTS[2:4], n=2, max_tokens=24)
    answers = with_engine(model, lambda engine: answers_of(engine, wanted))
    assert statistics.mean(gaps(model, wanted, answers)) < 0.01


def test_rounding_is_that_of_the_precision():
    model = tiny_model("llama", seed=2, initializer_range=0.2)
    wanted = requests(TEXTS[:3], n=4, max_tokens=16)
    mean = {}
    for gguf in ("f16", "bf16", "q8_0"):
        answers = with_engine(model, lambda engine: answers_of(engine, wanted), gguf=gguf)
        mean[gguf] = statistics.mean(gaps(model, wanted, answers))
    assert mean["f16"] < mean["bf16"]
    assert mean["f16"] < mean["q8_0"]
    assert max(mean.values()) < 0.1


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_it_samples_the_full_softmax(temperature):
    model = tiny_model("llama", seed=5, initializer_range=0.2)
    request = Request(0, prompt("12+3="), 3000, Sampling(temperature=temperature, max_tokens=1), seed=2)
    answers = with_engine(model, lambda engine: answers_of(engine, [request]), max_running=60)
    logits = logits_of(model, request, next(iter(answers.values())))[0]
    expected = 3000 * (logits / temperature).softmax(-1)
    counts = Counter(r.token_ids[0] for r in answers.values())
    assert (expected < 0.002 * 3000).sum() > 10  # what min-p, top-p or top-k would have cut is there
    assert sum(counts[t] for t in (expected < 0.002 * 3000).nonzero().flatten().tolist()) > 0
    common = [t for t in range(len(expected)) if expected[t] > 5]
    rest = 3000 - sum(counts[t] for t in common), 3000 - expected[common].sum().item()
    statistic = sum((counts[t] - expected[t].item()) ** 2 / expected[t].item() for t in common)
    statistic += (rest[0] - rest[1]) ** 2 / rest[1]
    assert statistic < len(common) + 4 * (2 * len(common)) ** 0.5
    assert max(gaps(model, [replace(request, n=40)], answers)) < 0.05


def test_greedy_is_the_likeliest_and_cuts_are_those_asked_for():
    model = tiny_model("qwen2", seed=6, initializer_range=0.3)
    greedy = requests(TEXTS[:2], n=1, greedy=True, max_tokens=8)
    cut = requests(TEXTS[:2], n=4, first_id=10, temperature=1.3, top_k=3, max_tokens=8)
    answers = with_engine(model, lambda engine: answers_of(engine, [*greedy, *cut]))
    for request in greedy:
        logits = logits_of(model, request, answers[request.id, 0])
        top = logits.topk(2).values
        sure = (top[:, 0] - top[:, 1]) > 0.05
        assert torch.equal(logits.argmax(-1)[sure], torch.tensor(answers[request.id, 0].token_ids)[sure])
    for request in cut:
        for index in range(4):
            answer = answers[request.id, index]
            scaled = logits_of(model, request, answer) / 1.3
            tokens = torch.tensor(answer.token_ids)[:, None]
            assert (scaled.gather(1, tokens)[:, 0] >= scaled.topk(3).values[:, -1] - 0.05).all()
            kept = scaled.topk(3).values.logsumexp(-1)
            expected = scaled.gather(1, tokens)[:, 0] - kept
            assert answer.segments[0].kept_logprobs == pytest.approx(expected.tolist(), abs=0.05)
            assert all(map(torch.isnan, map(torch.tensor, answer.sampler_logprobs)))  # the full ones are not told


def test_all_stop_tokens_and_the_seed():
    stops = [EOS, 9, 10, 11, 12, 13]
    model = tiny_model("llama", eos_token_id=stops)
    wanted = requests(TEXTS[:2], n=12, max_tokens=20)

    async def twice(engine):
        return await answers_of(engine, wanted), await answers_of(engine, wanted)

    first, second = with_engine(model, twice, max_running=12)  # one question at a time: its rows are always the same
    ends = {r.token_ids[-1] for r in first.values() if r.finish == "stop"}
    assert len(ends) > 3  # llama.cpp itself knows three
    assert all(not set(r.token_ids[:-1]) & set(stops) for r in first.values())
    assert {k: r.token_ids for k, r in first.items()} == {k: r.token_ids for k, r in second.items()}
    assert len({r.token_ids for r in first.values()}) > 12


def test_published_weights_are_the_adapters_too_and_running_answers_go_on():
    model = get_peft_model(endless(), LoraConfig(r=2, target_modules=["q_proj", "mlp.up_proj"]))
    request = Request(0, prompt("12+3="), 2, Sampling(max_tokens=3000), seed=1)

    async def scenario(engine):
        await engine.publish(1)
        await engine.submit(request)
        await begun(engine, 20)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.5)
        await engine.publish(2)
        await begun(engine, 20 + max(len(r) for _, r in await engine.partials()))
        await engine.cancel(0)
        return {(i, r.index): r async for i, r in engine.finished()}

    answers = with_engine(model, scenario, max_tokens=3000)
    for answer in answers.values():
        versions = answer.segments[0].versions
        assert set(versions) == {1, 2}
        assert list(versions) == sorted(versions)
        new = versions.index(2)
        moved = logits_of(model, request, answer).log_softmax(-1).gather(1, torch.tensor(answer.token_ids)[:, None])
        away = (torch.tensor(answer.sampler_logprobs) - moved[:, 0]).abs()
        assert away[new:].mean() < 0.02
        assert away[:new].mean() > 0.05


def test_a_killed_server_is_told_at_once_and_nothing_is_left_behind():
    folders = []

    async def scenario(fleet):
        engine = first(fleet)
        await engine.submit(Request(0, prompt("1"), 4, Sampling(max_tokens=3500)))
        folders.append(engine._files.folder)
        await begun(engine, 1)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        async for _ in engine.finished():
            pass

    with pytest.raises(AssayError, match="llama-server ended with exit status -9"):
        with_engine(endless(), scenario, max_tokens=3500)
    assert not Path(folders[0]).exists()


@pytest.mark.parametrize("replicas", [1, 2])
def test_answers_of_a_killed_server_go_on_elsewhere_or_at_its_successor(replicas):
    model = endless()
    wanted = [Request(i, prompt("12+3="), 2, Sampling(max_tokens=LONG), seed=1) for i in range(2)]

    async def scenario(fleet):
        await fleet.publish(5)
        for request in wanted:
            await fleet.submit(request)
        await begun(fleet, 1)
        killed = first(fleet).pid
        os.kill(killed, signal.SIGKILL)
        return {(i, r.index): r async for i, r in fleet.finished()}

    answers = with_engine(model, scenario, replicas=replicas, max_tokens=LONG)
    assert len(answers) == 4
    assert {r.finish for r in answers.values()} <= {"length", "stop"}
    assert {v for r in answers.values() for v in r.segments[0].versions} == {5}
    assert statistics.mean(gaps(model, wanted, answers)) < 0.01


def test_it_sleeps_until_the_next_publish():
    async def scenario(engine):
        await answers_of(engine, requests(TEXTS[:1], n=1))
        await engine.sleep()
        assert first(engine).pid is None
        with pytest.raises(RuntimeError, match="sleeps"):
            await first(engine).submit(requests(TEXTS[:1], n=1)[0])
        await engine.publish(1)
        return await answers_of(engine, requests(TEXTS[:1], n=1))

    answers = with_engine(tiny_model("llama"), scenario)
    assert {v for r in answers.values() for v in r.segments[0].versions} == {1}


OWNER = """
import asyncio, sys
sys.path[:0] = {paths!r}
from test_llama_server import answers_of, endless, first, make_engine, recipe_of, requests, TOKENIZER
async def main():
    engine = make_engine(recipe_of(), endless(), TOKENIZER)
    await answers_of(engine, requests(["7"], n=1))
    print(first(engine).pid, first(engine)._files.folder, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_a_killed_trainer_leaves_neither_server_nor_files_behind():
    here = Path(__file__).parent
    program = OWNER.format(paths=[str(here), str(here.parent)])
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        assert list(Path(folder).glob("*.gguf"))
        owner.kill()
    with contextlib.suppress(ProcessLookupError):  # it is gone already
        assert select.select([os.pidfd_open(int(pid))], [], [], 60)[0]
    assert not Path(folder).exists()


PROGRAM = """#!{python}
import argparse, time, xllamacpp
parser = argparse.ArgumentParser()
for name in ("model", "host", "port", "parallel", "ctx-size", "threads", "ubatch-size"):
    parser.add_argument(f"--{{name}}", required=True)
parser.add_argument("--no-warmup", action="store_true", required=True)
told = parser.parse_args()
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_parallel = told.model, int(told.port), int(told.parallel)
params.n_ctx, params.cpuparams.n_threads, params.warmup = int(told.ctx_size), int(told.threads), False
server = xllamacpp.Server(params)
while True:
    time.sleep(1)
"""


def test_a_program_of_the_users(tmp_path):
    program = tmp_path / "llama-server"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    model = tiny_model("llama", seed=2, initializer_range=0.2)
    wanted = requests(TEXTS[:2], n=2, max_tokens=8)
    options = {"binary": str(program), "ubatch_size": 64}
    answers = with_engine(model, lambda engine: answers_of(engine, wanted), options=options)
    assert statistics.mean(gaps(model, wanted, answers)) < 0.01
    program.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    with pytest.raises(AssayError, match=r"llama-server ended with exit status 3; its last words: no such model"):
        with_engine(model, lambda engine: engine.publish(1), options=options)


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"options": {"n_batsh": 64}}, r"rollout.options: llama.cpp has no option 'n_batsh' \(did you mean 'n_batch'"),
        ({"options": {"n_batch": "many"}}, r"rollout.options: llama.cpp's option n_batch cannot be 'many'"),
        ({"options": {"cache_type_k": "q5"}}, r"cache_type_k cannot be 'q5': it is one of GGML_TYPE_F32"),
        ({"options": {"binary": "no-such-llama"}}, "rollout.options.binary: 'no-such-llama' is no program"),
    ],
)
def test_options_that_it_does_not_have(rollout, message):
    with pytest.raises(UserError, match=message):
        with_engine(tiny_model("llama"), lambda engine: engine.publish(1), **rollout)


def test_options_are_used():
    model = tiny_model("llama", seed=2, initializer_range=0.2, hidden_size=128)
    wanted = requests(TEXTS[:3], n=2, max_tokens=24)

    def mean(**options):
        answers = with_engine(model, lambda engine: answers_of(engine, wanted), options=options)
        return statistics.mean(gaps(model, wanted, answers))

    assert mean(cache_type_k="q4_0", cache_type_v="q4_0", flash_attn_type="enabled") > 3 * mean()


def test_a_prompt_that_does_not_fit_is_refused():
    async def scenario(engine):
        await engine.submit(Request(0, Prompt("p", (), "", (5,) * 96), 1, Sampling(max_tokens=4)))

    with pytest.raises(UserError, match="96 tokens and the context is 96"):
        with_engine(tiny_model("llama"), scenario)
