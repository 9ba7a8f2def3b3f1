"""The numbers of a mismatch are their definitions, and what a correction leaves is what its weights do not cover."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import draw

from assay.objective.layout import Layout
from assay.objective.mismatch import bin_names, effective_sample_share, gap, lag_names, mismatch
from assay.objective.objective import plan
from assay.recipe.schema import CorrectionRecipe, ObjectiveRecipe

SEEDS = st.integers(0, 10**6)
ALL_BINS = {f"mismatch/{level}_weight/{name}" for level in ("token", "sequence") for name in bin_names()}


def naive(anchor: list[float], sampler: list[float]) -> dict[str, float]:
    """The same numbers of pairs of log-probs, one after the other."""
    pairs = list(zip(anchor, sampler, strict=True))
    x = [a - s for a, s in pairs]
    p, q = [math.exp(a) for a in anchor], [math.exp(s) for s in sampler]
    deviations = [(a - fmean(p), b - fmean(q)) for a, b in zip(p, q, strict=True)]
    found = {
        "logprob_abs_mean": fmean(map(abs, x)),
        "logprob_abs_max": max(map(abs, x)),
        "prob_abs_mean": fmean(abs(a - b) for a, b in zip(p, q, strict=True)),
        "prob_abs_max": max(abs(a - b) for a, b in zip(p, q, strict=True)),
        "kl": fmean(math.exp(d) - d - 1 for d in x),
        "kl_k1": fmean(-d for d in x),
        "kl_reverse": fmean(d * math.exp(d) - math.exp(d) + 1 for d in x),
        "kl_reverse_k1": fmean(d * math.exp(d) for d in x),
        "perplexity_ratio": math.exp(-fmean(anchor)) / math.exp(-fmean(sampler)),
    }
    spread = math.sqrt(sum(a * a for a, _ in deviations) * sum(b * b for _, b in deviations))
    if spread > 1e-12:
        found["prob_correlation"] = sum(a * b for a, b in deviations) / spread
    return found


@settings(deadline=None, max_examples=60)
@given(
    seed=SEEDS,
    kind=st.sampled_from(["none", "truncate", "mask"]),
    level=st.sampled_from(["token", "sequence"]),
    reject=st.sampled_from([None, 1.2]),
)
def test_every_number_is_its_definition_before_and_after_correction(seed, kind, level, reject):
    case = draw(seed)
    correction = CorrectionRecipe(kind=kind, level=level, reject_high=reject)
    found = plan(case.step, ObjectiveRecipe(correction=correction), torch.ones_like(case.anchor), case.anchor)
    numbers = found.tally.values()
    anchor, sampler = case.anchor, case.step.sampler_logprobs

    def chosen(prefix: str) -> dict[str, float]:
        return {k.removeprefix(prefix): v for k, v in numbers.items() if k.startswith(prefix)}

    known = case.step.tokens
    if bool(known.any()):
        wanted = naive(anchor[known].tolist(), sampler[known].tolist())
        uncorrected = chosen("mismatch/")
        assert {k: uncorrected.get(k) for k in wanted} == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    if kind == "none" and reject is None:
        assert not chosen("mismatch/corrected/")
    elif bool(found.counts.any()):
        layout, counts = case.step.layout, found.counts
        weight = found.correction.clamp(min=1e-30).log()
        if level == "sequence":
            weight = weight / layout.count_by_sequence(counts).clamp(min=1)[layout.sequence]
        left = naive(anchor[counts].tolist(), (sampler + weight)[counts].tolist())
        corrected = chosen("mismatch/corrected/")
        assert {k: corrected.get(k) for k in left} == pytest.approx(left, rel=1e-6, abs=1e-9)


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS)
def test_token_weights_that_no_cap_touches_leave_no_mismatch(seed: int):
    case = draw(seed)
    chosen = ObjectiveRecipe(correction=CorrectionRecipe(kind="truncate", high=1e6))
    numbers = plan(case.step, chosen, torch.ones_like(case.anchor), case.anchor).tally.values()
    for name in ("logprob_abs_max", "prob_abs_max", "kl", "kl_reverse"):
        assert numbers.get(f"mismatch/corrected/{name}", 0.0) == pytest.approx(0.0, abs=1e-12)
    assert numbers.get("mismatch/corrected/perplexity_ratio", 1.0) == pytest.approx(1.0)


@settings(deadline=None, max_examples=20)
@given(seed=SEEDS)
def test_estimates_of_both_kl_agree_with_the_sums_over_the_vocabulary(seed: int):
    """Tokens drawn from q many times: every estimate comes to the KL that the two distributions have."""
    generator = torch.Generator().manual_seed(seed)
    q, p = (torch.log_softmax(torch.randn(6, generator=generator, dtype=torch.float64) * 0.4, -1) for _ in range(2))
    drawn = torch.multinomial(q.exp(), 40_000, replacement=True, generator=generator)
    numbers = gap(p[drawn], q[drawn], torch.ones_like(drawn, dtype=torch.bool), "m").values()
    forward, backward = float((q.exp() * (q - p)).sum()), float((p.exp() * (p - q)).sum())
    for name, wanted in (("kl", forward), ("kl_k1", forward), ("kl_reverse", backward), ("kl_reverse_k1", backward)):
        assert numbers[f"m/{name}"] == pytest.approx(wanted, abs=0.03 + 0.05 * wanted), name


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS)
def test_histograms_hold_every_weight_once(seed: int):
    case = draw(seed)
    known, layout = case.step.tokens, case.step.layout
    numbers = mismatch(case.anchor, case.step.sampler_logprobs, known, layout).values()
    if not bool(known.any()):
        assert numbers == {}
        return
    assert numbers.keys() >= ALL_BINS
    logs = torch.where(known, case.anchor - case.step.sampler_logprobs, 0.0)
    sums = layout.sum_by_sequence(logs, known)[layout.count_by_sequence(known) > 0]
    for level, values in (("token", logs[known].tolist()), ("sequence", sums.tolist())):
        shares = [numbers[f"mismatch/{level}_weight/{name}"] for name in bin_names()]
        assert sum(shares) == pytest.approx(1.0)
        assert shares[0] == pytest.approx(fmean(v <= -2 for v in values))
        assert shares[4] == pytest.approx(fmean(-0.01 < v <= 0.01 for v in values))
        assert shares[6] == pytest.approx(fmean(0.1 < v <= 0.5 for v in values))


def test_staleness_splits_the_mismatch_by_lag():
    """Tokens of lag 0, 1 and 4 with log-weights 0, .2 and -.5; a forced token is in nothing."""
    lags = torch.tensor([0, 1, 1, 4, 4, 0])
    x = torch.tensor([0.0, 0.2, 0.2, -0.5, 0.3, torch.nan])
    layout = Layout.of_lengths([3, 3], [0, 0])
    anchor, known = torch.full((6,), -1.0), torch.tensor([True] * 5 + [False])
    numbers = mismatch(anchor, anchor - x, known, layout, lags).values()
    split = {name: value for name, value in numbers.items() if name.startswith("mismatch/lag/")}
    k3 = [math.exp(d) - d - 1 for d in (0.0, 0.2, -0.5, 0.3)]
    weights = [math.exp(-0.5), math.exp(0.3)]
    assert split == pytest.approx(
        {
            "mismatch/lag/0/share": 0.2,
            "mismatch/lag/0/kl": 0.0,
            "mismatch/lag/0/ess_token": 1.0,
            "mismatch/lag/1/share": 0.4,
            "mismatch/lag/1/kl": k3[1],
            "mismatch/lag/1/ess_token": 1.0,
            "mismatch/lag/3-4/share": 0.4,
            "mismatch/lag/3-4/kl": (k3[2] + k3[3]) / 2,
            "mismatch/lag/3-4/ess_token": sum(weights) ** 2 / (2 * sum(w * w for w in weights)),
        },
        abs=1e-6,
    )
    fresh = mismatch(anchor, anchor - x, known, layout, torch.zeros_like(lags)).values()
    assert not any(name.startswith("mismatch/lag/") for name in fresh)
    assert [lag_names()[i] for i in (0, 3, 6)] == ["0", "3-4", "17+"]


def test_probabilities_that_do_not_vary_have_no_correlation():
    same = torch.full((3,), -1.0)
    numbers = gap(same, torch.tensor([-1.0, -2.0, -0.5]), torch.ones(3, dtype=torch.bool), "m").values()
    assert "m/prob_correlation" not in numbers
    assert numbers["m/prob_abs_max"] == pytest.approx(math.exp(-0.5) - math.exp(-1))


@settings(deadline=None, max_examples=30)
@given(
    seed=SEEDS,
    kind=st.sampled_from(["truncate", "mask"]),
    level=st.sampled_from(["token", "sequence"]),
)
def test_an_engines_broken_logprob_is_in_no_number(seed: int, kind: str, level: str):
    """Rejected, it leaves the mismatch before and after correction too."""
    case = draw(seed)
    broken = replace(case.step, sampler_logprobs=torch.full_like(case.anchor, -math.inf))
    chosen = ObjectiveRecipe(correction=CorrectionRecipe(kind=kind, level=level))
    numbers = plan(broken, chosen, torch.ones_like(case.anchor), case.anchor).tally.values()
    assert not any(name.startswith("mismatch/") for name in numbers)
    assert numbers.get("update/rejected_share", 1.0) == 1.0


def test_sample_sizes_are_of_untruncated_weights_at_any_scale():
    assert effective_sample_share(torch.tensor([500.0, 500.0])).item() == 1.0
    assert effective_sample_share(torch.tensor([0.0, 800.0, -900.0])).item() == pytest.approx(1 / 3)
    assert effective_sample_share(torch.zeros(0)).item() == 0.0
