"""Advantages: the definitions in Python loops, the laws that estimators declare, and what the rules set to
0."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import Case, draw
from objective_naive import Rollouts, gae, gdpo, rollout_advantages, whiten
from torch import Tensor
from torch.testing import assert_close

from assay.errors import UserError
from assay.objective import advantage
from assay.objective.advantage import ESTIMATORS, Signals
from assay.objective.advantage.whitened import whiten as whiten_tokens
from assay.objective.layout import Layout
from assay.objective.objective import advantages
from assay.objective.step import Step
from assay.recipe import names
from assay.recipe.schema import KlRecipe, ObjectiveRecipe

SEEDS = st.integers(0, 10**6)
OUTCOME = ("grpo", "dr_grpo", "rloo", "opo", "passk", "remax", "reinforce++-baseline")
usual = settings(deadline=None, max_examples=30)


def rollouts_of(step: Step) -> Rollouts:
    layout = step.layout
    return Rollouts(
        [[t for t in range(layout.n_tokens) if layout.sequence[t] == s] for s in range(layout.n_sequences)],
        layout.group.tolist(),
    )


def all_trainable(step: Step) -> Step:
    """The step with no forced tokens."""
    return replace(step, trainable=torch.ones_like(step.trainable), values=torch.nan_to_num(step.values))


def to_tokens(per_rollout: dict[int, float], step: Step) -> Tensor:
    tokens = step.tokens.tolist()
    flat = [per_rollout[int(s)] if tokens[t] else 0.0 for t, s in enumerate(step.layout.sequence.tolist())]
    return torch.tensor(flat, dtype=torch.float64)


def whitened(values: Tensor, step: Step) -> Tensor:
    chosen = {t: values[t].item() for t in step.tokens.nonzero().squeeze(1).tolist()}
    out = torch.zeros_like(values)
    for t, value in whiten(chosen).items():
        out[t] = value
    return out


def make(rewards: list[list[float]], lengths: list[list[int]] | None = None, dtype=torch.float64) -> Step:
    """A step of groups of rewards; NaN is an invalid rollout; each rollout has two tokens unless told."""
    flat = [r for group in rewards for r in group]
    sizes = [n for group in lengths for n in group] if lengths else [2] * len(flat)
    group = [g for g, members in enumerate(rewards) for _ in members]
    layout = Layout.of_lengths(sizes, group)
    array = torch.tensor(flat, dtype=dtype)
    everything = torch.ones(layout.n_tokens, dtype=torch.bool)
    return Step(
        layout,
        everything,
        ~array.isnan(),
        array,
        torch.zeros(len(flat), dtype=torch.bool),
        torch.zeros(layout.n_tokens, dtype=dtype),
    )


def by_rollout(step: Step, values: Tensor) -> list[float]:
    """The advantage of each rollout's first token."""
    first = [step.layout.sequence.tolist().index(s) for s in range(step.layout.n_sequences)]
    return values[first].tolist()


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("name", OUTCOME)
@settings(deadline=None, max_examples=15)
@given(seed=SEEDS)
def test_outcome_estimators_are_their_definitions(name: str, scale: str, seed: int):
    step = draw(seed).step
    chosen = ObjectiveRecipe(estimator=name, scale=scale, eps=1e-3, min_std=0.05)
    lengths = step.layout.count_by_sequence(step.trainable).tolist()
    expected = to_tokens(
        rollout_advantages(
            rollouts_of(step),
            step.rewards.tolist(),
            step.valid.tolist(),
            lengths,
            chosen,
            step.greedy.tolist(),
        ),
        step,
    )
    if name == "reinforce++-baseline":
        expected = whitened(expected, step)
    assert_close(advantages(step, chosen).advantages, expected, atol=1e-10, rtol=1e-9)


@usual
@given(seed=SEEDS, missing=st.booleans())
def test_gdpo_is_its_definition(seed: int, missing: bool):
    step = draw(seed).step
    if missing:
        step = replace(step, parts=step.parts.clone().index_fill(0, torch.tensor([0]), torch.nan))
    chosen = ObjectiveRecipe(estimator="gdpo", min_std=0.05)
    raw = gdpo(rollouts_of(step), step.parts.tolist(), step.part_weights.tolist(), step.valid.tolist(), chosen)
    expected = whitened(to_tokens(raw, step), step)
    assert_close(advantages(step, chosen).advantages, expected, atol=1e-9, rtol=1e-9)


