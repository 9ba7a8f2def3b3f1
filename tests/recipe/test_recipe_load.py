"""Merge order, provenance, overrides, interpolation: what a recipe comes to and where it came from."""

from __future__ import annotations

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.recipe.keys import flatten, schema_keys
from assay.recipe.load import load_recipe
from assay.recipe.presets import PRESETS
from assay.recipe.save import escaped
from assay.recipe.schema import Recipe

RECIPE = """\
# a comment
preset: dapo
data:
  train: [a.jsonl, b.jsonl]

reward:
  parts:
    - verifier: number
      weight: 2
      options: {format: last}
    - verifier: format
objective:
  clip_high: 0.3
  kl: {coefficient: 0.1}
"""


def write(tmp_path, text=RECIPE):
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_later_sources_win(tmp_path):
    found = load_recipe(write(tmp_path), ["objective.clip_low=0.1", "rollout.group_size=4"]).recipe
    assert found.objective.clip_low == 0.1  # override over preset
    assert found.objective.clip_high == 0.3  # recipe over preset
    assert found.rollout.dynamic_sampling is True  # preset over default
    assert found.rollout.group_size == 4  # override over default
    assert found.update.epochs == 1


def test_every_value_has_an_origin_with_its_line(tmp_path):
    path = write(tmp_path)
    found = load_recipe(path, ["objective.clip_low=0.1", "reward.parts[1].weight=0.5"])
    assert set(found.origins) == set(flatten(found.recipe))
    expected = {
        "preset": f"recipe {path}:2",
        "data.train": f"recipe {path}:4",
        "reward.parts[0].verifier": f"recipe {path}:8",
        "reward.parts[0].weight": f"recipe {path}:9",
        "reward.parts[0].options": f"recipe {path}:10",
        "reward.parts[0].name": "default",
        "reward.parts[1].verifier": f"recipe {path}:11",
        "reward.parts[1].weight": "override",
        "objective.clip_low": "override",
        "objective.clip_high": f"recipe {path}:13",
        "objective.kl.coefficient": f"recipe {path}:14",
        "objective.kl.where": "default",
        "objective.aggregation": "preset dapo",
        "rollout.dynamic_sampling": "preset dapo",
        "run.seed": "default",
    }
    assert {key: found.origins[key] for key in expected} == expected
    assert found.explicit >= {"preset", "data.train", "reward.parts[1].weight", "objective.kl.coefficient"}
    assert not found.explicit & {"objective.aggregation", "run.seed"}
    assert found.path == path


def test_a_replaced_list_forgets_where_its_entries_were_from(tmp_path):
    found = load_recipe(write(tmp_path), ["reward.parts=[{verifier: exact}]"])
    assert [p.verifier for p in found.recipe.reward.parts] == ["exact"]
    assert found.recipe.reward.parts[0].weight == 1.0
    assert found.origins["reward.parts[0].verifier"] == "override"
    assert found.origins["reward.parts[0].weight"] == "default"


def test_overrides_reach_into_lists_and_sections():
    found = load_recipe(
        {"data": {"train": ["a.jsonl"]}},
        [
            "reward.parts[0].weight=2",
            "reward.parts.0.name=right",
            "reward.parts[0].options.tag.deep=[1, 2]",
            "data.train=[x.jsonl, 'reasoning_gym:chain_sum{\"size\": 10}']",
            "data.train[0]=y.jsonl",
            "model.lora.rank=8",
            "update.learning_rate=2e-5",
            "run.name=a=b",
            "model.tokenizer=",
            "objective.kl={coefficient: 0.1, where: reward, estimator: k1}",
        ],
    ).recipe
    part = found.reward.parts[0]
    assert (part.verifier, part.weight, part.name, part.options) == (
        "number",
        2.0,
        "right",
        {"tag": {"deep": [1, 2]}},
    )
    assert found.data.train == ["y.jsonl", 'reasoning_gym:chain_sum{"size": 10}']
    assert found.model.lora is not None
    assert (found.model.lora.rank, found.model.lora.alpha) == (8, 32.0)
    assert found.update.learning_rate == 2e-5
    assert (found.run.name, found.model.tokenizer) == ("a=b", None)
    assert (found.objective.kl.coefficient, found.objective.kl.where, found.objective.kl.horizon) == (
        0.1,
        "reward",
        10000,
    )


