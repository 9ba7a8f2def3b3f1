"""What is saved is enough to go on as if nothing had happened."""

from __future__ import annotations

import pytest
import torch
from policy_helpers import batch_of, make_groups, make_policy, make_recipe, weights_of
from test_export import largest_file
from tiny import tiny_model

from assay.errors import UserError
from assay.policy.model import add_lora
from assay.policy.policy import Policy

KEYS = {"update__epochs": 2, "update__minibatches": 2, "update__schedule": "cosine", "update__weight_decay": 0.1}


def fresh(seed: int, lora: bool) -> Policy:
    recipe = make_recipe(**KEYS, **({"model__lora": {"rank": 4}} if lora else {}))
    model = tiny_model("qwen3", seed=0 if lora else seed)
    if recipe.model.lora is not None:
        model = add_lora(model, recipe.model.lora, seed)
    return make_policy(recipe, model, total_steps=4)


@pytest.mark.parametrize("lora", [False, True])
def test_a_saved_and_loaded_policy_goes_on_bit_for_bit(lora, tmp_path):
    batches = [batch_of(make_groups(seed)) for seed in range(3)]
    straight = fresh(0, lora)
    for batch in batches:
        expected = straight.update(batch, 0.0)
    broken_off = fresh(0, lora)
    for batch in batches[:2]:
        broken_off.update(batch, 0.0)
    random = torch.get_rng_state()
    broken_off.save(tmp_path)
    torch.rand(3)
    resumed = fresh(7, lora)  # whose weights are others until it loads
    places = [p.data_ptr() for p in resumed.model.parameters()]
    resumed.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), random)
    update = resumed.update(batches[2], 0.0)
    assert torch.equal(weights_of(resumed.model), weights_of(straight.model))
    assert update.metrics == expected.metrics
    assert resumed.optimizer_steps == straight.optimizer_steps == 12
    assert [p.data_ptr() for p in resumed.model.parameters()] == places, "engines share these tensors"
    ours, theirs = (p._optimizer.state_dict()["state"] for p in (resumed, straight))
    assert ours.keys() == theirs.keys()
    for key in ours:
        assert all(torch.equal(ours[key][name], theirs[key][name]) for name in ("exp_avg", "exp_avg_sq", "step"))


def test_a_policy_saved_before_its_first_step_loads(tmp_path):
    fresh(0, False).save(tmp_path)
    resumed = fresh(1, False)
    resumed.load(tmp_path)
    assert resumed.optimizer_steps == 0
    assert torch.equal(weights_of(resumed.model), weights_of(fresh(0, False).model))


@pytest.mark.parametrize(
    ("other", "odd"),
    [
        (lambda: tiny_model("llama"), "differ in model.layers.0.self_attn.k_norm.weight"),
        (lambda: tiny_model("qwen3", intermediate_size=96), r"differ in model.layers.0.mlp.down_proj.weight"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(other, odd, tmp_path):
    fresh(0, False).save(tmp_path)
    policy = make_policy(make_recipe(**KEYS), other())
    before = weights_of(policy.model)
    with pytest.raises(UserError, match=f"is of another model: they {odd}"):
        policy.load(tmp_path)
    assert torch.equal(weights_of(policy.model), before)


@pytest.mark.parametrize("room", [1000, 400_000])
def test_a_full_disk_is_an_oserror_whichever_file_it_meets(room, tmp_path):
    policy = fresh(0, False)
    policy.update(batch_of(make_groups()), 0.0)
    with largest_file(room), pytest.raises(OSError, match=r".") as caught:
        policy.save(tmp_path)
    assert "\n" not in str(caught.value)