@usual
@given(seed=SEEDS)
def test_returns_and_gae_pass_over_tokens_that_are_not_the_policys(seed: int):
    step = draw(seed).step
    chosen = ObjectiveRecipe(estimator="gae", gamma=0.9, lam=0.8)
    raw, returns = torch.zeros(step.layout.n_tokens).double(), torch.zeros(step.layout.n_tokens).double()
    discounted, tokens = torch.zeros_like(raw), step.tokens.tolist()
    given_rewards = torch.zeros_like(raw)
    for s, places in enumerate(rollouts_of(step).tokens):
        mine = [t for t in places if tokens[t]]
        rewards = [0.0] * (len(mine) - 1) + [step.rewards[s].item()] if mine else []
        a, r = gae(rewards, [step.values[t].item() for t in mine], 0.9, 0.8)
        for i, t in enumerate(mine):
            raw[t], returns[t], given_rewards[t] = a[i], r[i], rewards[i]
            discounted[t] = 0.9 ** (len(mine) - 1 - i) * step.rewards[s].item()
    ours = advantage.gae(given_rewards, step.values, step.layout, step.tokens, 0.9, 0.8)
    assert_close(ours[0], raw, atol=1e-12, rtol=1e-12)
    assert_close(ours[1], returns, atol=1e-12, rtol=1e-12)
    assert_close(advantages(step, chosen).advantages, whitened(raw, step), atol=1e-9, rtol=1e-9)
    plus = advantages(step, ObjectiveRecipe(estimator="reinforce++", gamma=0.9)).advantages
    assert_close(plus, whitened(discounted, step), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@usual
@given(seed=SEEDS, by=st.floats(-3, 3), factor=st.floats(0.5, 4))
def test_laws(name: str, seed: int, by: float, factor: float):
    """What an estimator declares holds, and permuting rollouts permutes their advantages."""
    law, step = ESTIMATORS[name], all_trainable(draw(seed).step)
    step = replace(step, rewards=step.rewards * 1000)  # far above the 1e-8 that whitening adds to a variance
    chosen = ObjectiveRecipe(estimator=name, eps=0.0, min_std=1e-6)
    plain = advantages(step, chosen).advantages
    layout = step.layout
    if law.zero_sum == "group":
        per_rollout = layout.mean_by_sequence(plain, step.tokens)
        assert_close(layout.sum_by_group(per_rollout, step.valid), torch.zeros(layout.n_groups).double())
    elif law.zero_sum == "group_tokens":
        total = layout.sum_by_group(layout.sum_by_sequence(plain, step.tokens), step.valid)
        assert_close(total, torch.zeros(layout.n_groups).double())
    elif law.zero_sum == "batch_tokens":
        assert plain.sum().item() == pytest.approx(0, abs=1e-6)
    if law.shift_invariant:
        shift = (by * (1 + layout.group)).double()
        moved = replace(
            step, rewards=step.rewards + shift, greedy=step.greedy + shift, parts=step.parts + shift[:, None]
        )
        assert_close(advantages(moved, chosen).advantages, plain, atol=1e-6, rtol=1e-6)
    if law.scale is not None:
        larger = replace(step, rewards=step.rewards * factor, greedy=step.greedy * factor, parts=step.parts * factor)
        expected = plain if law.scale == "invariant" else plain * factor
        assert_close(advantages(larger, chosen).advantages, expected, atol=1e-5, rtol=1e-5)
    order = torch.randperm(layout.n_sequences, generator=torch.Generator().manual_seed(seed))
    case = Case(step, plain, plain, plain)
    _, places = layout.select(order)
    assert_close(advantages(case.keep(order.tolist()).step, chosen).advantages, plain[places], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ["grpo", "passk"])
@settings(deadline=None, max_examples=10)
@given(seed=SEEDS, factor=st.floats(0.5, 4))
def test_without_a_divisor_an_invariant_estimator_is_equivariant(name: str, seed: int, factor: float):
    step, chosen = draw(seed).step, ObjectiveRecipe(estimator=name, scale="none")
    larger = advantages(replace(step, rewards=step.rewards * factor), chosen).advantages
    assert_close(larger, advantages(step, chosen).advantages * factor, atol=1e-9, rtol=1e-9)


def test_the_recipe_knows_what_estimators_declare():
    """The tables of recipe/names.py, which lies beneath, say the same."""
    assert set(names.ESTIMATORS) == set(ESTIMATORS)
    for name, facts in names.ESTIMATORS.items():
        declared = ESTIMATORS[name]
        assert declared.group_baseline == facts.group_baseline
        assert declared.keys - {"kl.reward"} == facts.reads
        assert ("kl.reward" in declared.keys) == facts.token_rewards
        assert (declared.needs in ("greedy", "values")) == bool(facts.lacks)


@pytest.mark.parametrize("name", [n for n in ESTIMATORS if ESTIMATORS[n].group_baseline])
def test_a_lone_reward_is_not_an_advantage(name: str):
    """One valid rollout, or none, in a group: 0 before any whitening, and counted."""
    step = make([[1.0], [1.0, math.nan], [math.nan], [0.0, 1.0]])
    parts = torch.stack([step.rewards, step.rewards * 0.5], 1)
    step = replace(step, parts=parts, part_weights=torch.ones(2).double())
    found = advantages(step, ObjectiveRecipe(estimator=name))
    values = by_rollout(step, found.advantages)
    assert values[0] == values[1] == values[2] == values[3] == 0.0
    assert values[5] > 0
    assert found.counts["lone_groups"] == 3
    assert found.counts["no_signal_groups"] == 3
    assert found.signal.tolist() == [False, False, False, True]


def test_whitening_comes_after_the_rules():
    """Groups set to 0 enter the whitening as 0 and leave it as -mean / std: signal, where the mean isn't
    0."""
    step = make([[0.5, 0.5], [0.0, 1.0]], [[2, 2], [1, 3]])
    found = advantages(step, ObjectiveRecipe(estimator="reinforce++-baseline"))
    raw = [0.0] * 4 + [-0.5] + [0.5] * 3
    mean = sum(raw) / 8
    std = math.sqrt(sum((x - mean) ** 2 for x in raw) / 7 + 1e-8)
    assert by_rollout(step, found.advantages)[:2] == pytest.approx([-mean / std] * 2)
    assert found.signal.tolist() == [True, True]
    assert found.counts == {"lone_groups": 0, "no_signal_groups": 0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"gae", "remax", "none"}))  # "none" has no baseline
