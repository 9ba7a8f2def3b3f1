"""KL estimates: values, gradients, what they estimate; and the controllers."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from assay.errors import UserError
from assay.objective.kl import CONTROLLERS, ESTIMATES, KlState, kl
from assay.recipe.schema import KlRecipe


def test_estimates_are_unbiased_over_a_distribution():
    """k1 and k3 average to KL(policy, ref) exactly; so does k2's gradient to the KL's, and k3's does not."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([0.0, 0.2, 0.1, -0.9], dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    exact = (logp.exp() * (logp - ref)).sum()
    wanted = torch.autograd.grad(exact, logits, retain_graph=True)[0]
    weight = logp.exp().detach()
    for name in ("k1", "k3", "k1+", "k3+"):
        assert_close((weight * kl(name, logp, ref)).sum(), exact)
    for name in ESTIMATES:
        gradient = torch.autograd.grad((weight * kl(f"{name}+", logp, ref)).sum(), logits, retain_graph=True)[0]
        assert_close(gradient, wanted)
    gradient = torch.autograd.grad((weight * kl("k3", logp, ref)).sum(), logits, retain_graph=True)[0]
    assert (gradient - wanted).abs().max() > 0.01


@pytest.mark.parametrize("name", [*ESTIMATES, *(f"{n}+" for n in ESTIMATES)])
def test_plus_keeps_the_value_and_extremes_stay_finite(name: str):
    logp = torch.tensor([-0.1, -60.0, -2.0], requires_grad=True)
    ref = torch.tensor([-90.0, -0.1, -2.0])
    value = kl(name, logp, ref)
    assert torch.equal(value, kl(name.removesuffix("+"), logp, ref))
    value.sum().backward()
    assert bool(value.isfinite().all())
    assert bool(logp.grad.isfinite().all())
    assert value[2].item() == 0.0


def test_an_unknown_estimate():
    with pytest.raises(UserError, match="did you mean"):
        kl("k33", torch.zeros(1), torch.zeros(1))


def test_a_fixed_coefficient_stays():
    assert CONTROLLERS["fixed"](KlState(0.3), KlRecipe(), 99.0, 64) == KlState(0.3)


def test_the_adaptive_controller_follows_ziegler():
    chosen = KlRecipe(coefficient=0.2, controller="adaptive", target=0.1, horizon=1000)
    steer = CONTROLLERS["adaptive"]
    assert steer(KlState(0.2), chosen, 0.105, 100).coefficient == pytest.approx(0.2 * (1 + 0.05 * 0.1))
    assert steer(KlState(0.2), chosen, 5.0, 100).coefficient == pytest.approx(0.2 * (1 + 0.2 * 0.1))
    assert steer(KlState(0.2), chosen, -1.0, 100).coefficient == pytest.approx(0.2 * (1 - 0.2 * 0.1))
    assert steer(KlState(0.2), chosen, math.nan, 100) == KlState(0.2)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 500)), max_size=8), st.integers(0, 8))
def test_the_controller_resumes_from_json(history: list[tuple[float, int]], cut: int):
    chosen = KlRecipe(coefficient=0.2, controller="adaptive", horizon=5000)
    through, resumed = KlState(0.2), KlState(0.2)
    for i, (measured, rollouts) in enumerate(history):
        if i == cut:
            resumed = KlState(**json.loads(json.dumps(asdict(resumed))))
        through = CONTROLLERS["adaptive"](through, chosen, measured, rollouts)
        resumed = CONTROLLERS["adaptive"](resumed, chosen, measured, rollouts)
    assert through == resumed
    assert through.coefficient > 0
