"""Every key of the correction, from a recipe's words to the gradient; where it could do nothing it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from policy_helpers import batch_of, flat, make_groups, make_policy, relative, update_gradient, with_sampler
from tiny import tiny_model

from assay.errors import UserError
from assay.recipe.derived import choose_anchor
from assay.recipe.load import load_recipe
from assay.recipe.schema import Recipe

TRUNCATE: dict[str, Any] = {"kind": "truncate"}
MASK: dict[str, Any] = {"kind": "mask"}
PAIRS = {
    # key: the correction before, and after it changed
    "kind=truncate": ({}, TRUNCATE),
    "kind=mask": ({}, MASK),
    "truncate or mask": (TRUNCATE, MASK),
    "level of truncate": (TRUNCATE, TRUNCATE | {"level": "sequence"}),
    "level of mask": (MASK, MASK | {"level": "sequence", "low": 0.1, "high": 10.0}),
    "high of truncate": (TRUNCATE, TRUNCATE | {"high": 1.2}),
    "high of mask": (MASK, MASK | {"high": 1.2}),
    "low of mask": (MASK, MASK | {"low": 0.8}),
    "reject_low": ({}, {"reject_low": 0.9}),
    "reject_high": ({}, {"reject_high": 1.1}),
    "reject_high beside truncate": (TRUNCATE, TRUNCATE | {"reject_high": 1.1}),
}
KEYS = [{"kind": "truncate"}, {"kind": "mask"}, {"reject_low": 0.9}, {"reject_high": 1.1}]


def recipe_of(correction: dict[str, Any], anchor: str, **update: Any) -> Recipe:
    """As a file would be read, every rule applied."""
    values = {
        "model": {"dtype": "float32", "compute_dtype": "float32"},
        "data": {"train": ["a.jsonl"]},
        "update": {"max_grad_norm": None, **update},
        "objective": {"anchor": anchor, "correction": correction},
    }
    return load_recipe(values).recipe


@pytest.mark.parametrize("anchor", ["recompute", "auto"])
@pytest.mark.parametrize("key", PAIRS)
def test_each_key_changes_the_gradient(key: str, anchor: str):
    groups = with_sampler(make_groups(), tiny_model("llama"))
    one, other = (update_gradient(make_policy(recipe_of(correction, anchor)), groups) for correction in PAIRS[key])
    assert relative(other, one) > 0.01


@pytest.mark.parametrize("correction", KEYS, ids=str)
@pytest.mark.parametrize("anchor", ["rollout", "live"])
def test_where_it_could_do_nothing_it_is_refused(anchor: str, correction: dict[str, Any]):
    with pytest.raises(UserError, match=f"objective.anchor '{anchor}'"):
        recipe_of(correction, anchor)


@pytest.mark.parametrize("correction", KEYS, ids=str)
def test_auto_recomputes_for_a_correction(correction: dict[str, Any]):
    assert choose_anchor(recipe_of({}, "auto")).kind == "live"
    assert choose_anchor(recipe_of(correction, "auto")).kind == "recompute"
    assert choose_anchor(recipe_of(correction, "auto", epochs=2)).kind == "recompute"


def test_bypass_is_another_gradient_than_recompute():
    """The ratio carries the mismatch: some of its tokens are clipped at the first step already."""
    groups = with_sampler(make_groups(), tiny_model("llama"))
    recomputed, bypass = (make_policy(recipe_of({}, anchor)) for anchor in ("recompute", "rollout"))
    assert relative(update_gradient(bypass, groups), update_gradient(recomputed, groups)) > 0.05
    metrics = make_policy(recipe_of({}, "rollout")).update(batch_of(groups), 0.0).metrics
    assert metrics["update/clip_high_share"] + metrics["update/clip_low_share"] > 0
    assert metrics["update/ratio_max"] > 1.5


def test_an_exact_sampler_makes_them_all_one():
    """Without a mismatch no correction and no anchor changes anything."""
    model = tiny_model("llama")
    groups = with_sampler(make_groups(), model, gaps=(0.0,))
    plain = update_gradient(make_policy(recipe_of({}, "live")), groups)
    for correction, anchor in [(c, "recompute") for c in (*KEYS, TRUNCATE | {"level": "sequence"})] + [({}, "rollout")]:
        found = update_gradient(make_policy(recipe_of(correction, anchor)), groups)
        assert relative(found, plain) < 1e-4
    assert float(flat([plain]).norm()) > 0