def test_equal_rewards_give_exactly_nothing(name: str, dtype: torch.dtype):
    """Three times 0.1 has not the mean 0.1 in floating point; the advantage must not be a rounding error."""
    step = make([[0.1] * 3, [0.1] * 7], [[1, 2, 3], [3, 1, 4, 1, 5, 9, 2]], dtype)
    step = replace(step, parts=step.rewards[:, None] * torch.ones(2), part_weights=torch.ones(2))
    for scale in ("group", "batch", "none"):
        found = advantages(step, ObjectiveRecipe(estimator=name, scale=scale, min_std=0.0, eps=0.0))
        assert not bool(found.advantages.any())
        assert found.counts["no_signal_groups"] == 2


@pytest.mark.parametrize("name", ["grpo", "passk"])
def test_a_tiny_std_does_not_amplify_noise(name: str):
    step = make([[1.0, 1.0 + 1e-5], [0.0, 1.0], [2.0]])
    found = advantages(step, ObjectiveRecipe(estimator=name, min_std=1e-3))
    assert by_rollout(step, found.advantages)[:2] == [0.0, 0.0]
    assert by_rollout(step, found.advantages)[3] > 0.5
    assert found.counts == {"lone_groups": 1, "flat_groups": 1, "no_signal_groups": 2}
    batch = advantages(step, ObjectiveRecipe(estimator=name, scale="batch", min_std=10.0))
    assert batch.counts["flat_groups"] == 2
    assert not bool(batch.advantages.any())
    free = advantages(step, ObjectiveRecipe(estimator=name, scale="none", min_std=10.0))
    assert "flat_groups" not in free.counts
    assert by_rollout(step, free.advantages)[1] > 0


