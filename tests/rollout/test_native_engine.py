import asyncio
import contextlib
import math

import pytest
import torch
from rollout_helpers import TEXTS, TOKENIZER, collect, logits_of, prompt, requests, run
from tiny import EOS, FAMILIES, tiny_model

from assay.errors import AssayError, UserError
from assay.recipe.schema import ModelRecipe, Recipe, RolloutRecipe, RunRecipe
from assay.records import Prompt
from assay.rollout.engine import Request, sampling_of
from assay.rollout.engines import make_engine
from assay.rollout.native import NativeEngine
from assay.rollout.sampling import Sampling


def engine_on(model, **options) -> NativeEngine:
    return NativeEngine(model, TOKENIZER, **options)


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama", sharpness=4.0)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_greedy_is_generate_token_for_token(family):
    model = tiny_model(family, sharpness=3.0, seed=1)
    wanted = requests(n=1, greedy=True, max_tokens=24)
    answers = run(engine_on(model, max_running=4), wanted)
    for request in wanted:
        mine = list(answers[request.id, 0].token_ids)
        ids = torch.tensor([request.prompt.token_ids])
        theirs = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
        theirs = theirs[0, ids.shape[1] :].tolist()
        if mine != theirs:
            i = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b)
            top = logits_of(model, request, answers[request.id, 0])[i].topk(2).values
            assert top[0] - top[1] < 1e-4
    assert any(len(a) > 16 for a in answers.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_a_plain_forward_at_the_temperature(family):
    model = tiny_model(family, sharpness=2.0, seed=2)
    wanted = requests(n=2, temperature=0.7)
    wanted += requests(n=2, first_id=10, temperature=1.3, top_k=7, top_p=0.9, min_p=0.02)
    answers = run(engine_on(model, max_running=7, prefill_tokens=60), wanted)
    for request in wanted:
        for index in range(2):
            rollout = answers[request.id, index]
            (segment,) = rollout.segments
            tokens = torch.tensor(rollout.token_ids)[:, None]
            scaled = logits_of(model, request, rollout) / request.sampling.temperature
            full = scaled.log_softmax(-1).gather(1, tokens)[:, 0]
            assert torch.tensor(rollout.sampler_logprobs).sub(full).abs().max() < 1e-4
            if not request.sampling.cuts:
                assert segment.kept_logprobs is None
                continue
            assert segment.kept_logprobs is not None
            kept = torch.tensor(segment.kept_logprobs)
            assert (kept > full - 1e-5).all()
            assert (scaled.gather(1, tokens)[:, 0] >= scaled.topk(7).values[:, -1] - 1e-5).all()


@pytest.mark.parametrize("family", ["gemma2", "qwen3", "gpt2"])
def test_eager_attention_with_its_softcap_is_served_as_it_is(family):
    fields = {"attn_logit_softcapping": 0.5} if family == "gemma2" else {}
    model = tiny_model(family, sharpness=2.0, **fields)
    model.set_attn_implementation("eager")
    wanted = requests(n=2)
    answers = run(engine_on(model, max_running=7), wanted)
    for request in wanted:
        for index in range(2):
            rollout = answers[request.id, index]
            full = logits_of(model, request, rollout).log_softmax(-1)
            full = full.gather(1, torch.tensor(rollout.token_ids)[:, None])[:, 0]
            assert torch.tensor(rollout.sampler_logprobs).sub(full).abs().max() < 1e-4


def test_answers_do_not_depend_on_the_batch_they_ran_in(llama):
    wanted = requests(n=4)
    wide = run(engine_on(llama, max_running=16), wanted)
    narrow = run(engine_on(llama, max_running=2, prefill_tokens=1), list(reversed(wanted)))
    alone = {k: v for request in wanted[::2] for k, v in run(engine_on(llama), [request]).items()}
    assert wide.keys() == narrow.keys()
    for other in (narrow, alone):
        for key, rollout in other.items():
            assert rollout.token_ids == wide[key].token_ids
            assert rollout.sampler_logprobs == pytest.approx(wide[key].sampler_logprobs, abs=1e-4)
    assert len({wide[0, i].token_ids for i in range(4)}) == 4


def test_seed_admission_and_index_name_the_answer(llama):
    def answer(admission=3, seed=5, first_index=0):
        request = Request(admission, prompt("12+3="), 1, Sampling(max_tokens=12), seed, first_index)
        return run(engine_on(llama), [request])[admission, first_index].token_ids

    assert answer() == answer()
    assert len({answer(), answer(admission=4), answer(seed=6), answer(first_index=1)}) == 4


def test_a_group_is_prefilled_once_even_when_it_does_not_fit_at_once(llama):
    prompts = sum(len(t) for t in TEXTS)
    roomy = engine_on(llama, max_running=64)
    run(roomy, requests(n=5))
    assert roomy.stats.prefilled == len(TEXTS)
    assert roomy.stats.prefill_tokens == prompts
    assert roomy.stats.restored == 0
    tight = engine_on(llama, max_running=3)
    run(tight, requests(n=5))
    assert tight.stats.prefill_tokens == prompts
    assert tight.stats.restored > 0
    for stats in (roomy.stats, tight.stats):
        assert stats.generated_tokens == stats.decode_rows + 5 * len(TEXTS)


def test_every_end_of_sequence_id_ends_an_answer():
    model = tiny_model("llama")
    asked = requests(["12+3="], n=1, max_tokens=30)
    first = run(engine_on(model), asked)[0, 0]
    place = next(i for i, t in enumerate(first.token_ids) if i > 1 and t not in first.token_ids[:i])
    other = first.token_ids[place]
    model.generation_config.eos_token_id = [EOS, other]
    engine = engine_on(model)
    assert engine.stop_token_ids == {EOS, other}
    again = run(engine, asked)[0, 0]
    assert again.finish == "stop"
    assert again.token_ids == first.token_ids[: place + 1]
    assert again.text == TOKENIZER.decode(first.token_ids[:place])


def test_the_cap_and_the_context_end_an_answer_as_length(llama):
    answers = run(engine_on(llama), requests(["1+1="], n=3, max_tokens=1))
    assert {(r.finish, len(r)) for r in answers.values()} <= {("length", 1), ("stop", 1)}
    model = tiny_model("gpt2", max_position_embeddings=16, eos_token_id=None)
    engine = engine_on(model)
    assert engine.limits.context == 16
    answers = run(engine, requests(["0123456789abc"], n=8, max_tokens=50))
    assert {r.finish for r in answers.values()} <= {"length", "stop"}
    assert max(len(r) for r in answers.values()) == 3


def test_prompts_without_room_are_refused_at_submit(llama):
    engine = engine_on(llama)
    too_long = Prompt("p", (), "", (5,) * 256, source="train.jsonl:7")
    with pytest.raises(UserError, match=r"train.jsonl:7.*256 tokens.*context is 256"):
        asyncio.run(engine.submit(Request(0, too_long, 1, Sampling())))
    with pytest.raises(UserError, match="no tokens"):
        asyncio.run(engine.submit(Request(0, Prompt("p", (), "", ()), 1, Sampling())))
    assert run(engine, []) == {}


def test_cancelled_answers_keep_their_tokens_and_the_rest_goes_on(llama):
    async def scenario():
        engine = engine_on(llama, max_running=6)
        for request in (
            *requests(["1", "22"], n=4, max_tokens=60),
            *requests(["3"], n=2, first_id=2, max_tokens=4),
            *requests(["4"], n=1, first_id=3, max_tokens=5),
        ):
            await engine.submit(request)
        seen = {}
        async for i, rollout in engine.finished():
            if not seen:
                await engine.cancel(1)
            seen[i, rollout.index] = rollout
        return seen

    undisturbed = run(engine_on(llama), requests(["1", "22"], n=4, max_tokens=60))
    seen = asyncio.run(scenario())
    assert len(seen) == 11
    cancelled = [r for (i, _), r in seen.items() if i == 1 and r.finish == "cancelled"]
    assert cancelled
    assert any(len(r) > 0 for r in cancelled)
    for (i, index), rollout in seen.items():
        if i < 2:
            whole = undisturbed[i, index].token_ids
            assert rollout.token_ids == whole[: len(rollout)]
            assert (rollout.finish == "cancelled") == (len(rollout) < len(whole))
        else:
            assert rollout.finish in ("stop", "length")


def test_cancelling_before_the_start_yields_empty_rollouts(llama):
    async def scenario():
        engine = engine_on(llama)
        for request in requests(["1", "2"], n=2):
            await engine.submit(request)
        await engine.cancel(0)
        return {(i, r.index): r async for i, r in engine.finished()}

    seen = asyncio.run(scenario())
    assert [seen[0, i].finish for i in (0, 1)] == ["cancelled"] * 2
    assert seen[0, 0].segments == ()
    assert seen[1, 0].finish != "cancelled"


def test_requests_may_join_a_running_round(llama):
    async def scenario():
        engine = engine_on(llama)
        late = requests(["late"], n=2, first_id=50)
        for request in requests(["1", "2"], n=2):
            await engine.submit(request)
        seen = {}
        async for i, rollout in engine.finished():
            seen[i, rollout.index] = rollout
            if late:
                await engine.submit(late.pop())
        return seen

    seen = asyncio.run(scenario())
    assert seen[50, 1].token_ids == run(engine_on(llama), requests(["late"], n=2, first_id=50))[50, 1].token_ids
    assert len(seen) == 6


def test_leaving_early_loses_nothing(llama):
    async def scenario():
        engine = engine_on(llama, max_running=3)
        for request in requests(n=2):
            await engine.submit(request)
        seen = {}
        async with contextlib.aclosing(engine.finished()) as stream:
            async for i, rollout in stream:
                seen[i, rollout.index] = rollout
                break
        async for i, rollout in engine.finished():
            assert (i, rollout.index) not in seen
            seen[i, rollout.index] = rollout
        await engine.close()
        return seen

    seen = asyncio.run(scenario())
    whole = run(engine_on(llama), requests(n=2))
    assert {k: r.token_ids for k, r in seen.items()} == {k: r.token_ids for k, r in whole.items()}


def test_deterministic_rounds_are_bit_equal_whatever_the_consumer_does(llama):
    async def scenario(wanted, pauses, intruder):
        engine = engine_on(llama, deterministic=True, max_running=5)
        for request in wanted:
            await engine.submit(request)
        rounds = []
        for _ in range(2):
            seen = {}
            async for i, rollout in engine.finished():
                for _ in range(pauses):
                    await asyncio.sleep(0)
                if intruder:
                    await engine.submit(intruder.pop())
                seen[i, rollout.index] = (rollout.token_ids, rollout.sampler_logprobs)
            rounds.append(seen)
        return rounds, engine.stats

    late = requests(["late"], n=2, first_id=50)
    wanted = requests(n=3)
    calm, calm_stats = asyncio.run(scenario(wanted, 0, list(late)))
    busy, busy_stats = asyncio.run(scenario(list(reversed(wanted)), 40, list(late)))
    assert calm == busy
    assert calm_stats == busy_stats
    assert set(calm[1]) == {(50, 0), (50, 1)}


def test_deterministic_mode_refuses_a_publish_inside_a_round(llama):
    async def scenario():
        engine = engine_on(llama, deterministic=True)
        await engine.submit(requests(n=1)[0])
        async with contextlib.aclosing(engine.finished()) as stream:
            first = asyncio.ensure_future(anext(stream))
            while not engine.stats.steps:
                await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="between rounds"):
                await engine.publish(1)
            await first

    asyncio.run(scenario())


