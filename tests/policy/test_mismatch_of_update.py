"""The mismatch of an update, whichever anchor its ratio divides by: of log-probs before the weights move."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_helpers import batch_of, make_groups, make_policy, make_recipe, with_sampler
from tiny import tiny_model

from assay.policy.batch import pack
from assay.recipe.schema import Recipe

MEASURED = ("logprob_abs_max", "prob_abs_mean", "prob_correlation", "kl", "kl_reverse", "perplexity_ratio")


def numbers(**keys) -> dict[str, float]:
    groups = with_sampler(make_groups(), tiny_model("llama"))
    recipe = make_recipe(objective__entropy=1e-9, **keys)  # every rollout is forwarded
    return make_policy(recipe).update(batch_of(groups), 0.0).metrics


def test_every_anchor_says_the_same_of_the_sampler():
    """The recomputed anchor before the first pass, the live one and the sampler's own in it."""
    recomputed = numbers(objective__anchor="recompute")
    for anchor in ("live", "rollout"):
        found = numbers(objective__anchor=anchor)
        for name in (*(f"mismatch/{n}" for n in MEASURED), "update/ess_sequence", "update/ess_token"):
            assert found[name] == pytest.approx(recomputed[name], rel=1e-5), name
        assert {n for n in found if "_weight/" in n} == {n for n in recomputed if "_weight/" in n}


def test_only_unmoved_weights_are_compared():
    """With the sampler as anchor and several steps, the mismatch is that of the first step's tokens alone."""
    still = numbers(objective__anchor="rollout", update__learning_rate=1e-12, update__epochs=3)
    moving = numbers(objective__anchor="rollout", update__learning_rate=0.1, update__epochs=3)
    assert moving["update/kl_anchor"] > 2 * still["update/kl_anchor"]
    for name in MEASURED:
        assert moving[f"mismatch/{name}"] == still[f"mismatch/{name}"]


def test_staleness_is_counted_from_the_version_trained():
    groups = make_groups(sizes=(4,))
    first, *others = groups[0].rollouts
    newer = replace(first, segments=tuple(replace(s, versions=(6,) * len(s.token_ids)) for s in first.segments))
    groups = [replace(groups[0], rollouts=(newer, *others))]
    batch = pack(groups, Recipe().reward, version=7)
    assert batch.step.lags is not None
    assert batch.step.lags.tolist() == [1] * len(first) + [7] * sum(map(len, others))
    metrics = make_policy(make_recipe(objective__entropy=1e-9)).update(batch, 0.0).metrics
    share = len(first) / batch.n_tokens
    assert metrics["mismatch/lag/1/share"] == pytest.approx(share)
    assert metrics["mismatch/lag/5-8/share"] == pytest.approx(1 - share)
