"""Each error a user can make in a recipe: one line that says what, where, and the mend."""

from __future__ import annotations

import os

import pytest

from assay.errors import UserError
from assay.recipe.load import load_recipe
from assay.recipe.names import ESTIMATORS


def error(source, overrides=(), **options):
    with pytest.raises(UserError) as caught:
        load_recipe(source, overrides, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


def file_error(tmp_path, text, overrides=()):
    path = tmp_path / "r.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return error(path, overrides).replace(str(path), "r.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "run: {seed: 1}\nupdate:\n  learning_rte: 1.0e-6\n",
            "r.yaml:3: unknown key 'update.learning_rte' (did you mean 'update.learning_rate'?)",
        ),
        (
            "learning_rate: 1\n",
            "r.yaml:1: unknown key 'learning_rate' (did you mean 'update.learning_rate'?)",
        ),
        ("kl: {coefficient: 1}\n", "r.yaml:1: unknown key 'kl' (did you mean 'objective.kl'?)"),
        ("rollot: {}\n", "r.yaml:1: unknown key 'rollot' (did you mean 'rollout'?)"),
        (
            "reward:\n  parts:\n    - verifier: number\n      wieght: 2\n",
            "r.yaml:4: unknown key 'reward.parts[0].wieght' (did you mean 'reward.parts[0].weight'?)",
        ),
        ("zebra: 1\n", "r.yaml:1: unknown key 'zebra'"),
        (
            "run: {sed: 1}\nevel: {}\n",
            "r.yaml:1: unknown key 'run.sed' (did you mean 'run.seed'?)\n"
            "r.yaml:2: unknown key 'evel' (did you mean 'eval'?)",
        ),
        ("- a\n- b\n", "r.yaml:1: a recipe is a mapping of keys, not a list"),
        ("\njust words\n", "r.yaml:2: a recipe is a mapping of keys, not a single value"),
        (
            "run: {seed: 1}\nupdate: {epochs: 1}\nrun: {steps: 2}\n",
            "r.yaml:3: run is written twice, first on line 1",
        ),
        ("run:\n  seed: 1\n  seed: 2\n", "r.yaml:3: run.seed is written twice, first on line 2"),
        ("run: &a\n  seed: *a\n", "r.yaml:1: run.seed contains itself"),
        (b"run: {name: \xff}\n", "r.yaml: is not a text file in UTF-8"),
        ("run:\n  steps: ???\n", "r.yaml:2: run.steps is left open (???): give it as run.steps=VALUE"),
        (
            "eval: {temperature: '${rollout.temprature}'}\n",
            "r.yaml:1: eval.temperature: Interpolation key 'rollout.temprature' not found",
        ),
        (
            "preset: dap\n",
            "r.yaml:1: unknown preset 'dap' (did you mean 'dapo'?); "
            "known: cispo, dapo, dr_grpo, grpo, gspo, olmo3, reinforce++, rloo",
        ),
        ("preset: 3\n", "r.yaml:1: preset must be text, not 3"),
    ],
)
def test_a_faulty_file(tmp_path, text, message):
    assert file_error(tmp_path, text) == message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("run: {seed: 1}\na: [1,\nb: 2]]\n", 3),
        ("run:\n\tseed: 1\n", 2),
        ("run: {seed: 1}\n---\nrun: {}\n", 2),
    ],
)
def test_broken_yaml_names_the_line(tmp_path, text, line):
    """What is said after it is the parser's, in one line."""
    message = file_error(tmp_path, text)
    assert message.startswith(f"r.yaml:{line}: broken YAML: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rollout:\n  group_size: many\n", "r.yaml:2: rollout.group_size must be a whole number, not 'many'"),
        ("rollout: {group_size: 0}\n", "r.yaml:1: rollout.group_size must be at least 1, not 0"),
        ("rollout: {group_size: null}\n", "r.yaml:1: rollout.group_size must be a whole number, not null"),
        ("rollout: {temperature: 0}\n", "r.yaml:1: rollout.temperature must be above 0, not 0"),
        ("rollout: {top_p: 1.5}\n", "r.yaml:1: rollout.top_p must be at most 1, not 1.5"),
        ("update: {beta1: 1}\n", "r.yaml:1: update.beta1 must be below 1, not 1"),
        ("update: {epochs: 1.5}\n", "r.yaml:1: update.epochs must be a whole number, not 1.5"),
        (
            "update: {learning_rate: .inf}\n",
            "r.yaml:1: update.learning_rate must be a finite number, not inf",
        ),
        ("update: {learning_rate: fast}\n", "r.yaml:1: update.learning_rate must be a number, not 'fast'"),
        (
            "update: {schedule: cosin}\n",
            "r.yaml:1: update.schedule must be one of constant, linear, cosine, not 'cosin' (did you mean 'cosine'?)",
        ),
        (
            "run: {deterministic: perhaps}\n",
            "r.yaml:1: run.deterministic must be true or false, not 'perhaps'",
        ),
        (
            "model: {revision: 1234567}\n",
            "r.yaml:1: model.revision must be text, not 1234567: put it in quotes",
        ),
        ("data: {train: a.jsonl}\n", "r.yaml:1: data.train must be a list, not 'a.jsonl': write [a.jsonl]"),
        ("data:\n  train:\n  - a\n  - 3\n", "r.yaml:4: data.train[1] must be text, not 3: put it in quotes"),
        ("model: {lora: {targets: 3}}\n", "r.yaml:1: model.lora.targets must be text or a list, not 3"),
        ("model: {lora: true}\n", "r.yaml:1: model.lora must be a section of keys, not true"),
        ("rollout: 5\n", "r.yaml:1: rollout must be a section of keys, not 5"),
        ("reward: {parts: []}\n", "r.yaml:1: reward.parts must have at least 1 entry, not []"),
        ("reward:\n  parts:\n  - weight: 1\n", "r.yaml:3: reward.parts[0].verifier is missing"),
        (
            "reward: {parts: [{verifier: number, options: [1]}]}\n",
            "r.yaml:1: reward.parts[0].options must be a mapping of keys, not [1]",
        ),
        (
            "rollout: {group_size: x}\nupdate:\n  epochs: y\n",
            "r.yaml:1: rollout.group_size must be a whole number, not 'x'\n"
            "r.yaml:3: update.epochs must be a whole number, not 'y'",
        ),
    ],
)
def test_a_value_of_a_wrong_type(tmp_path, text, message):
    assert file_error(tmp_path, text) == message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "update.epochs",
            "override 'update.epochs': write it as key=value, such as update.learning_rate=1e-6",
        ),
        ("=3", "override '=3': write it as key=value, such as update.learning_rate=1e-6"),
        (
            "update.learning_rte=1",
            "override: unknown key 'update.learning_rte' (did you mean 'update.learning_rate'?)",
        ),
        ("run.seed.x=1", "override: unknown key 'run.seed.x': run.seed holds a value, not keys"),
        (
            "data.train[0].x=1",
            "override: unknown key 'data.train[0].x': data.train[0] holds a value, not keys",
        ),
        ("reward.parts[0].wait=1", "override: unknown key 'reward.parts[0].wait'"),
        (
            "objective={clip_lo: 1}",
            "override: unknown key 'objective.clip_lo' (did you mean 'objective.clip_low'?)",
        ),
        (
            "reward.parts=[{verifier: exact, weigth: 1}]",
            "override: unknown key 'reward.parts[0].weigth' (did you mean 'reward.parts[0].weight'?)",
        ),
        (
            "reward.parts[0]={weigth: 1}",
            "override: unknown key 'reward.parts[0].weigth' (did you mean 'reward.parts[0].weight'?)",
        ),
        (
            "data.train=[a",
            "override 'data.train=[a': the value is broken YAML: did not find expected ',' or ']'",
        ),
        (
            "reward.parts[2].weight=1",
            "override reward.parts[2].weight: there is no such entry: reward.parts has 1 entry, counted from 0",
        ),
        ("rollout.group_size=many", "override: rollout.group_size must be a whole number, not 'many'"),
        ("rollout=5", "override: rollout must be a section of keys, not 5"),
        (
            "preset=dap",
            "override: unknown preset 'dap' (did you mean 'dapo'?); "
            "known: cispo, dapo, dr_grpo, grpo, gspo, olmo3, reinforce++, rloo",
        ),
    ],
)
def test_a_faulty_override(override, message):
    assert error({"data": {"train": ["a"]}}, [override]).startswith(message)


