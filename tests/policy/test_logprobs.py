"""Log-probs and gradients through packed attention are the model's own, for every family."""

from __future__ import annotations

import pytest
import torch
import transformers
from policy_helpers import (
    CPU,
    batch_of,
    flat,
    make_groups,
    make_policy,
    make_recipe,
    plain_gradient,
    plain_logprobs,
    relative,
    rollout_of,
    update_gradient,
    verdict,
)
from tiny import FAMILIES, save_tiny, tiny_model

from assay.errors import UserError
from assay.policy.logprobs import make_scorer
from assay.policy.model import load_model
from assay.policy.packing import microbatches
from assay.records import Group, Prompt


def windowed_groups():
    """Prompts and responses that are longer than the tiny models' window of 8."""
    return make_groups(seed=3, sizes=(4, 3), longest=24)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_the_models_own(family, share):
    model = tiny_model(family, num_hidden_layers=3)
    batch = batch_of(windowed_groups())
    recipe = make_recipe(rollout__temperature=0.7, update__share_prompts=share, update__tokens_per_microbatch=90)
    with torch.no_grad():
        wanted, _ = plain_logprobs(model, batch, temperature=0.7)
    torch.testing.assert_close(make_policy(recipe, model).score(batch), wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_whole_sequences_one_by_one(family):
    """In float64, where a wrong mask or position stands out; only GPT-2's norms don't go through float32."""
    tolerance = 1e-12 if family == "gpt2" else 2e-7
    groups = windowed_groups()
    recipes = [make_recipe(update__share_prompts=share, update__tokens_per_microbatch=100) for share in (True, False)]
    wanted = plain_gradient(tiny_model(family).double(), groups, recipes[0])
    for recipe in recipes:
        assert relative(update_gradient(make_policy(recipe, tiny_model(family).double()), groups), wanted) < tolerance


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_gradients_in_float32_agree_to_rounding(family):
    groups = windowed_groups()
    shared, apart = (
        update_gradient(make_policy(make_recipe(update__share_prompts=share), tiny_model(family)), groups)
        for share in (True, False)
    )
    assert relative(shared, apart) < 1e-5


def test_soft_capped_attention_is_not_left_to_a_kernel_that_ignores_it(tmp_path):
    recipe = make_recipe()
    save_tiny(tmp_path, family="gemma2", attn_logit_softcapping=0.5)
    model = load_model(str(tmp_path), recipe.model, CPU)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    uncapped = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa")
    batch = batch_of(windowed_groups())
    ours = make_policy(recipe, model).score(batch)
    with torch.no_grad():
        wanted, other = (plain_logprobs(m, batch)[0] for m in (plain, uncapped))
    torch.testing.assert_close(ours, wanted, rtol=0, atol=2e-5)
    assert (wanted - other).abs().max() > 1e-2


def test_the_logits_transformations_of_families_are_applied():
    granite = transformers.GraniteConfig(
        vocab_size=90, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, logits_scaling=3.0, initializer_range=0.5,
    )  # fmt: skip
    cohere = transformers.CohereConfig(
        vocab_size=90, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, logit_scale=0.2, initializer_range=0.5,
    )  # fmt: skip
    batch = batch_of(make_groups())
    models = [
        transformers.GraniteForCausalLM(granite).eval(),
        transformers.CohereForCausalLM(cohere).eval(),
        tiny_model("gemma2", final_logit_softcapping=0.3),
    ]
    for model in models:
        with torch.no_grad():
            wanted, _ = plain_logprobs(model, batch)
        torch.testing.assert_close(make_policy(make_recipe(), model).score(batch), wanted, rtol=0, atol=2e-5)


def test_entropies_are_the_softmaxs_and_carry_a_gradient_only_when_asked():
    model, batch = tiny_model("qwen3"), batch_of(make_groups())
    (micro,) = microbatches(batch, range(batch.n_sequences), 4096, True)
    with torch.no_grad():
        _, wanted = plain_logprobs(model, batch, temperature=1.3)
    for asked in (False, True):
        scorer = make_scorer(
            model, temperature=1.3, chunk=7, compute_dtype="float32", device=CPU, entropy_gradient=asked
        )
        _, entropy = scorer.logprobs(micro)
        torch.testing.assert_close(entropy.detach(), wanted[micro.tokens], rtol=1e-5, atol=1e-5)
        assert entropy.requires_grad == asked


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_products_stay_close_to_float32(family):
    batch = batch_of(windowed_groups())
    exact, narrow = (
        make_policy(make_recipe(model__compute_dtype=dtype), tiny_model(family)).score(batch)
        for dtype in ("float32", "bfloat16")
    )
    assert narrow.dtype == torch.float32
    gap = (exact - narrow).abs()
    assert 0 < gap.mean() < 0.02
    assert gap.max() < 0.2


@pytest.mark.parametrize("masters", ["float32", "bfloat16"])
def test_the_head_works_in_float32_whatever_the_trunk_does(masters):
    """Of bfloat16 logits the log-probs would lie on a coarse grid; here they differ in their last bits."""
    recipe = make_recipe(model__dtype=masters, model__compute_dtype="bfloat16")
    policy = make_policy(recipe, tiny_model("llama", initializer_range=0.3, dtype=getattr(torch, masters)))
    scored = policy.score(batch_of(make_groups(sizes=(5, 5, 5))))
    assert scored.dtype == torch.float32
    assert (scored != scored.bfloat16().float()).float().mean() > 0.9


def test_a_long_prompt_with_many_responses_of_one_token():
    prompt = Prompt("p", (), "", tuple(4 + i % 60 for i in range(50)))
    rollouts = tuple(rollout_of(prompt, i, ("policy", [4 + i])) for i in range(8))
    batch = batch_of([Group(prompt, rollouts, tuple(verdict(float(i % 2)) for i in range(8)))])
    model = tiny_model("mistral")
    with torch.no_grad():
        wanted, _ = plain_logprobs(model, batch)
    torch.testing.assert_close(make_policy(make_recipe(), model).score(batch), wanted, rtol=0, atol=2e-5)


def test_a_model_that_is_not_causal_attention_is_refused_in_one_line():
    config = transformers.MambaConfig(vocab_size=90, hidden_size=32, num_hidden_layers=1, state_size=4)
    with pytest.raises(UserError, match="mamba") as caught:
        make_policy(make_recipe(), transformers.MambaForCausalLM(config))
    assert "\n" not in str(caught.value)


def test_a_model_whose_head_does_more_than_we_know_is_refused():
    model = tiny_model()
    head = model.forward

    def bent(*args, **kwargs):
        output = head(*args, **kwargs)
        output.logits = output.logits * 1.5
        return output

    model.forward = bent
    with pytest.raises(UserError, match=r"differ from its own by .*llama\) is not supported for training"):
        make_policy(make_recipe(), model)


def test_tied_and_untied_heads_both_get_their_gradient():
    groups = make_groups()
    for tied in (True, False):
        model = tiny_model("llama", tie_word_embeddings=tied)
        policy = make_policy(make_recipe(), model)
        gradient = update_gradient(policy, groups)
        wanted = plain_gradient(tiny_model("llama", tie_word_embeddings=tied), groups, make_recipe())
        assert len(gradient) == len(flat(list(model.parameters())))
        assert relative(gradient, wanted) < 1e-5


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_distributions_hold_the_logprobs_of_every_token(family):
    """At a temperature, and with capped logits (Gemma 2): each row sums to 1, the token in its place."""
    groups = make_groups()
    batch = batch_of(groups)
    policy = make_policy(make_recipe(rollout__temperature=0.7, update__tokens_per_microbatch=60), tiny_model(family))
    found = policy.distributions(groups)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(batch.n_tokens))
    given = found.gather(1, torch.cat(list(batch.responses))[:, None]).squeeze(1)
    torch.testing.assert_close(given, policy.score(batch), rtol=1e-5, atol=1e-5)