def test_gdpo_counts_flat_parts():
    step = make([[0.0, 1.0], [1.0, 1.0]])
    parts = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.5, 0.0], [0.5, 1.0]]).double()
    step = replace(step, parts=parts, part_weights=torch.tensor([1.0, 2.0]).double())
    found = advantages(step, ObjectiveRecipe(estimator="gdpo"))
    assert found.counts["flat_parts"] == 2
    assert found.counts["lone_groups"] == 0


def test_batch_scale_of_a_lone_rollout_is_nothing():
    found = advantages(make([[3.0]]), ObjectiveRecipe(scale="batch"))
    assert not bool(found.advantages.any())
    assert found.counts["lone_groups"] == 1


def test_remax_without_a_greedy_reward_gives_nothing():
    step = replace(make([[1.0, 0.0], [1.0]]), greedy=torch.tensor([0.25, 0.25, math.nan]).double())
    found = advantages(step, ObjectiveRecipe(estimator="remax"))
    assert by_rollout(step, found.advantages) == [0.75, -0.25, 0.0]
    assert found.counts["no_greedy_rollouts"] == 1


def test_whitening_nothing_or_one_token_gives_nothing():
    values = torch.tensor([3.0, math.nan, math.nan])
    assert whiten_tokens(values, torch.zeros(3, dtype=torch.bool)).tolist() == [0.0, 0.0, 0.0]
    assert whiten_tokens(values, torch.tensor([True, False, False])).tolist() == [0.0, 0.0, 0.0]


def test_a_missing_signal_is_an_error_of_one_line():
    for name, needed in (("remax", "greedy"), ("gae", "values"), ("gdpo", "parts")):
        with pytest.raises(UserError, match=f"{name} needs {needed}"):
            advantages(make([[0.0, 1.0]]), ObjectiveRecipe(estimator=name))
    with pytest.raises(UserError, match="did you mean 'grpo'"):
        advantages(make([[0.0, 1.0]]), ObjectiveRecipe(estimator="gropo"))


def test_a_kl_in_the_reward_is_taken_from_token_rewards():
    """Per trainable token of a valid rollout; with a return to go, a token feels the costs from it on."""
    step = make([[1.0, math.nan]], [[3, 2]])
    step = replace(step, trainable=torch.tensor([True, False, True, True, True]))
    anchor = torch.tensor([-1.0, math.nan, -2.0, math.nan, math.nan]).double()
    ref = torch.tensor([-1.5, math.nan, -1.0, math.nan, math.nan]).double()
    chosen = ObjectiveRecipe(estimator="reinforce++", kl=KlRecipe(coefficient=0.1, estimator="k1", where="reward"))
    found = advantages(step, chosen, anchor, ref, kl_coef=0.1)
    to_go = {0: 1 - 0.1 * (0.5 - 1.0), 2: 1 - 0.1 * -1.0}
    expected = whiten(to_go)
    assert found.advantages.tolist() == pytest.approx([expected[0], 0, expected[2], 0, 0], abs=1e-9)
    assert found.tally.values() == {"update/kl_reference": pytest.approx(-0.25)}
    with pytest.raises(ValueError, match="anchor_logprobs and ref_logprobs"):
        advantages(step, chosen, anchor, None, kl_coef=0.1)
    assert advantages(step, chosen).tally.values() == {}


def test_a_rollout_of_forced_tokens_still_moves_its_baseline():
    step = make([[1.0, 0.0, 0.5]])
    step = replace(step, trainable=torch.tensor([True, True, True, False, False, False]))
    found = advantages(step, ObjectiveRecipe(estimator="dr_grpo"))
    assert found.advantages.tolist() == [0.5, 0.5, -0.5, 0.0, 0.0, 0.0]


def test_a_large_common_offset_costs_no_precision():
    """Rewards of 100,000 and a bit in float32: the same advantages as without the offset."""
    small = make([[0.0, 1.0, 3.0]], dtype=torch.float32)
    large = replace(small, rewards=small.rewards + 100_000)
    ours = advantages(large, ObjectiveRecipe()).advantages
    assert torch.equal(ours, advantages(small, ObjectiveRecipe()).advantages)


def test_signals_name_the_tokens_that_get_an_advantage():
    layout = Layout.of_lengths([2, 1], [0, 0])
    signals = Signals(torch.tensor([True, False]), torch.tensor([True, False, True]))
    assert signals.tokens(layout).tolist() == [True, False, False]
