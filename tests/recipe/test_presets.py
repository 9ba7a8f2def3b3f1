"""The papers' values, and that every preset is a recipe that works and explains itself."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from assay.errors import UserError
from assay.explain import explain
from assay.recipe.derived import choose_anchor, ratio_moves
from assay.recipe.load import load_recipe
from assay.recipe.presets import PRESETS, overlay, summary

DATA = {"data": {"train": ["a.jsonl"]}}


def objective(name):
    return load_recipe({"preset": name, **DATA}).recipe.objective


@pytest.mark.parametrize(
    ("name", "estimator", "scale", "loss", "ratio", "low", "high", "aggregation", "kl"),
    [
        ("grpo", "grpo", "group", "clip", "token", 0.2, 0.2, "sequence", (0.04, "k3", "loss")),
        ("dr_grpo", "dr_grpo", None, "clip", "token", 0.2, 0.2, "constant", None),
        ("dapo", "grpo", "group", "clip", "token", 0.2, 0.28, "token", None),
        ("gspo", "grpo", "group", "clip", "sequence", 3e-4, 4e-4, "sequence", None),
        ("rloo", "rloo", None, "reinforce", None, None, None, "sequence_sum", (0.03, "k1", "reward")),
        ("cispo", "grpo", "group", "cispo", "token", 1.0, 5.0, "token", None),
        ("olmo3", "grpo", "none", "clip", "token", 0.2, 0.272, "token", None),
        ("reinforce++", "reinforce++", None, "clip", "token", 0.2, 0.2, "token", (0.01, "k1", "reward")),
    ],
)
def test_objective_values(name, estimator, scale, loss, ratio, low, high, aggregation, kl):
    found = objective(name)
    assert (found.estimator, found.loss, found.aggregation) == (estimator, loss, aggregation)
    if scale is not None:
        assert found.scale == scale
    if ratio is not None:
        assert (found.ratio, found.clip_low, found.clip_high) == (ratio, low, high)
    term = found.kl
    assert (term.coefficient, term.estimator, term.where) == kl if kl else term.coefficient == 0


def test_what_the_presets_set_beside_the_objective():
    recipes = {name: load_recipe({"preset": name, **DATA}).recipe for name in PRESETS}
    assert {n for n, r in recipes.items() if r.rollout.dynamic_sampling} == {"dapo", "olmo3"}
    assert {n: r.update.minibatches for n, r in recipes.items() if r.update.minibatches > 1} == {"gspo": 4}
    assert {n: r.reward.overlong_buffer for n, r in recipes.items() if r.reward.overlong_buffer} == {"dapo": 0.2}
    assert recipes["dapo"].reward.overlong_buffer == 4096 / 20480
    assert recipes["dapo"].reward.overlong_penalty == 1
    correction = recipes["olmo3"].objective.correction
    assert (correction.kind, correction.level, correction.high) == ("truncate", "token", 2.0)
    assert {n for n, r in recipes.items() if r.objective.correction.kind != "none"} == {"olmo3"}


def test_anchor_and_clip_of_the_presets():
    recipes = {name: load_recipe({"preset": name, **DATA}).recipe for name in PRESETS}
    anchors = {name: choose_anchor(recipe).kind for name, recipe in recipes.items()}
    recompute = {"gspo", "olmo3", "rloo", "reinforce++"}
    assert anchors == {name: "recompute" if name in recompute else "live" for name in PRESETS}
    assert {name for name, recipe in recipes.items() if ratio_moves(recipe)} == {"gspo"}


@pytest.mark.parametrize("name", [*PRESETS])
@pytest.mark.parametrize("width", [80, 100])
def test_every_preset_explains_itself(name, width):
    console = Console(width=width, file=io.StringIO())
    explain(load_recipe({"preset": name, **DATA}), console)
    text = console.file.getvalue()
    assert "policy loss" in text
    assert f"(preset {name})" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("name", [*PRESETS])
def test_every_preset_names_its_source(name):
    assert "arXiv:" in summary(name)
    assert len((PRESETS[name].__doc__ or "").splitlines()) > 2  # and says what the source leaves open


def test_the_recipe_wins_over_its_preset():
    found = load_recipe({"preset": "dapo", "rollout": {"dynamic_sampling": False}, **DATA})
    assert found.recipe.rollout.dynamic_sampling is False
    assert found.origins["rollout.dynamic_sampling"] == "recipe"
    assert found.origins["reward.overlong_buffer"] == "preset dapo"


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown preset 'gsop' \(did you mean 'gspo'\?\)"):
        overlay("gsop")
