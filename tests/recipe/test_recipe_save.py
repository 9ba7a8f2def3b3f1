"""A saved recipe reads back equal; a resumed run says what was changed."""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.errors import UserError
from assay.recipe.load import check_resume, difference, load_recipe, may_change, save_resolved
from assay.recipe.presets import PRESETS
from assay.recipe.save import MACHINE, MAY_CHANGE
from assay.recipe.schema import (
    DataRecipe,
    LoraRecipe,
    ModelRecipe,
    ObjectiveRecipe,
    Recipe,
    RewardPart,
    RewardRecipe,
    RunRecipe,
    UpdateRecipe,
)

DATA = {"data": {"train": ["a.jsonl"]}}


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_a_saved_recipe_reads_back_equal_and_is_allowed(tmp_path, preset):
    found = load_recipe({"preset": preset, **DATA}, ["run.steps=3", "rollout.group_size=4"])
    path = save_resolved(found, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "recipe.yaml"
    again = load_recipe(path)
    assert again.recipe == found.recipe
    assert again.recipe.preset == preset
    assert all(origin.startswith("recipe ") for origin in again.origins.values())


def test_every_key_is_in_the_saved_file(tmp_path):
    text = save_resolved(Recipe(), tmp_path).read_text(encoding="utf-8")
    assert load_recipe(tmp_path / "recipe.yaml", check=False).explicit >= {
        "model.lora",
        "objective.kl.horizon",
        "run.threads",
    }
    assert "horizon: 10000" in text


# "???" means "left open" in a recipe
words = st.text("ab:#'\"-\\${}[]\n\t é~?*&!%@`|>1e6.", max_size=12).filter(lambda text: text != "???")
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words


@settings(deadline=None, max_examples=50)
@given(
    words,
    st.lists(words, max_size=3),
    st.dictionaries(st.text("abc_", min_size=1, max_size=4), plain | st.lists(plain, max_size=2), max_size=3),
    st.floats(1e-12, 1),
    st.none() | st.builds(LoraRecipe, rank=st.integers(1, 9), targets=words | st.lists(words, min_size=1)),
)
@example("1e-6", ["yes", "null", "010", "1:30", "~", "=", "<<"], {"a": "${b}"}, 1e-6, None)
@example("\\${x} \\\\${y} $$ ${", ["\\", "${"], {}, 2.0, None)
def test_any_text_and_number_survives(suffix, train, options, rate, lora):
    recipe = Recipe(
        model=ModelRecipe(lora=lora),
        data=DataRecipe(suffix=suffix, train=train),
        reward=RewardRecipe(parts=[RewardPart(verifier="number", options=options)]),
        update=UpdateRecipe(learning_rate=rate),
    )
    with tempfile.TemporaryDirectory() as folder:
        assert load_recipe(save_resolved(recipe, folder), check=False).recipe == recipe


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError,
        match=r"file/runs/recipe.yaml: cannot be written: Not a directory; choose another run.folder",
    ):
        save_resolved(Recipe(), tmp_path / "file" / "runs")


def test_the_difference_names_each_key():
    old = Recipe(model=ModelRecipe(lora=None), data=DataRecipe(train=["a"]))
    new = Recipe(
        preset="dapo",
        model=ModelRecipe(lora=LoraRecipe(rank=4)),
        data=DataRecipe(train=["a", "b"]),
        reward=RewardRecipe(parts=[RewardPart(verifier="number", weight=2, options={"tag": "x"})]),
        objective=ObjectiveRecipe(clip_high=0.28),
    )
    found = difference(old, new)
    assert [key for key, _, _ in found] == [
        "preset",
        "model.lora",
        "data.train",
        "reward.parts[0].weight",
        "reward.parts[0].options.tag",
        "objective.clip_high",
    ]
    assert found[-1] == ("objective.clip_high", 0.2, 0.28)
    assert found[2] == ("data.train", ["a"], ["a", "b"])
    assert difference(new, new) == []


def test_a_resumed_run_may_be_longer_and_shown_otherwise():
    data = {"train": ["a"], "holdout": 2}
    old = Recipe.model_validate({"data": data})
    overrides = [
        "run.steps=500",
        "run.folder=x",
        "track.trackers=[wandb]",
        "checkpoint.every=3",
        "eval.samples=0",
    ]
    check_resume(old, load_recipe(DATA | {"data": data}, overrides).recipe)


def test_a_resumed_run_with_a_changed_recipe_says_what_changed():
    old = Recipe(data=DataRecipe(train=["a"]))
    new = Recipe(
        data=DataRecipe(train=["a"]),
        objective=ObjectiveRecipe(clip_high=0.28),
        run=RunRecipe(seed=1, steps=7),
    )
    with pytest.raises(UserError) as caught:
        check_resume(old, new)
    assert str(caught.value) == (
        "resume: objective.clip_high was 0.2 and is now 0.28\n"
        "resume: run.seed was 0 and is now 1: resume with the recipe of the run, or start a new run"
    )


def test_what_the_machine_decided_is_not_blamed_on_the_user():
    old = Recipe(model=ModelRecipe(compute_dtype="float32"))
    new = old.model_copy(update={"model": ModelRecipe(compute_dtype="bfloat16")})
    with pytest.raises(UserError) as caught:
        check_resume(old, new, ["model.compute_dtype"])
    assert str(caught.value) == (
        "resume: model.compute_dtype was 'float32' and is now 'bfloat16', as this machine decides it: "
        "model.compute_dtype=float32 keeps what it was"
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_fits_a_run_to_a_machine_may_change_unless_bits_are_promised(deterministic):
    old = Recipe(run=RunRecipe(deterministic=deterministic))
    new = old.model_copy(update={"update": UpdateRecipe(tokens_per_microbatch=9999)})
    if deterministic:
        with pytest.raises(UserError, match=r"update.tokens_per_microbatch was 4096 and is now 9999"):
            check_resume(old, new)
    else:
        check_resume(old, new)


def test_the_lists_of_what_may_change_name_real_keys():
    from assay.recipe.keys import schema_keys

    assert {*MAY_CHANGE, *MACHINE} <= set(schema_keys())
    assert not may_change("runs.steps")
    assert not may_change("evaluate")
