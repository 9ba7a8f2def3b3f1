"""The objective in words: every number of the recipe that takes effect is there, and nothing else."""

from __future__ import annotations

import pytest

from assay.errors import UserError
from assay.objective.advantage import ESTIMATORS
from assay.objective.aggregation import AGGREGATIONS
from assay.objective.formula import describe
from assay.objective.loss import LOSSES
from assay.recipe import names
from assay.recipe.schema import CorrectionRecipe, KlRecipe, ObjectiveRecipe


def test_the_default_objective():
    assert describe(ObjectiveRecipe(clip_high=0.28), max_tokens=256) == [
        (
            "advantage",
            "A_i = (r_i - mean of group r) / (std of group r + 1e-06), on every token of rollout i",
        ),
        (
            "anchor",
            "live: the policy's own log-probs, detached: the ratio is exactly 1 and the clips are idle",
        ),
        ("ratio", "r_t = exp(policy_t - anchor_t)"),
        ("policy loss", "l_t = -min(r A, clip(r, 1 - 0.2, 1 + 0.28) A)"),
        ("aggregation", "loss = sum of l_t / tokens"),
    ]


def test_every_term_shows_with_its_numbers():
    chosen = ObjectiveRecipe(
        estimator="passk",
        scale="none",
        dual_clip=3.0,
        aggregation="constant",
        mask_truncated=True,
        entropy=0.002,
        kl=KlRecipe(coefficient=0.03, estimator="k3+", controller="adaptive", target=0.07, horizon=900),
        correction=CorrectionRecipe(kind="mask", level="sequence", low=0.4, high=2.5, reject_low=0.9),
    )
    said = dict(describe(chosen, max_tokens=333, epochs=2))
    assert "std" not in said["advantage"]
    assert said["anchor"].startswith("recompute")
    assert said["policy loss"].endswith("for A < 0 at most 3 |A|")
    assert said["correction"] == (
        "l_t is multiplied by w within [0.4, 2.5], else rejected; w = exp(sum over the rollout of anchor - sampler)"
    )
    assert said["rejection"].endswith("outside [0.9, infinity]")
    assert said["truncated answers"].startswith("leave numerator and denominator")
    assert said["KL"] == (
        "l_t is increased by 0.03 (exp(x) - x - 1 with k2's gradient), x = ref - policy; "
        "coefficient steered to a KL of 0.07 per token over 900 rollouts"
    )
    assert said["entropy"] == "l_t is increased by -0.002 H_t"
    assert said["aggregation"] == "loss = sum of l_t / (rollouts x 333)"


def test_a_kl_in_the_reward_and_a_token_correction():
    chosen = ObjectiveRecipe(
        estimator="gae",
        gamma=0.99,
        lam=0.95,
        loss="geo_mean",
        constant_tokens=77,
        aggregation="constant",
        kl=KlRecipe(coefficient=0.01, where="reward", estimator="k1"),
        correction=CorrectionRecipe(kind="truncate", reject_high=1.5),
    )
    said = dict(describe(chosen, max_tokens=333))
    assert "0.99" in said["advantage"]
    assert "0.95" in said["advantage"]
    assert "ratio" not in said
    assert said["KL"] == "each token's reward is decreased by 0.01 (-x), x = ref - policy"
    assert said["correction"].endswith("min(w, 2); w = exp(anchor - sampler)")
    assert said["rejection"].endswith("outside [0, 1.5]")
    assert said["aggregation"].endswith("x 77)")


def test_every_registered_name_has_a_formula_without_holes():
    for estimator in ESTIMATORS:
        for loss in LOSSES:
            for aggregation in AGGREGATIONS:
                chosen = ObjectiveRecipe(estimator=estimator, loss=loss, aggregation=aggregation)
                for label, text in describe(chosen, max_tokens=9):
                    assert text, label
                    assert "{" not in text


def test_every_key_a_loss_reads_but_the_ratio_is_in_its_formula():
    for name in LOSSES:
        entry = LOSSES[name]
        said = entry.formula.replace("{dual}", "{dual_clip}")
        assert {key for key in names.LOSS_KEYS if f"{{{key}}}" in said} == entry.keys - {"ratio"}, name


def test_the_recipe_knows_what_losses_read():
    assert {name: LOSSES[name].keys for name in LOSSES} == names.LOSSES


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'cispo'"):
        describe(ObjectiveRecipe(loss="cispoo"), max_tokens=9)
