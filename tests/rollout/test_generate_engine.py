"""Plain ``generate`` as an engine, and the native engine held to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from rollout_helpers import TEXTS, TOKENIZER, collect, logits_of, prompt, requests, run
from tiny import EOS, tiny_model

from assay.errors import UserError
from assay.records import Prompt, Segment
from assay.rollout.engine import EngineFailed, Request
from assay.rollout.generate import GenerateEngine
from assay.rollout.native import NativeEngine
from assay.rollout.sampling import Sampling


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
def test_the_native_engine_equals_generate(family):
    model = tiny_model(family, sharpness=3.0, seed=1)
    wanted = requests(TEXTS[:3], n=1, greedy=True, max_tokens=12, temperature=0.7)
    theirs = run(GenerateEngine(model, TOKENIZER), wanted)
    ours = run(NativeEngine(model, TOKENIZER), wanted)
    assert theirs.keys() == ours.keys()
    for key, answer in theirs.items():
        assert ours[key].token_ids == answer.token_ids
        assert ours[key].finish == answer.finish
        assert ours[key].text == answer.text
        assert ours[key].sampler_logprobs == pytest.approx(answer.sampler_logprobs, abs=1e-4)


CUT = {"temperature": 1.3, "top_k": 7, "top_p": 0.9, "min_p": 0.02}


@pytest.mark.parametrize("settings", [{"temperature": 0.7}, CUT], ids=["full", "cut"])
def test_logprobs_are_those_of_a_plain_forward_whatever_is_cut(settings):
    model = tiny_model("llama", sharpness=2.0, seed=2)
    wanted = requests(TEXTS[:2], n=2, max_tokens=8, **settings)
    answers = run(GenerateEngine(model, TOKENIZER), wanted)
    for request in wanted:
        for index in range(2):
            answer = answers[request.id, index]
            scaled = logits_of(model, request, answer) / request.sampling.temperature
            full = scaled.log_softmax(-1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
            assert answer.sampler_logprobs == pytest.approx(full.tolist(), abs=1e-4)
            kept = answer.segments[0].kept_logprobs
            assert (kept is not None) == request.sampling.cuts
            assert kept is None or all(k >= f - 1e-5 for k, f in zip(kept, full.tolist(), strict=True))


def test_both_engines_draw_tokens_as_often():
    model = tiny_model("qwen2", sharpness=2.0, seed=3)
    request = Request(0, prompt("12+3="), 3000, Sampling(temperature=0.7, top_p=0.9, max_tokens=1), seed=1)
    engines = (
        GenerateEngine(model, TOKENIZER, max_running=3000),
        NativeEngine(model, TOKENIZER, max_running=3000),
    )
    counts = [Counter(r.token_ids[0] for r in run(engine, [request]).values()) for engine in engines]
    both = counts[0] + counts[1]
    statistic = sum((counts[0][t] - counts[1][t]) ** 2 / both[t] for t in both)  # chi-square of two equal samples
    assert len(both) > 10
    assert statistic < len(both) + 4 * (2 * len(both)) ** 0.5


def test_answers_are_a_function_of_the_request_and_no_random_number_of_others_is_used():
    model = tiny_model("llama")
    wanted = requests(TEXTS[:3], n=3, max_tokens=8)
    alone = run(GenerateEngine(model, TOKENIZER), [wanted[2]])
    before = torch.random.get_rng_state()
    together = run(GenerateEngine(model, TOKENIZER), wanted)
    assert torch.equal(before, torch.random.get_rng_state())
    assert {k: together[k].token_ids for k in alone} == {k: r.token_ids for k, r in alone.items()}
    assert len({r.token_ids for r in alone.values()}) == 3
    other = run(GenerateEngine(model, TOKENIZER), [replace(wanted[2], seed=6)])
    assert {r.token_ids for r in other.values()} != {r.token_ids for r in alone.values()}


def test_the_checkpoints_own_sampling_is_not_used():
    model = tiny_model("llama", sharpness=2.0)
    wanted = requests(TEXTS[:2], n=2, max_tokens=6)
    plain = run(GenerateEngine(model, TOKENIZER), wanted)
    model.generation_config.update(top_k=1, repetition_penalty=1.5, temperature=0.1, max_length=3)
    assert {k: r.token_ids for k, r in run(GenerateEngine(model, TOKENIZER), wanted).items()} == {
        k: r.token_ids for k, r in plain.items()
    }
    assert model.generation_config.top_k == 1


def test_every_stop_token_ends_an_answer():
    model = tiny_model("llama", eos_token_id=[EOS, 9, 10, 11, 12])
    answers = run(GenerateEngine(model, TOKENIZER), requests(TEXTS[:2], n=24, max_tokens=20)).values()
    ends = {r.token_ids[-1] for r in answers if r.finish == "stop"}
    assert ends <= {EOS, 9, 10, 11, 12}
    assert len(ends) > 2
    assert all(not set(r.token_ids[:-1]) & {EOS, 9, 10, 11, 12} for r in answers)
    assert {r.finish for r in answers} == {"stop", "length"}


def test_it_goes_on_behind_what_was_begun():
    model = tiny_model("llama", sharpness=3.0)
    greedy = Sampling(greedy=True, max_tokens=12)
    whole = run(GenerateEngine(model, TOKENIZER), [Request(0, prompt("12+3="), 1, greedy)])[0, 0]
    ids, logprobs = whole.token_ids, whole.sampler_logprobs
    begun = (Segment("policy", ids[:3], logprobs[:3], (0,) * 3), Segment("forced", ids[3:5]))
    engine = GenerateEngine(model, TOKENIZER)
    asyncio.run(engine.publish(4))
    again = run(engine, [Request(0, prompt("12+3="), 1, greedy, begun=begun)])[0, 0]
    assert again.token_ids == ids
    assert [s.kind for s in again.segments] == ["policy", "forced", "policy"]
    assert again.segments[2].versions == (4,) * (len(ids) - 5)
    whole_already = (Segment("policy", (7, EOS), (-1.0, -1.0), (0, 0)),)
    assert run(engine, [Request(0, prompt("1"), 1, greedy, begun=whole_already)])[0, 0].finish == "stop"
    full = (Segment("policy", (7,) * 12, (-1.0,) * 12, (0,) * 12),)
    assert run(engine, [Request(0, prompt("1"), 1, greedy, begun=full)])[0, 0].finish == "length"


def test_cancelling_between_batches_and_what_a_checkpoint_keeps():
    engine = GenerateEngine(tiny_model("llama"), TOKENIZER, max_running=2)

    async def scenario():
        for request in requests(("7", "12+3="), n=3):
            await engine.submit(request)
        await engine.submit(Request(9, prompt("x-y"), 1, Sampling(max_tokens=2), urgent=True))
        seen = []
        async for request_id, rollout in engine.finished():
            seen.append((request_id, rollout.index, rollout.finish))
            if len(seen) == 2:  # the urgent one, and one of the first batch of two
                kept = await engine.partials()
                await engine.cancel(1)
                with pytest.raises(RuntimeError, match="in flight"):
                    await engine.sleep()
        return seen, kept

    seen, kept = asyncio.run(scenario())
    assert [s[0] for s in seen[:2]] == [9, 0]
    assert sorted((i, r.index) for i, r in kept) == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert {(i, r.index) for i, r in kept if r.segments} == {(0, 1)}, "whole, and not yet seen"
    assert {r.finish for _, r in kept} == {"cancelled"}
    assert {s for s in seen if s[2] == "cancelled"} == {(1, 0, "cancelled"), (1, 1, "cancelled"), (1, 2, "cancelled")}
    assert len(seen) == 7


def test_adapters_and_published_weights_are_followed():
    model = get_peft_model(tiny_model("llama", sharpness=3.0), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    engine = GenerateEngine(model, TOKENIZER, snapshot=True)
    request = requests(("12+3=",), n=1, greedy=True)[0]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    before = run(engine, [request])[0, 0].sampler_logprobs
    asyncio.run(engine.publish(1))
    after = run(engine, [request])[0, 0]
    moved = logits_of(model, request, after).log_softmax(-1).gather(1, torch.tensor(after.token_ids)[:, None])[:, 0]
    assert after.sampler_logprobs == pytest.approx(moved.tolist(), abs=1e-4)
    assert before != pytest.approx(after.sampler_logprobs, abs=1e-2)


def test_what_cannot_be_answered():
    engine = GenerateEngine(tiny_model("llama", max_position_embeddings=16), TOKENIZER)
    with pytest.raises(UserError, match="16 tokens and the model's context is 16"):
        asyncio.run(engine.submit(Request(0, Prompt("p", (), "", (5,) * 16), 1, Sampling())))
    with pytest.raises(UserError, match="has no tokens"):
        asyncio.run(engine.submit(Request(0, Prompt("p", (), "", ()), 1, Sampling())))
    short = run(engine, [Request(0, Prompt("p", (), "", (5,) * 14), 2, Sampling())])
    assert all(len(r) <= 2 for r in short.values())
    broken = tiny_model("llama")
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    with pytest.raises(EngineFailed, match="NaN"):
        asyncio.run(collect(GenerateEngine(broken, TOKENIZER), requests(n=1, greedy=True)))
