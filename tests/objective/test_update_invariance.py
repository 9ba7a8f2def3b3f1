"""The update is the same however a step is split, ordered, padded or dealt to ranks, and whatever excluded
ones hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import MAX_TOKENS, Case, Split, draw, split, update, whole
from torch.testing import assert_close

from assay.objective.aggregation import AGGREGATIONS, Totals
from assay.objective.loss import LOSSES
from assay.objective.objective import advantages, plan, step_totals, step_weights
from assay.recipe.schema import CorrectionRecipe, KlRecipe, ObjectiveRecipe

CORRECTIONS = {
    "none": {},
    "truncate_token": {"kind": "truncate", "level": "token"},
    "truncate_sequence": {"kind": "truncate", "level": "sequence", "high": 1.5},
    "mask_token": {"kind": "mask", "level": "token"},
    "mask_sequence": {"kind": "mask", "level": "sequence", "low": 0.3, "high": 3.0},
    "reject": {"reject_low": 0.8, "reject_high": 1.25},
    "truncate_and_reject": {"kind": "truncate", "reject_high": 1.25},
}
SEEDS = st.integers(0, 10**6)
few = settings(deadline=None, max_examples=3)
more = settings(deadline=None, max_examples=40)


def recipe(seed: int, **fields) -> ObjectiveRecipe:
    """An objective whose other terms depend on the seed."""
    extra = {
        "estimator": ("grpo", "rloo", "opo", "reinforce++")[seed % 4],
        "ratio": ("token", "sequence")[seed // 2 % 2],
        "dual_clip": (None, 3.0)[seed // 3 % 2],
        "mask_truncated": seed % 3 == 0,
        "entropy": (0.0, 0.01)[seed // 5 % 2],
        "kl": KlRecipe(
            coefficient=(0.0, 0.05)[seed // 7 % 2],
            estimator=("k3", "k3+", "k1", "abs+")[seed // 11 % 4],
            where=("loss", "reward")[seed // 13 % 2],
        ),
    }
    return ObjectiveRecipe(**(extra | fields))


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
@pytest.mark.parametrize("loss", sorted(LOSSES))
@few
@given(seed=SEEDS, cut=SEEDS, live=st.booleans())
def test_the_gradient_ignores_the_split(loss: str, aggregation: str, correction: str, seed: int, cut: int, live: bool):
    case = draw(seed)
    chosen = recipe(seed, loss=loss, aggregation=aggregation, correction=CorrectionRecipe(**CORRECTIONS[correction]))
    live = live and correction == "none" and chosen.kl.where == "loss"
    at_once = update(case, chosen, whole(case), live=live, skip=False)
    in_parts = update(case, chosen, split(case, cut), live=live)
    assert bool(at_once.gradient.isfinite().all())
    assert_close(in_parts.gradient, at_once.gradient, atol=1e-12, rtol=1e-9)
    assert in_parts.totals.tokens == at_once.totals.tokens
    if in_parts.totals.active:
        assert in_parts.loss == pytest.approx(at_once.loss, abs=1e-10)


@more
@given(seed=SEEDS, cut=SEEDS)
def test_metrics_ignore_the_split(seed: int, cut: int):
    """Never a mean of means: every metric of parts is that of the whole."""
    case, chosen = draw(seed), recipe(seed)
    at_once = update(case, chosen, whole(case)).tally.values()
    in_parts = update(case, chosen, split(case, cut, ranks=3)).tally.values()
    assert in_parts.keys() == at_once.keys()
    assert in_parts == pytest.approx(at_once, abs=1e-9)


@more
@given(seed=SEEDS)
def test_skipping_is_not_excluding(seed: int):
    """Rollouts with advantage 0 are not forwarded: gradient, loss, clip shares and totals are as if they
    were."""
    case = draw(seed)
    chosen = recipe(seed, entropy=0.0, kl=KlRecipe())
    skipped, forwarded = update(case, chosen, whole(case)), update(case, chosen, whole(case), skip=False)
    assert_close(skipped.gradient, forwarded.gradient, atol=1e-15, rtol=0)
    assert skipped.totals.tokens == int(skipped.plan.counts.sum())
    ours, theirs = skipped.tally.values(), forwarded.tally.values()
    for name in ("update/loss", "update/policy_loss", "update/clip_low_share", "update/clip_high_share"):
        assert ours.get(name) == pytest.approx(theirs.get(name), abs=1e-12)


@more
@given(seed=SEEDS)
def test_terms_on_every_token_forward_every_rollout(seed: int):
    case = draw(seed)
    for chosen in (
        recipe(seed, entropy=0.01, kl=KlRecipe()),
        recipe(seed, kl=KlRecipe(coefficient=0.1), entropy=0.0),
    ):
        found = update(case, chosen, whole(case))
        counting = case.step.layout.count_by_sequence(found.plan.counts) > 0
        assert torch.equal(found.plan.active, counting)


@pytest.mark.parametrize("estimator", ["grpo", "opo", "passk", "gdpo", "remax", "reinforce++", "gae"])
@settings(deadline=None, max_examples=15)
@given(seed=SEEDS)
def test_invalid_rollouts_change_nothing(estimator: str, seed: int):
    """They hold NaN everywhere in the case; without them every number is the same."""
    case = draw(seed)
    kept = case.step.valid.nonzero().squeeze(1).tolist()
    chosen = recipe(seed, estimator=estimator, correction=CorrectionRecipe(kind="mask"))
    with_them, without = (
        update(case, chosen, whole(case), skip=False),
        update(case.keep(kept), chosen, whole(case.keep(kept))),
    )
    _, places = case.step.layout.select(torch.tensor(kept, dtype=torch.long))
    assert_close(with_them.advantages[places], without.advantages, atol=1e-12, rtol=1e-12)
    assert_close(with_them.gradient[places], without.gradient, atol=1e-12, rtol=1e-9)
    others = torch.ones_like(with_them.gradient, dtype=torch.bool).index_fill(0, places, False)
    assert not bool(with_them.gradient[others].any())
    assert with_them.totals.tokens == without.totals.tokens
    assert with_them.totals.sequences == without.totals.sequences
    assert with_them.totals.groups == without.totals.groups


@more
@given(seed=SEEDS)
def test_a_rejected_rollout_still_moves_its_baseline(seed: int):
    """Its tokens leave numerator and denominator; its reward is real and stays in its siblings'
    advantages."""
    case = draw(seed)
    chosen = recipe(seed, estimator="grpo", kl=KlRecipe(), mask_truncated=False)
    rejecting = chosen.model_copy(update={"correction": CorrectionRecipe(reject_low=0.9, reject_high=1.1)})
    plain, strict = update(case, chosen, whole(case)), update(case, rejecting, whole(case))
    assert torch.equal(plain.advantages, strict.advantages)
    gone = plain.plan.counts & ~strict.plan.counts
    assert strict.totals.tokens == plain.totals.tokens - int(gone.sum())
    assert not bool(strict.gradient[gone].any())
    rejected = case.step.layout.count_by_sequence(gone) > 0
    assert not bool((rejected & (case.step.layout.count_by_sequence(strict.plan.counts) > 0)).any())
    assert strict.totals.sequences == plain.totals.sequences - int(rejected.sum())
    share = strict.tally.values().get("update/rejected_share", 0.0)
    assert share == pytest.approx(int(gone.sum()) / max(plain.totals.tokens, 1))


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
@settings(deadline=None, max_examples=15)
@given(seed=SEEDS)
def test_rejected_tokens_leave_numerator_and_denominator(aggregation: str, seed: int):
    """A step whose masked tokens were forced, and its others weighed as they were, has the same gradient and totals."""
    case = draw(seed)
    chosen = recipe(seed, aggregation=aggregation, estimator="grpo", kl=KlRecipe(), entropy=0.0)
    masking = chosen.model_copy(update={"correction": CorrectionRecipe(kind="mask", low=0.6, high=1.2)})
    weighing = chosen.model_copy(update={"correction": CorrectionRecipe(kind="truncate", high=1.2)})
    masked = update(case, masking, whole(case))
    rejected = (
        case.step.tokens
        & ~masked.plan.counts
        & ~(case.step.truncated[case.step.layout.sequence] & chosen.mask_truncated)
    )
    forced = replace(case, step=replace(case.step, trainable=case.step.trainable & ~rejected))
    without = update(forced, weighing, whole(forced))
    assert_close(masked.gradient, without.gradient, atol=1e-12, rtol=1e-9)
    assert masked.totals.tokens == without.totals.tokens
    assert masked.totals.sequences == without.totals.sequences
    assert torch.equal(masked.totals.group_tokens, without.totals.group_tokens)


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
@settings(deadline=None, max_examples=10)
@given(seed=SEEDS)
def test_truncated_answers_leave_numerator_and_denominator(aggregation: str, seed: int):
    case = draw(seed)
    chosen = recipe(seed, aggregation=aggregation, mask_truncated=True, estimator="grpo", kl=KlRecipe())
    masked = update(case, chosen, whole(case))
    cut = case.step.truncated[case.step.layout.sequence]
    assert not bool((masked.plan.counts & cut).any())
    assert not bool(masked.gradient[cut].any())
    kept = replace(case.step, valid=case.step.valid & ~case.step.truncated)
    untouched = plan(kept, chosen, masked.advantages)
    weights = step_weights(masked.plan, case.step.layout, chosen, MAX_TOKENS).weights
    assert_close(weights, step_weights(untouched, case.step.layout, chosen, MAX_TOKENS).weights, atol=0, rtol=0)
    before = advantages(case.step, chosen.model_copy(update={"mask_truncated": False}))
    assert torch.equal(before.advantages, masked.advantages)


@more
@given(seed=SEEDS, cut=SEEDS)
def test_minibatches_are_weighed_by_their_own_totals(seed: int, cut: int):
    """Two mini-batches of whole rollouts: weights are 0 outside, and those of a step made of the mini-batch
    alone."""
    case, chosen = draw(seed), recipe(seed, aggregation=sorted(AGGREGATIONS)[seed % 5])
    layout, walked = case.step.layout, split(case, cut)
    planned = update(case, chosen, whole(case)).plan
    for micros in walked.ranks:
        hand = torch.tensor([s for micro in micros for s in micro], dtype=torch.long)
        found = step_weights(planned, layout, chosen, MAX_TOKENS, hand)
        inside = torch.isin(layout.sequence, hand)
        assert not bool(found.weights[~inside].any())
        assert found.totals.tokens == int((planned.counts & inside).sum())
        assert step_totals(planned, layout, hand).tokens == found.totals.tokens
        if chosen.aggregation in ("token", "sequence", "prompt") and found.totals.tokens:
            assert float(found.weights.sum()) == pytest.approx(1.0)


def test_nothing_left_is_no_step():
    """Weights are 0, the totals say so, and an empty rank adds nothing to another's denominators."""
    case = draw(3)
    nobody = replace(case.step, valid=torch.zeros_like(case.step.valid))
    for aggregation in AGGREGATIONS:
        chosen = ObjectiveRecipe(aggregation=aggregation)
        found = update(Case(nobody, case.anchor, case.policy, case.ref), chosen, whole(case), skip=False)
        assert found.totals.empty
        assert found.totals.active == found.totals.sequences == found.totals.groups == 0
        assert not bool(found.gradient.any())
        assert found.loss == 0.0
        weighed = step_weights(found.plan, case.step.layout, chosen, MAX_TOKENS)
        assert not bool(weighed.weights.any())
        mine = update(case, chosen, whole(case)).totals
        both = mine + found.totals
        assert (both.tokens, both.sequences, both.groups) == (mine.tokens, mine.sequences, mine.groups)


