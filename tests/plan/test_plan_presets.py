"""Costs from sizes and rates: what follows from them, whatever the guesses are."""

import pytest
from tiny import save_tiny, tiny_model

from assay.errors import UserError
from assay.plan.devices import DEVICES, device
from assay.plan.layout import layouts
from assay.plan.presets import device_costs
from assay.plan.shape import shape_of, shape_of_size
from assay.recipe.schema import LoraRecipe, ModelRecipe, Recipe


def test_a_models_shape_is_read_off_its_config(tmp_path):
    save_tiny(tmp_path / "model", family="qwen3")
    (tmp_path / "model" / "model.safetensors").unlink()  # no weights are needed
    found, model = shape_of(ModelRecipe(path=str(tmp_path / "model"))), tiny_model("qwen3")
    config = model.config
    assert found.parameters == found.trained == sum(p.numel() for p in model.parameters())
    assert found.kv_bytes == config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 2
    assert found.update_flops == pytest.approx(3 * found.forward_flops, rel=0.02)
    lora = shape_of(ModelRecipe(path=str(tmp_path / "model"), lora=LoraRecipe(rank=2)))
    assert lora.trained < 0.2 * lora.parameters
    assert 2 * lora.forward_flops < lora.update_flops < found.update_flops


def test_a_model_out_of_reach_says_the_way_round(tmp_path):
    with pytest.raises(UserError, match="say --parameters"):
        shape_of(ModelRecipe(path=str(tmp_path)))


@pytest.mark.parametrize(("size", "layers", "kv_kb"), [(1.7e9, 28, 112), (8e9, 36, 144), (32e9, 64, 256)])
def test_a_bare_size_comes_near_a_real_model(size, layers, kv_kb):
    """Beside Qwen3's models of that size: layers and the cache of a token."""
    found = shape_of_size(size)
    assert found.layers == pytest.approx(layers, rel=0.3)
    assert found.kv_bytes / 1024 == pytest.approx(kv_kb, rel=0.3)


def test_a_faster_device_is_never_slower_and_more_rows_cost_more():
    shape, recipe = shape_of_size(8e9), Recipe()
    slow, fast = (device_costs(recipe, shape, DEVICES[name])[0] for name in ("a100", "h200"))
    for rows in (1, 64, 1024):
        assert fast.decode.step_s(rows) < slow.decode.step_s(rows)
    assert fast.update.per_token_s < slow.update.per_token_s
    assert (fast.kv_tokens or 0) > (slow.kv_tokens or 0) > 0
    assert slow.decode.step_s(1024) > slow.decode.step_s(1)


def test_weights_of_eight_bits_are_read_in_half_the_time():
    shape = shape_of_size(8e9)
    plain = device_costs(Recipe(), shape, DEVICES["h100"])[0]
    quantised = Recipe.from_dict(
        {"rollout": {"engine": "vllm", "options": {"quantization": "fp8"}}, "data": {"train": ["sums.jsonl"]}}
    )
    halved = device_costs(quantised, shape, DEVICES["h100"])[0]
    read = shape.parameters / (DEVICES["h100"].bandwidth * 0.6)
    assert plain.decode.step_s(1) - halved.decode.step_s(1) == pytest.approx(read)


def test_what_does_not_fit_into_memory_is_not_planned():
    shape = shape_of_size(70e9)
    costs = device_costs(Recipe(), shape, DEVICES["h100"])[0]
    assert costs.engine_gpus == 4  # 140 GB of weights, and 30 % for the cache
    assert costs.least_trainer_gpus == 20  # 16 bytes a parameter
    assert [(x.engines, x.trainers, x.shared) for x in layouts(32, costs)] == [
        (8, 32, True),
        (1, 28, False),
        (2, 24, False),
        (3, 20, False),
    ]
    with pytest.raises(UserError, match="needs 20 GPUs to train and 4 to generate"):
        layouts(8, costs)
    with pytest.raises(UserError, match="do not fit into 64 devices"):
        device_costs(Recipe(), shape_of_size(3e12), DEVICES["l4"])


def test_every_gpu_has_its_place_and_of_many_splits_an_even_choice_is_tried():
    costs = device_costs(Recipe(), shape_of_size(8e9), DEVICES["h100"])[0]
    for gpus in (4, 8, 64, 256):
        found = layouts(gpus, costs)
        assert all(x.engines * costs.engine_gpus + x.trainers == gpus for x in found if not x.shared)
        assert len(found) <= 13
        assert len(set(found)) == len(found)


def test_this_processor_is_measured():
    found = device("cpu")
    assert found.measured
    assert found.flops > 1e9
    assert found.bandwidth > 1e8


def test_a_device_that_is_not_known():
    with pytest.raises(UserError, match=r"'h10' is not known \(did you mean 'h100'\?\)"):
        device("h10")
