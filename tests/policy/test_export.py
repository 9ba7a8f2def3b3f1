"""A folder that anything can load, written whole or not at all."""

from __future__ import annotations

import resource
from contextlib import contextmanager

import pytest
import torch
import yaml
from policy_helpers import CPU, batch_of, make_groups, make_policy, make_recipe
from tiny import save_tiny, tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from assay.errors import AssayError
from assay.policy.export import export, model_card
from assay.policy.model import load_model


@contextmanager
def largest_file(size: int):
    """As on a full disk: writing beyond ``size`` bytes of a file fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_what_was_exported_is_the_policy_bit_for_bit(family, tied, tmp_path):
    policy = make_policy(make_recipe(), tiny_model(family, tie_word_embeddings=tied))
    batch = batch_of(make_groups())
    policy.update(batch, 0.0)
    folder = export(policy.model, tiny_tokenizer(), tmp_path / "model", "card")
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    theirs = dict(loaded.named_parameters())
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, theirs[name]), name
    assert torch.equal(make_policy(make_recipe(), loaded).score(batch), policy.score(batch))
    assert AutoTokenizer.from_pretrained(folder)("12+3=").input_ids == tiny_tokenizer()("12+3=").input_ids


def test_a_model_trained_with_checkpointing_is_exported_like_any_other(tmp_path):
    policy = make_policy(make_recipe(model__gradient_checkpointing=True))
    policy.update(batch_of(make_groups()), 0.0)
    loaded = AutoModelForCausalLM.from_pretrained(export(policy.model, tiny_tokenizer(), tmp_path / "m", "card"))
    assert dict(loaded.named_parameters()).keys() == dict(tiny_model().named_parameters()).keys()


def test_an_export_replaces_the_one_before(tmp_path):
    model = tiny_model()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old.txt").write_text("old")
    export(model, tiny_tokenizer(), tmp_path / "model", "new card")
    assert not (tmp_path / "model" / "old.txt").exists()
    assert (tmp_path / "model" / "README.md").read_text() == "new card"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("room", [100, 20_000])
def test_a_full_disk_is_one_line_and_keeps_what_was_there(room, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old.txt").write_text("old")
    with largest_file(room), pytest.raises(AssayError, match="could not be written to") as caught:
        export(tiny_model(), tiny_tokenizer(), tmp_path / "model", "card")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "model" / "old.txt").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AssayError, match="could not be written to"):
        export(tiny_model(), tiny_tokenizer(), tmp_path / "file" / "model", "card")


def test_writing_is_silent(tmp_path, capfd):
    export(tiny_model(), tiny_tokenizer(), tmp_path / "model", "card")
    assert capfd.readouterr() == ("", "")


def test_sampling_settings_that_do_not_say_so_are_no_reason_to_lose_a_model(tmp_path):
    """Several published models have a temperature in their generation config and no do_sample."""
    save_tiny(tmp_path / "start")
    (tmp_path / "start" / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9, "eos_token_id": 2}')
    model = load_model(str(tmp_path / "start"), make_recipe().model, CPU)
    folder = export(model, tiny_tokenizer(), tmp_path / "model", "card")
    kept = GenerationConfig.from_pretrained(folder)
    assert (kept.temperature, kept.top_p, kept.eos_token_id, kept.do_sample) == (0.6, 0.9, 2, True)


def test_the_card_says_from_what_how_and_how_well():
    estimate = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 90}
    results = {"before": {"greedy": {**estimate, "value": 0.25}}, "after": {"greedy": estimate, "mean_at_8": estimate}}
    card = model_card("org/name: odd", "run:\n  seed: 3\n", results)
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "base_model": "org/name: odd",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "grpo", "assay"],
    }
    assert "| greedy | 0.250 (0.400 to 0.600) | 0.500 (0.400 to 0.600) | 90 |" in text
    assert "| mean_at_8 |  | 0.500 (0.400 to 0.600) | 90 |" in text
    assert "```yaml\nrun:\n  seed: 3\n```" in text


def test_the_card_does_not_call_imitation_reinforcement_learning():
    results = {"tokens": {"given": 9, "forwarded": 20}}
    _, front, text = model_card("base", "a: 1", results).split("---\n", 2)
    assert yaml.safe_load(front)["tags"] == ["supervised-fine-tuning", "assay"]
    assert "Supervised training on given completions, from `base`." in text
    assert "einforcement" not in front + text
    assert "Reinforcement learning" in model_card("base", "a: 1", {"tokens": {"generated": 9, "forwarded": 20}})


def test_a_card_without_evaluation_has_no_table():
    assert "held-out" not in model_card("base", "a: 1", {"before": None, "after": None})
