"""What loads, what is refused, and that it is done in silence."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from policy_helpers import CPU
from safetensors.torch import load_file, save_file
from tiny import save_tiny, tiny_tokenizer
from transformers.utils import logging

from assay.errors import UserError
from assay.policy.model import checkpoint_layers, load_model, load_tokenizer, pick_device, quiet_weights
from assay.recipe.schema import ModelRecipe


def refused(folder, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        load_model(str(folder), ModelRecipe(), CPU)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_loads_in_the_precision_asked_for(dtype, tmp_path):
    model = load_model(str(save_tiny(tmp_path)), ModelRecipe(dtype=dtype), CPU)
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
    assert not model.training
    other = load_model(str(tmp_path), ModelRecipe(dtype=dtype), CPU, dtype="bfloat16")
    assert next(other.parameters()).dtype == torch.bfloat16


def test_loading_is_silent_and_leaves_the_bars_as_they_were(tmp_path, capfd):
    save_tiny(tmp_path)
    capfd.readouterr()
    shown = logging.is_progress_bar_enabled()
    load_model(str(tmp_path), ModelRecipe(), CPU)
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled() == shown


@pytest.mark.parametrize("enabled", [True, False])
def test_bars_come_back_only_where_they_were(enabled):
    before = logging.is_progress_bar_enabled()
    switch = {True: logging.enable_progress_bar, False: logging.disable_progress_bar}
    try:
        switch[enabled]()
        with quiet_weights():
            assert not logging.is_progress_bar_enabled()
        assert logging.is_progress_bar_enabled() == enabled
        with pytest.raises(RuntimeError), quiet_weights():
            raise RuntimeError
        assert logging.is_progress_bar_enabled() == enabled
    finally:
        switch[before]()


def test_a_folder_that_is_no_model(tmp_path):
    refused(tmp_path, "is not a model that can be loaded")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "is not a model that can be loaded")
    (tmp_path / "config.json").write_text("{broken")
    refused(tmp_path, "is not a model that can be loaded")


def test_a_path_that_is_not_there(tmp_path):
    refused(tmp_path / "nowhere", "is not a model that can be loaded")


def test_a_model_that_does_not_write_text(tmp_path):
    config = transformers.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    refused(tmp_path, "T5")


def test_weights_that_are_cut_short(tmp_path):
    save_tiny(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    refused(tmp_path, "is not a model that can be loaded")


def test_weights_of_other_sizes(tmp_path):
    save_tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    refused(tmp_path, "is not a model that can be loaded")


def test_a_missing_weight_is_not_made_up(tmp_path):
    save_tiny(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = weights.pop("model.layers.1.mlp.up_proj.weight")
    assert lost.numel() > 0
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    refused(tmp_path, r"lacks 1 weights of a LlamaForCausalLM, such as model\.layers\.1\.mlp\.up_proj\.weight")


def test_a_tokenizer_of_its_own_and_a_template_of_its_own(tmp_path):
    save_tiny(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "template.jinja").write_text("{{ messages[0].content }}!")
    recipe = ModelRecipe(tokenizer=str(tmp_path / "tokenizer"), chat_template=str(tmp_path / "template.jinja"))
    tokenizer = load_tokenizer("nowhere", recipe)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert rendered == "hi!"


def test_tokenizers_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match=r"^model\.tokenizer: no tokenizer at") as caught:
        load_tokenizer(str(tmp_path), ModelRecipe())
    assert "\n" not in str(caught.value)
    save_tiny(tmp_path)
    with pytest.raises(UserError, match=r"^model\.chat_template: cannot read 'nowhere\.jinja': No such file"):
        load_tokenizer(str(tmp_path), ModelRecipe(chat_template="nowhere.jinja"))


@pytest.mark.parametrize("name", ["cuda:99", "nonsense"])
def test_a_device_that_is_not_here(name):
    with pytest.raises(UserError, match=rf"^model\.device: '{name}' is not usable here \(") as caught:
        pick_device(name)
    assert "\n" not in str(caught.value)


def test_devices():
    assert pick_device("cpu") == CPU
    assert pick_device("auto").type in ("cuda", "mps", "cpu")


def test_a_model_without_layers_to_recompute_is_refused():
    with pytest.raises(UserError, match=r"^model\.gradient_checkpointing: Linear has no layers"):
        checkpoint_layers(torch.nn.Linear(2, 2))