def test_diverged_weights_stop_the_stream_with_the_reason():
    model = tiny_model("llama")
    engine = engine_on(model)
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan
    asyncio.run(engine.publish(1))
    with pytest.raises(AssayError, match="NaN or infinite"):
        run(engine, requests(["1"], n=1))


def test_an_architecture_it_cannot_serve_is_refused_by_name():
    from transformers import MambaConfig, MambaForCausalLM

    mamba = MambaForCausalLM(MambaConfig(vocab_size=88, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(UserError, match="cannot serve 'mamba': layers of type linear_attention"):
        engine_on(mamba)


def test_a_wrong_forward_is_found_by_the_self_check():
    model = tiny_model("llama")
    plain = model.model.rotary_emb.forward

    def forgets_positions(x, position_ids):
        return plain(x, position_ids if position_ids.shape[0] == 1 else torch.zeros_like(position_ids))

    model.model.rotary_emb.forward = forgets_positions
    with pytest.raises(UserError, match=r"LlamaForCausalLM.*differ"):
        engine_on(model)


def test_the_recipe_makes_the_engine(llama):
    recipe = Recipe(
        model=ModelRecipe(compute_dtype="float32"),
        rollout=RolloutRecipe(max_running=9, temperature=0.5, max_tokens=7, top_k=3),
        run=RunRecipe(deterministic=True),
    )
    engine = make_engine(recipe, llama, TOKENIZER)
    assert engine.limits.max_running == 9
    settings = sampling_of(recipe.rollout)
    assert settings == Sampling(temperature=0.5, max_tokens=7, top_k=3)
    assert sampling_of(recipe.rollout, greedy=True).greedy
    seen = asyncio.run(collect(engine, [Request(0, prompt("1"), 2, settings)]))  # type: ignore[arg-type]
    assert all(len(r) <= 7 for r in seen.values())
