"""AdamW's groups, the schedule's exact numbers, clipping."""

from __future__ import annotations

import math

import pytest
import torch
from policy_helpers import batch_of, make_groups, make_policy, make_recipe, weights_of
from tiny import tiny_model
from torch import nn

from assay.policy.optimizer import clip_gradients, learning_rate_factor, make_optimizer
from assay.recipe.schema import UpdateRecipe

HALF = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("keys", "total", "factors"),
    [
        ({}, 4, [1, 1, 1, 1, 1]),
        ({"warmup_steps": 4}, 8, [0.25, 0.5, 0.75, 1, 1, 1]),
        ({"schedule": "linear"}, 4, [1, 0.75, 0.5, 0.25, 0, 0]),
        ({"schedule": "linear", "min_ratio": 0.2}, 4, [1, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ({"schedule": "linear", "warmup_steps": 2}, 6, [0.5, 1, 1, 0.75, 0.5, 0.25, 0]),
        ({"schedule": "cosine"}, 4, [1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2, 0]),
        ({"schedule": "cosine", "min_ratio": 0.5, "warmup_steps": 1}, 3, [1, 1, 0.75, 0.5]),
        ({"schedule": "cosine", "warmup_steps": 3}, 2, [1 / 3, 2 / 3, 1, 1]),
    ],
)
def test_factors_of_the_schedule(keys, total, factors):
    factor = learning_rate_factor(UpdateRecipe(**keys), total)
    assert [factor(k) for k in range(len(factors))] == pytest.approx(factors, abs=1e-12)


def test_a_run_counts_optimizer_steps_and_walks_its_schedule():
    """Two epochs of two mini-batches in three steps: twelve optimizer steps, the rate of the last one reported."""
    recipe = make_recipe(
        update__epochs=2, update__minibatches=2, update__schedule="linear", update__warmup_steps=2,
        update__learning_rate=0.01,
    )  # fmt: skip
    policy = make_policy(recipe, total_steps=3)
    rates = [
        policy.update(batch_of(make_groups(step, sizes=(2, 2))), 0.0).metrics["update/learning_rate"]
        for step in range(3)
    ]
    assert policy.optimizer_steps == 12
    assert rates == pytest.approx([0.01 * (1 - 1 / 10), 0.01 * (1 - 5 / 10), 0.01 * (1 - 9 / 10)])


def test_the_rate_is_what_moves_the_weights():
    """AdamW's first step moves each weight that has a gradient by the learning rate."""
    recipe = make_recipe(update__warmup_steps=4, update__learning_rate=0.01)
    policy = make_policy(recipe)
    before = weights_of(policy.model)
    policy.update(batch_of(make_groups()), 0.0)
    assert float((weights_of(policy.model) - before).abs().max()) == pytest.approx(0.01 / 4, rel=1e-3)


def test_only_matrices_decay():
    model = tiny_model("qwen2")
    optimizer = make_optimizer(model.parameters(), UpdateRecipe(weight_decay=0.3, beta1=0.8, beta2=0.7, adam_eps=1e-5))
    for group in optimizer.param_groups:
        assert group["betas"] == (0.8, 0.7)
        assert group["eps"] == 1e-5
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.3 if parameter.ndim >= 2 else 0.0)
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))


def test_frozen_parameters_are_left_out():
    frozen, free = nn.Parameter(torch.ones(2, 2), requires_grad=False), nn.Parameter(torch.ones(2, 2))
    (group,) = make_optimizer([frozen, free], UpdateRecipe()).param_groups
    assert len(group["params"]) == 1
    assert group["params"][0] is free


@pytest.mark.parametrize(("limit", "length"), [(1.0, 1.0), (20.0, 13.0), (None, 13.0)])
def test_gradients_are_scaled_by_their_global_norm(limit, length):
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
    assert float(clip_gradients(parameters, limit)) == pytest.approx(13.0)
    both = torch.cat([p.grad for p in parameters if p.grad is not None])
    assert float(both.norm()) == pytest.approx(length, rel=1e-5)
    torch.testing.assert_close(both / both.norm(), torch.tensor([3.0, 4.0, 12.0]) / 13)
