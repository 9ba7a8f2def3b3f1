"""Adapters: they alone move, the bare model is the reference, and both exports are what was trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import PeftModel
from policy_helpers import CPU, batch_of, make_groups, make_policy, make_recipe, relative, update_gradient
from tiny import save_tiny, tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM

from assay.errors import UserError
from assay.policy.export import export
from assay.policy.model import add_lora
from assay.policy.policy import Policy
from assay.recipe.schema import LoraRecipe

LORA: dict[str, Any] = {"model__lora": {"rank": 4, "alpha": 8.0}, "update__learning_rate": 1e-2}


def adapted(family: str = "llama", base: Any = None, **keys: Any) -> Policy:
    recipe = make_recipe(**{**LORA, **keys})
    assert recipe.model.lora is not None
    return make_policy(recipe, add_lora(tiny_model(family) if base is None else base, recipe.model.lora, seed=3))


def test_only_adapters_move():
    policy = adapted(update__weight_decay=0.1)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    for _ in range(2):
        policy.update(batch_of(make_groups()), 0.0)
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, before[name]) != ("lora_" in name), name


def test_fresh_adapters_change_nothing_and_follow_the_seed():
    batch = batch_of(make_groups())
    off = {"run__kernels": False}  # an adapted feed-forward part is not compiled, and so rounds in other places
    assert torch.equal(adapted(**off).score(batch), make_policy(make_recipe(**off)).score(batch))
    one, same, other = (
        torch.cat([p.flatten() for n, p in add_lora(tiny_model(), LoraRecipe(), s).named_parameters() if "lora_A" in n])
        for s in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_adapters_leave_torchs_random_numbers_alone():
    state = torch.get_rng_state()
    add_lora(tiny_model(), LoraRecipe(), 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_reference_is_the_model_as_training_began():
    keys: dict[str, Any] = {"objective__kl__coefficient": 0.1, "objective__kl__estimator": "k1"}
    policy, batch = adapted(**keys), batch_of(make_groups())
    start = policy.score(batch)
    assert policy.update(batch, 0.1).metrics["update/kl_reference"] == 0.0
    moved = policy.score(batch)
    metrics = policy.update(batch, 0.1).metrics
    assert metrics["update/kl_reference"] == pytest.approx(float((moved - start).mean()), abs=1e-6)
    assert not torch.equal(policy.score(batch), start), "the adapters must be back on after scoring the reference"


def test_a_reference_of_its_own_and_the_bare_base_give_the_same_gradient():
    keys: dict[str, Any] = {"objective__kl__coefficient": 0.1}
    groups = make_groups()
    with_base = adapted(**keys)
    recipe = make_recipe(**{**LORA, **keys})
    assert recipe.model.lora is not None
    with_model = make_policy(recipe, add_lora(tiny_model(), recipe.model.lora, seed=3), reference=tiny_model())
    for policy in (with_base, with_model):
        policy.update(batch_of(groups), 0.1)
    assert relative(update_gradient(with_base, groups, 0.1), update_gradient(with_model, groups, 0.1)) < 1e-6


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_a_merged_export_is_the_policy(family, tmp_path):
    policy, batch = adapted(family), batch_of(make_groups())
    for _ in range(2):
        policy.update(batch, 0.0)
    wanted = policy.score(batch)
    weights = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    export(policy.model, tiny_tokenizer(), tmp_path / "model", "card")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    torch.testing.assert_close(make_policy(make_recipe(), loaded).score(batch), wanted, rtol=0, atol=1e-4)
    assert (make_policy(make_recipe(), tiny_model(family)).score(batch) - wanted).abs().max() > 1e-2
    for name, parameter in policy.model.named_parameters():  # and the policy in memory is as it was
        assert torch.equal(parameter, weights[name])
    assert torch.equal(policy.score(batch), wanted)


def test_an_exported_adapter_loads_on_its_base(tmp_path):
    base = save_tiny(tmp_path / "base")
    policy = adapted(base=AutoModelForCausalLM.from_pretrained(base))
    batch = batch_of(make_groups())
    policy.update(batch, 0.0)
    export(policy.model, tiny_tokenizer(), tmp_path / "adapter", "card", adapter_only=True)
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    assert (tmp_path / "adapter" / "README.md").read_text() == "card"
    loaded = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter", is_trainable=True
    )
    torch.testing.assert_close(make_policy(make_recipe(), loaded).score(batch), policy.score(batch), rtol=0, atol=0)


def test_an_adapter_on_the_head_is_scored_too():
    targets: dict[str, Any] = {"model__lora": {"rank": 4, "targets": ["q_proj", "lm_head"]}}
    policy = adapted(base=tiny_model(tie_word_embeddings=False), **targets)
    batch = batch_of(make_groups())
    start = policy.score(batch)
    gradient = update_gradient(policy, make_groups())
    head = [p for n, p in policy.model.named_parameters() if "lm_head" in n and "lora_B" in n]
    assert head[0].grad is not None
    assert head[0].grad.norm() > 0
    assert gradient.norm() > 0
    assert not torch.equal(policy.score(batch), start)


def test_a_target_that_the_model_lacks_is_refused():
    with pytest.raises(UserError, match=r"^model\.lora\.targets: .*no_such_proj") as caught:
        add_lora(tiny_model(), LoraRecipe(targets=["no_such_proj"]), 0)
    assert "\n" not in str(caught.value)


def test_adapters_of_a_bfloat16_model_are_trained_in_float32():
    base = tiny_model(dtype=torch.bfloat16)
    policy = adapted(base=base, model__dtype="bfloat16", model__compute_dtype="bfloat16")
    update = policy.update(batch_of(make_groups()), 0.0)
    assert update.finite
    assert {p.dtype for p in policy.model.parameters() if p.requires_grad} == {torch.float32}
    assert policy.device == CPU