def test_a_rank_with_nothing_is_harmless():
    case = draw(11)
    everything = list(range(case.step.layout.n_sequences))
    for aggregation in AGGREGATIONS:
        chosen = ObjectiveRecipe(aggregation=aggregation)
        lonely = update(case, chosen, Split([[everything], [[]]]))
        assert_close(lonely.gradient, update(case, chosen, whole(case)).gradient, atol=0, rtol=0)


def test_the_constant_is_configured_and_never_the_longest_answer():
    """Dr. GRPO: making one answer longer leaves the others' weights; empty rollouts are in no denominator."""
    case = draw(5)
    planned = update(case, ObjectiveRecipe(), whole(case)).plan
    chosen = ObjectiveRecipe(aggregation="constant")
    found = step_weights(planned, case.step.layout, chosen, MAX_TOKENS)
    counting = int((case.step.layout.count_by_sequence(planned.counts) > 0).sum())
    assert counting < case.step.layout.n_sequences
    assert set(found.weights[planned.counts].tolist()) == {1 / (counting * MAX_TOKENS)}
    own = step_weights(
        planned, case.step.layout, ObjectiveRecipe(aggregation="constant", constant_tokens=50), MAX_TOKENS
    )
    assert set(own.weights[planned.counts].tolist()) == {1 / (counting * 50)}


def test_totals_of_ranks_that_share_a_group():
    """``prompt`` needs a group's tokens of every rank: groups are counted once, tokens all."""
    one = Totals(3, 2, torch.tensor([3, 0]), 1)
    two = Totals(5, 2, torch.tensor([1, 4]), 2)
    assert (one + two).groups == 2
    assert (one + two).group_tokens.tolist() == [4, 4]
    assert (one + two).active == 3
