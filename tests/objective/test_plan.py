"""What counts, what it weighs, what is forwarded; whose log-probs are needed; what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import MAX_TOKENS, draw, update, whole
from objective_naive import Rollouts, rejected_and_weights

from assay.objective.correction import CORRECTIONS
from assay.objective.layout import Layout
from assay.objective.objective import (
    advantages,
    anchor_needs_all,
    loss,
    needs_all,
    needs_anchor,
    plan,
    step_weights,
)
from assay.objective.step import Step
from assay.objective.tally import Tally
from assay.recipe.schema import CorrectionRecipe, KlRecipe, ObjectiveRecipe
from assay.track.glossary import lookup

SEEDS = st.integers(0, 10**6)
NAN = math.nan

TRUNCATE = ObjectiveRecipe(correction=CorrectionRecipe(kind="truncate"))
REJECT = ObjectiveRecipe(correction=CorrectionRecipe(reject_high=2.0))
KL_REWARD = ObjectiveRecipe(kl=KlRecipe(coefficient=0.1, where="reward"))
KL_LOSS = ObjectiveRecipe(kl=KlRecipe(coefficient=0.1))
OFF = ObjectiveRecipe(kl=KlRecipe(where="reward"))


@pytest.mark.parametrize(
    ("chosen", "epochs", "minibatches", "anchor"),
    [
        (ObjectiveRecipe(), 1, 1, "live"),
        (ObjectiveRecipe(entropy=0.1, mask_truncated=True), 1, 1, "live"),
        (KL_LOSS, 1, 1, "live"),
        (OFF, 1, 1, "live"),
        (ObjectiveRecipe(), 2, 1, "recompute"),
        (ObjectiveRecipe(), 1, 2, "recompute"),
        (TRUNCATE, 1, 1, "recompute"),
        (REJECT, 1, 1, "recompute"),
        (KL_REWARD, 1, 1, "recompute"),
        (ObjectiveRecipe(anchor="live"), 1, 1, "live"),
        (ObjectiveRecipe(anchor="rollout"), 4, 1, "rollout"),
        (ObjectiveRecipe(anchor="recompute"), 1, 1, "recompute"),
    ],
)
def test_auto_is_live_where_that_is_exact(chosen: ObjectiveRecipe, epochs: int, minibatches: int, anchor: str):
    assert needs_anchor(chosen, epochs, minibatches) == anchor


def test_who_must_be_forwarded():
    assert [anchor_needs_all(c) for c in (ObjectiveRecipe(), OFF, KL_LOSS)] == [False] * 3
    assert [anchor_needs_all(c) for c in (TRUNCATE, REJECT, KL_REWARD)] == [True] * 3
    assert [needs_all(c) for c in (ObjectiveRecipe(), TRUNCATE, KL_REWARD, OFF)] == [False] * 4
    assert [needs_all(c) for c in (KL_LOSS, ObjectiveRecipe(entropy=-0.01))] == [True] * 2


@settings(deadline=None, max_examples=50)
@given(
    seed=SEEDS,
    kind=st.sampled_from(sorted(CORRECTIONS)),
    level=st.sampled_from(["token", "sequence"]),
    low=st.sampled_from([None, 0.8]),
    high=st.sampled_from([None, 1.2]),
)
def test_corrections_and_rejection_are_their_definitions(seed, kind, level, low, high):
    case = draw(seed)
    correction = CorrectionRecipe(kind=kind, level=level, reject_low=low, reject_high=high)
    chosen = ObjectiveRecipe(correction=correction)
    found = plan(case.step, chosen, torch.ones_like(case.anchor), case.anchor)
    layout, tokens = case.step.layout, case.step.tokens.tolist()
    gaps = (case.anchor - case.step.sampler_logprobs).tolist()
    logs = {t: gaps[t] for t in range(layout.n_tokens) if tokens[t]}
    places = [[t for t in range(layout.n_tokens) if layout.sequence[t] == s] for s in range(layout.n_sequences)]
    rejected, weights = rejected_and_weights(logs, Rollouts(places, layout.group.tolist()), correction)
    assert set(found.counts.nonzero().squeeze(1).tolist()) == set(logs) - rejected
    expected = [weights.get(t, 0.0) for t in range(layout.n_tokens)]
    assert found.correction.tolist() == pytest.approx(expected, rel=1e-12)
    numbers = found.tally.values()
    if logs:
        assert numbers["update/rejected_share"] == pytest.approx(len(rejected) / len(logs))
        assert numbers["mismatch/logprob_abs_mean"] == pytest.approx(sum(map(abs, logs.values())) / len(logs))
        assert numbers["mismatch/logprob_abs_max"] == pytest.approx(max(map(abs, logs.values())))
        k3 = sum(math.exp(x) - x - 1 for x in logs.values()) / len(logs)
        assert numbers["mismatch/kl"] == pytest.approx(k3)
        per_rollout = [math.exp(sum(logs[t] for t in p if t in logs)) for p in places if any(t in logs for t in p)]
        for name, w in (("sequence", per_rollout), ("token", [math.exp(x) for x in logs.values()])):
            share = sum(w) ** 2 / (len(w) * sum(x * x for x in w))
            assert numbers[f"update/ess_{name}"] == pytest.approx(share)


def test_weights_are_clamped_at_twenty():
    case = draw(2)
    far = case.step.sampler_logprobs - 50
    sequence = CorrectionRecipe(kind="truncate", level="sequence", high=1e12)
    found = plan(
        replace(case.step, sampler_logprobs=far),
        ObjectiveRecipe(correction=sequence),
        case.anchor,
        case.anchor,
    )
    assert found.correction[found.counts].tolist() == pytest.approx([math.exp(20)] * int(found.counts.sum()))


def small(sampler: list[float]) -> Step:
    """Two rollouts of two tokens."""
    return Step(
        Layout.of_lengths([2, 2], [0, 0]),
        torch.ones(4, dtype=torch.bool),
        torch.tensor([True, True]),
        torch.tensor([0.0, 1.0]),
        torch.tensor([False, True]),
        torch.tensor(sampler),
    )


@pytest.mark.parametrize("bad", [NAN, -math.inf])
def test_an_engines_broken_logprob_is_rejected_where_it_would_be_used(bad: float):
    """It leaves numerator and denominator under a correction or the rollout anchor, and is nothing
    elsewhere."""
    step, anchor = small([-1.0, bad, -1.0, -1.0]), torch.full((4,), -1.0)
    given_advantages = advantages(step, ObjectiveRecipe()).advantages
    for correction in (
        {"kind": "truncate"},
        {"kind": "mask"},
        {"reject_low": 0.1},
        {"kind": "truncate", "level": "sequence"},
    ):
        chosen = ObjectiveRecipe(correction=CorrectionRecipe(**correction))
        found = plan(step, chosen, given_advantages, anchor)
        assert found.counts.tolist() == [True, False, True, True]
        assert found.correction.tolist() == [1.0, 0.0, 1.0, 1.0]
        assert found.tally.values()["update/rejected_share"] == 0.25
    bypass = plan(step, ObjectiveRecipe(anchor="rollout"), given_advantages, step.sampler_logprobs)
    assert bypass.counts.tolist() == [True, False, True, True]
    assert "mismatch/kl" not in bypass.tally.values()
    plain = plan(step, ObjectiveRecipe(), given_advantages, anchor)
    assert plain.counts.tolist() == [True] * 4
    assert plain.tally.values()["mismatch/logprob_abs_max"] == 0.0


def test_a_broken_policy_is_not_hidden():
    """An anchor of NaN stays NaN in the weights: the loss says so, and the step is skipped by whoever
    optimises."""
    step = small([-1.0] * 4)
    anchor = torch.tensor([-1.0, NAN, -1.0, -1.0])
    for kind in ("truncate", "mask"):
        chosen = ObjectiveRecipe(correction=CorrectionRecipe(kind=kind))
        found = plan(step, chosen, torch.ones(4), anchor)
        assert found.counts.tolist() == [True] * 4
        assert found.correction.isnan().tolist() == [False, True, False, False]


def test_masked_truncation_is_not_rejection():
    chosen = ObjectiveRecipe(mask_truncated=True)
    found = plan(small([-1.0] * 4), chosen, torch.ones(4))
    assert found.counts.tolist() == [True, True, False, False]
    assert found.active.tolist() == [True, False]
    assert found.tally.values() == {"update/rejected_share": 0.0, "update/advantage_abs_mean": 1.0}


def test_advantages_weights_and_corrections_are_constants():
    case = draw(8)
    anchor = case.anchor.clone().requires_grad_()
    chosen = ObjectiveRecipe(correction=CorrectionRecipe(kind="truncate"), kl=KlRecipe(coefficient=0.1, where="reward"))
    given_advantages = advantages(case.step, chosen, anchor, case.ref, 0.1).advantages
    found = plan(case.step, chosen, given_advantages, anchor)
    assert not given_advantages.requires_grad
    assert not found.correction.requires_grad
    assert not step_weights(found, case.step.layout, chosen, MAX_TOKENS).weights.requires_grad


def one_loss(chosen: ObjectiveRecipe, logprobs: torch.Tensor, **more):
    """The loss of two rollouts of two tokens."""
    n = len(logprobs)
    return loss(
        chosen,
        logprobs,
        Layout.of_lengths([2, n - 2], [0, 0]),
        advantages=torch.tensor([1.0, -1.0] * (n // 2)),
        correction=torch.ones(n),
        weights=torch.full((n,), 1 / n),
        counts=torch.ones(n, dtype=torch.bool),
        **more,
    )


def test_terms_without_their_input_are_errors():
    logprobs = torch.zeros(4)
    with pytest.raises(ValueError, match="needs ref_logprobs"):
        one_loss(KL_LOSS, logprobs, kl_coef=0.1)
    with pytest.raises(ValueError, match="needs entropy"):
        one_loss(ObjectiveRecipe(entropy=0.1), logprobs)
    with pytest.raises(ValueError, match="needs anchor_logprobs"):
        plan(small([0.0] * 4), TRUNCATE, torch.ones(4))
    assert "update/kl_reference" not in one_loss(KL_REWARD, logprobs, kl_coef=0.1).tally.sums


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(dtype: torch.dtype):
    """Log-probs of a half type give the loss of the same numbers in float32, and a gradient of their own
    type."""
    numbers = torch.tensor([-0.3, -1.7, -2.2, -0.9], dtype=dtype)
    half = numbers.clone().requires_grad_()
    anchor = torch.tensor([-0.5, -1.5, -2.0, -1.0], dtype=dtype)
    ours = one_loss(KL_LOSS, half, anchor_logprobs=anchor, ref_logprobs=anchor, kl_coef=0.1)
    exact = one_loss(KL_LOSS, numbers.float(), anchor_logprobs=anchor.float(), ref_logprobs=anchor.float(), kl_coef=0.1)
    assert ours.loss.dtype == torch.float32
    assert ours.loss.item() == exact.loss.item()
    ours.loss.backward()
    assert half.grad.dtype == dtype


def test_extreme_log_ratios_stay_finite():
    """Beyond ±20 the ratio stands still and its gradient is 0."""
    logprobs = torch.tensor([-0.1, -90.0, -90.0, -0.1], requires_grad=True)
    anchor = torch.tensor([-90.0, -0.1, -0.1, -90.0])
    for ratio in ("token", "sequence"):
        for name in ("clip", "cispo", "sapo", "geo_mean", "reinforce"):
            logprobs.grad = None
            output = one_loss(ObjectiveRecipe(loss=name, ratio=ratio), logprobs, anchor_logprobs=anchor)
            output.loss.backward()
            assert bool(output.loss.isfinite()), name
            assert bool(logprobs.grad.isfinite().all()), name
    output = one_loss(ObjectiveRecipe(), logprobs, anchor_logprobs=anchor)
    assert output.tally.values()["update/ratio_max"] == pytest.approx(math.exp(20))


def test_every_metric_is_in_the_glossary():
    names: set[str] = set()
    for chosen in (KL_LOSS, KL_REWARD, TRUNCATE):
        case = draw(1)
        names |= update(case, chosen, whole(case)).tally.values().keys()
    assert names >= {
        "update/loss",
        "update/kl_reference",
        "update/ess_token",
        "mismatch/kl",
        "mismatch/corrected/kl",
        "update/entropy",
    }
    assert all(lookup(name) for name in names)


def test_an_empty_micro_batch_gives_a_loss_of_zero():
    output = loss(
        ObjectiveRecipe(),
        torch.zeros(0, requires_grad=True),
        Layout.of_lengths([], [], n_groups=2),
        advantages=torch.zeros(0),
        correction=torch.zeros(0),
        weights=torch.zeros(0),
        counts=torch.zeros(0, dtype=torch.bool),
    )
    output.loss.backward()
    assert output.loss.item() == 0.0
    assert output.tally.values() == {}
    assert Tally.of({}).values() == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": torch.zeros(3)}, r"rewards has the shape \(3,\)"),
        ({"trainable": torch.ones(5, dtype=torch.bool)}, r"trainable has the shape \(5,\)"),
        ({"values": torch.zeros(2)}, r"values has the shape"),
        ({"parts": torch.zeros(2, 1)}, "come together"),
        ({"parts": torch.zeros(2, 2), "part_weights": torch.ones(3)}, r"part_weights has the shape \(3,\)"),
        ({"rewards": torch.tensor([NAN, 1.0])}, "no finite number"),
        ({"layout": Layout.of_lengths([4, 0], [0, 0])}, "has no token"),
    ],
)
def test_a_step_that_disagrees_with_itself_is_refused(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        replace(small([0.0] * 4), **change)
