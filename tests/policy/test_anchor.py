"""The anchor: an unmoved ratio is exactly 1, and a moved one really moves."""

from __future__ import annotations

import pytest
import torch
from policy_helpers import batch_of, make_groups, make_policy, make_recipe, relative, update_gradient
from tiny import tiny_model

PRECISIONS = ["float32", "bfloat16"]


@pytest.mark.parametrize("compute", PRECISIONS)
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_recomputed_anchor_is_the_policy_bit_for_bit(compute, share, checkpointing, family):
    """Through forwards of many shapes, with and without gradient, with and without recomputation."""
    recipe = make_recipe(
        model__compute_dtype=compute,
        model__gradient_checkpointing=checkpointing,
        objective__anchor="recompute",
        update__share_prompts=share,
        update__tokens_per_microbatch=60,
        update__head_chunk=5,
    )
    metrics = make_policy(recipe, tiny_model(family)).update(batch_of(make_groups(sizes=(5, 4, 3))), 0.0).metrics
    assert metrics["update/ratio_max"] == metrics["update/ratio_mean"] == 1.0
    assert metrics["update/kl_anchor"] == 0.0
    assert metrics["update/clip_low_share"] == metrics["update/clip_high_share"] == 0.0


@pytest.mark.parametrize("compute", PRECISIONS)
def test_live_and_recomputed_anchors_give_the_same_gradient(compute):
    groups = make_groups()
    live, recomputed = (
        update_gradient(make_policy(make_recipe(objective__anchor=anchor, model__compute_dtype=compute)), groups)
        for anchor in ("live", "recompute")
    )
    torch.testing.assert_close(recomputed, live, rtol=0, atol=0)


def test_the_first_of_several_steps_has_ratio_one_and_later_ones_do_not():
    groups = make_groups(sizes=(4, 4))
    recipe = make_recipe(update__epochs=2, update__minibatches=2, update__learning_rate=0.02)
    update = make_policy(recipe).update(batch_of(groups), 0.0)
    assert update.metrics["update/optimizer_steps"] == 4
    assert update.metrics["update/ratio_max"] > 1.2
    assert update.metrics["update/kl_anchor"] > 1e-3
    assert 0 < update.metrics["update/clip_low_share"] < 1
    assert 0 < update.metrics["update/clip_high_share"] < 1


def test_an_anchor_is_of_the_weights_before_the_first_step():
    """In the second epoch the ratio is exp(log-prob after one step - log-prob before it)."""
    batch = batch_of(make_groups())
    twice, once = (make_policy(make_recipe(update__epochs=n, update__learning_rate=3e-3)) for n in (2, 1))
    before = once.score(batch)
    given = torch.tensor([a for row in once.update(batch, 0.0).advantages for a in row])
    forwarded = (given != 0)[batch.step.layout.sequence]
    ratio = (once.score(batch) - before).exp()[forwarded]
    metrics = twice.update(batch, 0.0).metrics
    assert metrics["update/ratio_max"] == pytest.approx(float(ratio.max()), rel=1e-5)
    assert metrics["update/ratio_mean"] == pytest.approx(float((1 + ratio.mean()) / 2), rel=1e-5)


def test_the_samplers_anchor_carries_the_mismatch():
    """With the sampler's log-probs of -1 the ratio is exp(policy + 1), of all rollouts as an entropy term has it."""
    batch = batch_of(make_groups())
    policy = make_policy(make_recipe(objective__anchor="rollout", objective__entropy=1e-9))
    wanted = (policy.score(batch) + 1.0).exp()
    metrics = policy.update(batch, 0.0).metrics
    assert metrics["update/ratio_max"] == pytest.approx(float(wanted.max()), rel=1e-5)
    assert metrics["update/ratio_mean"] == pytest.approx(float(wanted.mean()), rel=1e-5)


def test_a_recomputed_anchor_tells_the_mismatch_of_the_engine():
    """The metrics compare the anchor with the sampler's log-probs, which are -1 here."""
    groups = make_groups()
    for anchor in ("live", "recompute"):
        policy = make_policy(make_recipe(objective__anchor=anchor, objective__entropy=1e-9))  # all are forwarded
        gap = (policy.score(batch_of(groups)) + 1.0).abs()
        metrics = policy.update(batch_of(groups), 0.0).metrics
        assert metrics["mismatch/logprob_abs_mean"] == pytest.approx(float(gap.mean()), rel=1e-5)
        assert metrics["mismatch/logprob_abs_max"] == pytest.approx(float(gap.max()), rel=1e-5)


def test_gradients_in_bfloat16_point_where_float32_does():
    groups = make_groups(sizes=(5, 5))
    exact, narrow = (update_gradient(make_policy(make_recipe(model__compute_dtype=d)), groups) for d in PRECISIONS)
    assert 1e-4 < relative(narrow, exact) < 0.05
