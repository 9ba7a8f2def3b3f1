"""What `assay explain` says: formulas with this recipe's numbers, and each number's origin."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from assay.errors import UserError
from assay.explain import explain, keys_of
from assay.objective.formula import describe
from assay.recipe.load import load_recipe
from assay.recipe.presets import PRESETS

RECIPE = """\
preset: dapo
data:
  train: [problems.jsonl]
  holdout: 50
objective:
  clip_high: 0.3
update: {minibatches: 2}
"""


def shown(resolved, width=90):
    console = Console(width=width, file=io.StringIO())
    explain(resolved, console)
    return console.file.getvalue()


def words(text):
    return " ".join(text.split())


def explained(overrides, width=90):
    return words(shown(load_recipe({"data": {"train": ["a"]}}, overrides), width))


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "sums.yaml"
    path.write_text(RECIPE)
    return path


def test_formulas_numbers_and_origins(recipe):
    text = words(shown(load_recipe(recipe, ["rollout.max_tokens=100"])))
    assert "l_t = -min(r A, clip(r, 1 - 0.2, 1 + 0.3) A)" in text
    assert "clip_low 0.2 (preset dapo), clip_high 0.3 (sums.yaml:6)" in text
    assert "eps 1e-06 (default)" in text
    assert "rollout.max_tokens 100 override" in text
    assert "data.train problems.jsonl sums.yaml:3" in text
    assert "DAPO: higher upper clip" in text


def test_the_cost_of_a_step(recipe):
    text = words(
        shown(load_recipe(recipe, ["rollout.max_tokens=100", "rollout.prompts_per_step=4", "rollout.dtype=bfloat16"]))
    )
    assert "4 prompts x 8 answers x 100 tokens: at most 3,200 a step, in bfloat16" in text
    assert "by at most 8 further ones (at most 6,400 tokens)" in text
    assert "answers beyond 80 tokens, linearly up to 1 at 100" in text
    assert "2 optimizer steps a batch (epochs 1 x minibatches 2), learning rate 1e-06, constant" in text
    assert "a forward for the anchor, forward and backward over the answers that have an advantage" in text
    assert "100 steps, 3,200 answers; held-out problems are evaluated" in text


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "live: "),
        ([], "The clip is idle: with one optimizer step per batch the ratio is 1"),
        (["update.epochs=2"], "The clip acts from the second of 2 optimizer steps on"),
        (["update.epochs=2"], "recompute: "),
        (["update.epochs=2"], "Why: the batch is used for 2 optimizer steps."),
        (["objective.anchor=rollout"], "The clip acts on the sampler's mismatch alone."),
        (["objective.kl.coefficient=0.1"], "a forward of the reference model"),
        (["objective.kl.coefficient=0.1"], "kl.coefficient 0.1 (override), kl.estimator k3 (default)"),
        (
            ["objective.aggregation=constant"],
            "aggregation constant (override), constant_tokens absent (default)",
        ),
        (["rollout.max_tokens=4"], "is it meant? rollout.max_tokens = 4 cuts most answers before they end"),
        ([], "nothing is held out"),
        (["rollout.dtype=float32"], "in float32"),
        ([], "in bfloat16 where the machine has it, else float32"),
    ],
)
def test_what_is_said_of_a_choice(overrides, said):
    assert said in explained(overrides)


def test_an_idle_clip_is_not_spoken_of_where_there_is_none():
    assert "The clip" not in explained(["objective.loss=reinforce"])


def test_every_line_of_the_objective_names_the_keys_it_is_made_of():
    everything = load_recipe(
        {"data": {"train": ["a"]}},
        [
            "objective={mask_truncated: true, entropy: 0.01, dual_clip: 3}",
            "objective.kl={coefficient: 0.1, controller: adaptive}",
            "objective.correction={kind: mask, reject_low: 0.5, reject_high: 2}",
        ],
    ).recipe
    lines = [label for label, _ in describe(everything.objective, 256)]
    assert len(lines) == 10
    for label in lines:
        assert keys_of(label, everything), label
    named = {key for label in lines for key in keys_of(label, everything)}
    assert {
        "objective.dual_clip",
        "objective.kl.target",
        "objective.correction.low",
        "objective.entropy",
    } <= named
    assert "objective.tau_pos" not in named


def test_without_a_recipe_the_presets_are_compared():
    text = shown(None, 80)
    assert max(map(len, text.splitlines())) <= 80
    for name in PRESETS:
        assert name in text
    assert "clip 0.0003/0.0004" in text
    assert "sequence_sum" in text
    assert "0.01 k1 in reward" in text
    assert "also importance weights truncated at 2, dynamic sampling" in words(text)


def test_a_recipe_in_memory_without_a_preset():
    assert explained([]).startswith("A recipe in memory no preset")


def test_an_unknown_name_is_refused_before_anything_is_printed():
    console = Console(file=io.StringIO())
    for override in ("objective.estimator=gpro", "objective.loss=clp"):
        with pytest.raises(UserError, match="did you mean"):
            explain(load_recipe({"data": {"train": ["a"]}}, [override]), console)
    assert console.file.getvalue() == ""


def test_brackets_in_values_are_shown_as_they_are():
    assert "runs/[bold]x" in explained(["run.folder=runs/[bold]x"])
