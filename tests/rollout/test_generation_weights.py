import asyncio
import copy

import pytest
import torch
from rollout_helpers import TOKENIZER, collect, logits_of, requests, run
from tiny import tiny_model

from assay.errors import AssayError
from assay.policy.model import add_lora
from assay.recipe.schema import LoraRecipe
from assay.rollout.native import NativeEngine
from assay.rollout.weights import GenerationWeights, merged_weights


def bits(model) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def same_bits(model, before) -> bool:
    after = model.state_dict()
    return after.keys() == before.keys() and all(
        after[k].dtype == v.dtype and torch.equal(after[k], v) for k, v in before.items()
    )


def nudge(model, size=0.3) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += size * torch.randn(parameter.shape, generator=generator)


def worst_error(model, wanted, answers) -> float:
    errors = []
    for request in wanted:
        for (i, _), rollout in answers.items():
            if i == request.id:
                expected = logits_of(model, request, rollout).log_softmax(-1)
                chosen = expected.gather(1, torch.tensor(rollout.token_ids)[:, None])[:, 0]
                errors.append(float((chosen - torch.tensor(rollout.sampler_logprobs)).abs().max()))
    return max(errors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_generation_and_publish_leave_the_trainer_as_it_was(dtype):
    model = tiny_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    model.train()
    implementation, before = model.config._attn_implementation, bits(model)
    engine = NativeEngine(model, TOKENIZER, dtype=dtype)
    first = run(engine, requests(n=2))
    asyncio.run(engine.publish(1))
    again = run(engine, requests(n=2))
    assert same_bits(model, before)
    assert model.training
    assert all(m.training for m in model.modules())
    assert model.config._attn_implementation == implementation
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert {k: r.token_ids for k, r in first.items()} == {k: r.token_ids for k, r in again.items()}
    model.eval()
    assert worst_error(model, requests(n=2), first) < (1e-4 if dtype == torch.float32 else 0.2)


def test_equal_precision_shares_the_tensors_and_bfloat16_copies_once():
    model = tiny_model("llama")
    shared = GenerationWeights(model, torch.float32)
    assert shared.shared
    assert all(a is b for a, b in zip(shared.module.parameters(), model.parameters(), strict=True))
    copied = GenerationWeights(model, torch.bfloat16)
    assert not copied.shared
    assert {p.dtype for p in copied.module.parameters()} == {torch.bfloat16}
    head, embedding = copied.causal_lm.lm_head.weight, copied.causal_lm.model.embed_tokens.weight
    assert head is embedding
    addresses = [p.data_ptr() for p in copied.module.parameters()]
    nudge(model)
    copied.refresh()
    assert addresses == [p.data_ptr() for p in copied.module.parameters()]
    for mine, theirs in zip(copied.module.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs.to(torch.bfloat16))


def test_a_snapshot_moves_at_publish_only_and_tokens_carry_the_version():
    model = tiny_model("llama", sharpness=2.0)
    old = copy.deepcopy(model)
    engine = NativeEngine(model, TOKENIZER, snapshot=True)
    nudge(model)
    before = run(engine, requests(n=1))
    assert worst_error(old, requests(n=1), before) < 1e-4
    assert {r.oldest_version for r in before.values()} == {0}
    asyncio.run(engine.publish(7))
    assert engine.version == 7
    after = run(engine, requests(n=1))
    assert worst_error(model, requests(n=1), after) < 1e-4
    assert {r.oldest_version for r in after.values()} == {7}


def test_a_replaced_parameter_is_followed_and_a_changed_structure_refused():
    model = tiny_model("llama", tie_word_embeddings=False)
    weights = GenerationWeights(model, torch.float32)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight * 2)
    weights.refresh()
    assert weights.causal_lm.lm_head.weight is model.lm_head.weight
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(AssayError, match="extra"):
        weights.refresh()


def test_weights_published_under_running_answers_recompute_their_cache():
    async def scenario(model, engine):
        published = False
        wanted = requests(["1"], n=1, first_id=1, max_tokens=4)
        wanted += requests(["12+3="], n=6, max_tokens=40)
        for request in wanted:
            await engine.submit(request)
        seen = {}
        async for i, rollout in engine.finished():
            seen[i, rollout.index] = rollout
            if not published:
                nudge(model, 0.1)
                await engine.publish(1)
                published = True
        return wanted[1], [r for (i, _), r in seen.items() if i == 0]

    model = tiny_model("llama", sharpness=2.0, eos_token_id=None)
    old = copy.deepcopy(model)
    engine = NativeEngine(model, TOKENIZER, snapshot=True, max_running=4)
    request, answers = asyncio.run(scenario(model, engine))
    made_of = [set(r.segments[0].versions) for r in answers]
    assert {0, 1} in made_of
    assert {1} in made_of
    for rollout in answers:
        under = [logits_of(m, request, rollout).log_softmax(-1) for m in (old, model)]
        for place, (token, version) in enumerate(zip(rollout.token_ids, rollout.segments[0].versions, strict=True)):
            assert rollout.sampler_logprobs[place] == pytest.approx(float(under[version][place, token]), abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_are_followed(dtype):
    from peft import LoraConfig, get_peft_model

    base = tiny_model("llama", sharpness=2.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = get_peft_model(base, LoraConfig(r=4, lora_dropout=0.5, target_modules="all-linear"))
    model.train()
    engine = NativeEngine(model, TOKENIZER, dtype=dtype)
    nudge(model, 0.2)
    before = bits(model)
    asyncio.run(engine.publish(1))
    answers = asyncio.run(collect(engine, requests(n=2)))
    assert same_bits(model, before)
    assert model.training
    model.eval()
    error = worst_error(model, requests(n=2), answers)
    with model.disable_adapter():
        unadapted = worst_error(model, requests(n=2), answers)
    assert unadapted > 1
    assert error < (1e-4 if dtype == torch.float32 else unadapted / 4)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_merged_weights_are_those_of_the_merged_model(family):
    bare = tiny_model(family)
    names = set(bare.state_dict())
    model = add_lora(bare, LoraRecipe(rank=2), seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    merged = dict(merged_weights(model))
    expected = copy.deepcopy(model).merge_and_unload().state_dict()
    assert set(merged) == set(expected) == names
    for name, tensor in expected.items():
        torch.testing.assert_close(merged[name], tensor)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert all(merged[n].data_ptr() == dict(merged_weights(model))[n].data_ptr() for n in names if "embed" in n)
