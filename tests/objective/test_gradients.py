"""Losses and their gradients against the definitions in Python loops, by finite differences with constants
frozen."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from objective_cases import MAX_TOKENS, draw, entropy_of, update, whole
from objective_naive import Rollouts, clamp, kl_values, rejected_and_weights, token_losses, token_weight
from torch.testing import assert_close

from assay.objective.aggregation import AGGREGATIONS
from assay.objective.loss import LOSSES
from assay.recipe.schema import CorrectionRecipe, KlRecipe, ObjectiveRecipe

SEEDS = st.integers(0, 10**6)
CORRECTIONS = (
    {},
    {"kind": "truncate"},
    {"kind": "truncate", "level": "sequence", "high": 1.5},
    {"kind": "mask"},
    {"kind": "mask", "level": "sequence", "low": 0.3, "high": 3.0},
    {"reject_low": 0.8, "reject_high": 1.25},
    {"kind": "mask", "reject_low": 0.7},
)


def objective(seed: int, loss: str, ratio: str) -> ObjectiveRecipe:
    return ObjectiveRecipe(
        loss=loss,
        ratio=ratio,
        estimator="reinforce++",
        clip_high=0.28,
        dual_clip=(None, 3.0)[seed % 2],
        aggregation=sorted(AGGREGATIONS)[seed % 5],
        entropy=(0.0, 0.03)[seed // 2 % 2],
        correction=CorrectionRecipe(**CORRECTIONS[seed % len(CORRECTIONS)]),
        kl=KlRecipe(coefficient=0.1, estimator=("k1", "k2", "k3", "abs", "k1+", "k2+", "k3+", "abs+")[seed % 8]),
    )


def near_a_kink(chosen: ObjectiveRecipe, gaps: dict[int, float], rollouts: Rollouts) -> bool:
    """Is a sequence ratio within 1e-3 of where its clip begins? Token ratios are drawn away from there."""
    edges = [1 - chosen.clip_low, 1 + chosen.clip_high, chosen.dual_clip or 3.0]
    means = [[gaps[t] for t in tokens if t in gaps] for tokens in rollouts.tokens]
    return any(abs(math.exp(sum(m) / len(m)) - edge) < 1e-3 for m in means if m for edge in edges)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("loss", sorted(LOSSES))
@settings(deadline=None, max_examples=30)
@given(seed=SEEDS)
def test_value_and_gradient_are_the_definitions(loss: str, ratio: str, seed: int):
    case, chosen = draw(seed), objective(seed, loss, ratio)
    found = update(case, chosen, whole(case))
    n, layout = case.step.layout.n_tokens, case.step.layout
    places = [[t for t in range(n) if layout.sequence[t] == s] for s in range(layout.n_sequences)]
    rollouts = Rollouts(places, layout.group.tolist())
    tokens = case.step.tokens.tolist()
    policy, anchor, ref = case.policy.tolist(), case.anchor.tolist(), case.ref.tolist()
    logs = {t: anchor[t] - case.step.sampler_logprobs[t].item() for t in range(n) if tokens[t]}
    rejected, factor = rejected_and_weights(logs, rollouts, chosen.correction)
    counting = [t for t in logs if t not in rejected]
    assert counting == found.plan.counts.nonzero().squeeze(1).tolist()
    assume(counting)
    weight = token_weight(counting, rollouts, chosen.aggregation, MAX_TOKENS)
    frozen = {t: policy[t] for t in counting}
    assume(not near_a_kink(chosen, {t: policy[t] - anchor[t] for t in counting}, rollouts))
    fixed = {t: anchor[t] for t in counting}
    given_advantages = dict(enumerate(found.advantages.tolist()))

    def total(theta: dict[int, float]) -> float:
        policy_terms = token_losses(theta, frozen, fixed, given_advantages, rollouts, chosen)
        divergence = kl_values(chosen.kl.estimator, theta, frozen, dict(enumerate(ref)))
        nats = {t: entropy_of(torch.tensor(theta[t], dtype=torch.float64)).item() for t in counting}
        return sum(
            weight[t] * (factor[t] * policy_terms[t] + chosen.kl.coefficient * divergence[t] - chosen.entropy * nats[t])
            for t in counting
        )

    assert found.loss == pytest.approx(total(frozen), abs=1e-10)
    step = 1e-6
    for t in counting:
        up, down = frozen | {t: frozen[t] + step}, frozen | {t: frozen[t] - step}
        slope = (total(up) - total(down)) / (2 * step)
        assert found.gradient[t].item() == pytest.approx(slope, abs=2e-6, rel=1e-5)
    outside = torch.ones(n, dtype=torch.bool)
    outside[counting] = False
    assert not bool(found.gradient[outside].any())


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("loss", ["clip", "cispo", "sapo", "geo_mean"])
@settings(deadline=None, max_examples=15)
@given(seed=SEEDS)
def test_at_ratio_one_the_gradient_is_reinforces(loss: str, ratio: str, seed: int):
    """With the live anchor every loss is REINFORCE to first order, and its ratio exactly 1."""
    case = draw(seed)
    plain = update(case, ObjectiveRecipe(loss="reinforce", tau_neg=1.0), whole(case), live=True)
    found = update(case, ObjectiveRecipe(loss=loss, ratio=ratio, tau_neg=1.0), whole(case), live=True)
    assert_close(found.gradient, plain.gradient, atol=1e-13, rtol=1e-12)
    numbers = found.tally.values()
    if found.totals.active:
        assert numbers["update/ratio_mean"] == numbers["update/ratio_max"] == 1.0
        assert numbers["update/kl_anchor"] == 0.0
        assert numbers["update/clip_low_share"] == numbers["update/clip_high_share"] == 0.0


@settings(deadline=None, max_examples=25)
@given(seed=SEEDS)
def test_clip_shares_count_where_the_clip_takes_effect(seed: int):
    """A clipped token's gradient is 0 in the token-ratio clip loss, and the shares count just those."""
    case = draw(seed)
    chosen = ObjectiveRecipe(estimator="reinforce++", dual_clip=2.0)
    found = update(case, chosen, whole(case), skip=False)
    numbers = found.tally.values()
    assume(found.totals.tokens)
    counts, a = found.plan.counts, found.advantages
    still = counts & (found.gradient == 0) & (a != 0)
    named = ("update/clip_low_share", "update/clip_high_share", "update/dual_clip_share")
    assert sum(numbers[name] for name in named) * found.totals.tokens == pytest.approx(int(still.sum()))
    gap = (case.policy - case.anchor).exp()
    assert numbers[named[0]] * found.totals.tokens == pytest.approx(int((counts & (a < 0) & (gap < 0.8)).sum()))
    assert numbers[named[1]] * found.totals.tokens == pytest.approx(int((counts & (a > 0) & (gap > 1.2)).sum()))
    assert numbers[named[2]] * found.totals.tokens == pytest.approx(int((counts & (a < 0) & (gap > 2)).sum()))


def test_the_naive_clamp_is_a_clamp():
    assert [clamp(x, -1, 2) for x in (-3, 0, 5)] == [-1, 0, 2]