def test_the_last_override_is_blamed_not_the_file(tmp_path):
    text = "data: {train: [a]}\nrollout: {group_size: 4}\n"
    assert (
        file_error(tmp_path, text, ["rollout.group_size=0"]) == "override: rollout.group_size must be at least 1, not 0"
    )


def test_an_open_value_is_filled_by_an_override(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("data: {train: [a]}\nrun:\n  steps: ???\n")
    assert load_recipe(path, ["run.steps=7"]).recipe.run.steps == 7
    assert load_recipe(path, ["run={steps: 8}"]).recipe.run.steps == 8


def test_files_that_are_none(tmp_path):
    assert error(tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: there is no such recipe file"
    (tmp_path / "sums.yaml").write_text("preset: grpo\n", encoding="utf-8")
    said = f"{tmp_path}/sumz.yaml: there is no such recipe file (did you mean 'sums.yaml'?)"
    assert error(tmp_path / "sumz.yaml") == said
    assert error(tmp_path) == f"{tmp_path}: is a folder; give the recipe file in it"
    empty = tmp_path / "empty.yaml"
    empty.write_text("# nothing\n")
    assert error(empty).startswith(f"{empty}: data.train is empty")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("run: {seed: 1}\n")
    path.chmod(0)
    assert error(path) == f"{path}: cannot be read: Permission denied"


def test_a_mapping_is_called_recipe():
    assert error({"update": {"epochs": 0}}) == "recipe: update.epochs must be at least 1, not 0"
    assert error({"run": {"name": "${x"}}).startswith("recipe: ")
    assert error({"run": {"name": object()}}).startswith("recipe: ")


def test_a_refused_combination_names_the_line_of_the_key(tmp_path):
    alone = ", ".join(name for name, facts in ESTIMATORS.items() if not (facts.group_baseline or facts.lacks))
    assert "reinforce++" in alone
    text = "data: {train: [a]}\nrollout:\n  group_size: 1\nobjective:\n  tau_pos: 0.5\n"
    assert file_error(tmp_path, text) == (
        "r.yaml:3: rollout.group_size 1 gives every rollout advantage 0, because 'grpo' compares rollouts "
        f"within their group: use 2 or more, or the estimator {alone}\n"
        "r.yaml:5: objective.tau_pos is set, but objective.loss = clip does not read it (read by: sapo): "
        "leave it out"
    )
    assert file_error(tmp_path, "data: {train: [a]}\n", ["rollout.group_size=1"]).startswith(
        "override: rollout.group_size 1"
    )