def test_keys_refer_to_other_keys_and_to_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_TEST_STEPS", "12")
    text = (
        "data: {train: [a.jsonl]}\neval: {temperature: '${rollout.temperature}'}\n"
        "run: {steps: '${oc.env:ASSAY_TEST_STEPS}'}\n"
        "reward:\n  parts:\n    - {verifier: number, weight: 3}\n    - ${reward.parts[0]}\n"
    )
    found = load_recipe(write(tmp_path, text), ["rollout.temperature=0.7", "reward.parts[0].name=first"], check=False)
    assert found.recipe.eval.temperature == 0.7
    assert found.recipe.run.steps == 12
    assert found.recipe.reward.parts[1].weight == 3
    assert found.origins["reward.parts[1].weight"].endswith("recipe.yaml:7")


def test_the_preset_may_come_from_an_override():
    found = load_recipe({"preset": "dapo", "data": {"train": ["a"]}}, ["preset=gspo"])
    assert found.recipe.objective.ratio == "sequence"
    assert found.recipe.rollout.dynamic_sampling is False
    assert load_recipe({"preset": "dapo"}, ["preset=null"], check=False).recipe == Recipe()


def test_an_empty_section_is_the_default_and_a_null_lora_is_none(tmp_path):
    path = write(tmp_path, "rollout:\n  # group_size: 4\nmodel:\n  lora: null\ndata: {train: [a]}\n")
    assert load_recipe(path).recipe == load_recipe({"data": {"train": ["a"]}}).recipe
    assert load_recipe({"model": {"lora": {}}}, check=False).recipe.model.lora is not None


def test_anchors_and_merge_keys_of_yaml_work(tmp_path):
    text = "data:\n  train: &files [a.jsonl]\n  eval: *files\nupdate:\n  <<: {epochs: 2}\n  minibatches: 2\n"
    found = load_recipe(write(tmp_path, text))
    assert found.recipe.data.eval == ["a.jsonl"]
    assert (found.recipe.update.epochs, found.recipe.update.minibatches) == (2, 2)
    assert found.origins["update.epochs"].endswith("recipe.yaml:5")


def test_the_library_reads_as_the_command_does(tmp_path):
    path = write(tmp_path)
    assert Recipe.from_file(path, "run.seed=3") == load_recipe(path, ["run.seed=3"]).recipe
    assert Recipe.from_dict(yaml.safe_load(RECIPE)) == load_recipe(path).recipe


def test_the_schema_stays_small_and_documented():
    values = [key for key in schema_keys().values() if key.section is None]
    assert len(values) <= 150
    assert [k.path for k in schema_keys().values() if not k.field.description] == []


SETTINGS = {
    "objective.clip_low": st.floats(0.01, 0.9),
    "objective.clip_high": st.floats(0.01, 5),
    "objective.aggregation": st.sampled_from(["token", "sequence", "prompt"]),
    "objective.mask_truncated": st.booleans(),
    "objective.entropy": st.floats(0, 1e-3),
    "update.learning_rate": st.floats(1e-9, 1),
    "update.max_grad_norm": st.none() | st.floats(0.1, 10),
    "update.epochs": st.integers(1, 4),
    "rollout.group_size": st.integers(2, 64),
    "run.name": st.none() | st.text("abc:#'\"-0e${}\\ é\n", max_size=8),
    "run.seed": st.integers(-(2**40), 2**40),
    "data.suffix": st.text("\\boxed{}$ 1e6~", max_size=8),
    "data.eval": st.lists(st.text('ab/.{}":', min_size=1, max_size=6), max_size=3),
    "preset": st.sampled_from([*PRESETS]),
}


def in_yaml(value):
    """The value as a user writes it in an override, interpolations escaped."""
    text = yaml.safe_dump(escaped(value), default_flow_style=True, allow_unicode=True)
    return text.removesuffix("...\n")


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_value_means_the_same_in_the_file_and_as_an_override(data):
    keys = data.draw(st.lists(st.sampled_from(sorted(SETTINGS)), unique=True))
    values = {key: data.draw(SETTINGS[key], label=key) for key in keys}
    nested: dict = {}
    for key, value in values.items():
        *above, last = key.split(".")
        place = nested
        for step in above:
            place = place.setdefault(step, {})
        place[last] = escaped(value)
    overrides = [f"{key}={in_yaml(value)}" for key, value in values.items()]
    by_file = load_recipe(nested, check=False)
    by_override = load_recipe(None, data.draw(st.permutations(overrides)), check=False)
    assert by_file.recipe == by_override.recipe
    flat = flatten(by_file.recipe)
    assert {key: flat[key] for key in keys} == values
    for key in keys:
        assert (by_file.origins[key], by_override.origins[key]) == ("recipe", "override")
    assert by_file.explicit == by_override.explicit == set(keys)
