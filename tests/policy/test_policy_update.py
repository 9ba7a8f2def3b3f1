"""An update: what moves the weights, what must not, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from policy_helpers import (
    batch_of,
    make_groups,
    make_policy,
    make_recipe,
    relative,
    rollout_of,
    update_gradient,
    verdict,
    weights_of,
    with_sampler,
)
from tiny import tiny_model

from assay.policy.batch import pack
from assay.recipe.load import load_recipe
from assay.recipe.presets import PRESETS
from assay.recipe.schema import Recipe, RewardPart, RewardRecipe
from assay.records import Group, Prompt, Verdict
from assay.track.glossary import lookup


def moments(policy) -> list[torch.Tensor]:
    """All tensors of the optimizer."""
    return [value for state in policy._optimizer.state_dict()["state"].values() for value in state.values()]


def test_the_learner_raises_what_was_rewarded():
    """Log-probs of the better rollout rise, those of the worse fall."""
    (group,) = make_groups(sizes=(2,), rewards=(0.0, 1.0))
    policy, batch = make_policy(make_recipe(update__learning_rate=3e-3)), batch_of([group])
    before = policy.score(batch)
    update = policy.update(batch, 0.0)
    change = (policy.score(batch) - before).split([len(r) for r in group.rollouts])
    assert change[0].sum() < 0 < change[1].sum()
    assert update.finite
    assert update.advantages == ((pytest.approx(-(0.5**0.5), abs=1e-4), pytest.approx(0.5**0.5, abs=1e-4)),)


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_makes_an_update(name):
    base = {"preset": name, "model": {"compute_dtype": "float32"}, "reward": {"parts": [{"verifier": "number"}]}}
    recipe = load_recipe(base, check=False).recipe
    groups = with_sampler(make_groups(sizes=(4, 4, 4, 4)), tiny_model())
    needs_reference = recipe.objective.kl.coefficient > 0
    policy = make_policy(recipe, reference=tiny_model() if needs_reference else None)
    before = weights_of(policy.model)
    update = policy.update(pack(groups, recipe.reward), recipe.objective.kl.coefficient)
    assert update.finite
    assert update.metrics["update/optimizer_steps"] == recipe.update.epochs * recipe.update.minibatches
    assert not torch.equal(weights_of(policy.model), before)
    assert ("update/kl_reference" in update.metrics) == needs_reference
    assert all(lookup(metric) for metric in update.metrics)  # each has an entry in the glossary


def test_two_reward_parts_are_normalised_apart():
    """GDPO: a part's own scale does not count, so a large but rare part does not drown the other."""
    reward = RewardRecipe(
        parts=[RewardPart(verifier="number", name="right"), RewardPart(verifier="length", name="short", weight=1.0)]
    )
    (plain,) = make_groups(sizes=(4,))
    parts = [(0.0, 100.0), (1.0, 0.0), (1.0, 100.0), (0.0, 0.0)]

    def update(scale: float) -> tuple[float, ...]:
        verdicts = tuple(Verdict(a + scale * b, "scored", {"right": a, "short": scale * b}) for a, b in parts)
        recipe = make_recipe(objective__estimator="gdpo").model_copy(update={"reward": reward})
        made = make_policy(recipe).update(pack([replace(plain, verdicts=verdicts)], reward), 0.0)
        assert made.finite
        return made.advantages[0]

    first, second = update(1.0), update(0.01)
    assert first == pytest.approx(second, abs=1e-3)
    assert first[0] == pytest.approx(first[1], abs=1e-3)
    assert first[2] > first[0] > first[3]


def test_an_invalid_rollout_might_as_well_not_be_there():
    groups = make_groups()
    stranger = rollout_of(groups[0].prompt, 9, ("policy", [70, 71, 72]))
    broken = replace(
        groups[0],
        rollouts=(groups[0].rollouts[0], stranger, *groups[0].rollouts[1:]),
        verdicts=(groups[0].verdicts[0], verdict(None), *groups[0].verdicts[1:]),
    )
    for keys in ({}, {"objective__anchor": "recompute"}, {"objective__aggregation": "sequence"}):
        recipe = make_recipe(**keys)
        with_it, without = (update_gradient(make_policy(recipe), [first, *groups[1:]]) for first in (broken, groups[0]))
        assert relative(with_it, without) < 1e-6
    assert make_policy(make_recipe()).update(batch_of([broken]), 0.0).advantages[0][1] == 0.0


def test_a_group_with_one_valid_rollout_is_counted_and_moves_nothing():
    groups = make_groups(sizes=(3, 3))
    lone = replace(groups[1], verdicts=(verdict(1.0), verdict(None), verdict(None)))
    metrics = make_policy(make_recipe()).update(batch_of([groups[0], lone]), 0.0).metrics
    assert metrics["update/lone_groups"] == 1
    assert metrics["update/optimizer_steps"] == 1


def test_forced_tokens_are_read_and_not_learned():
    """They condition what follows; their own log-prob is in no gradient and in no denominator."""
    prompt = Prompt("p", (), "", (4, 5, 6))
    policy_only = make_groups(sizes=(2,))

    def group(forced: list[int]) -> Group:
        rollouts = (
            rollout_of(prompt, 0, ("policy", [10, 11]), ("forced", forced), ("policy", [12])),
            rollout_of(prompt, 1, ("policy", [13, 14])),
        )
        return Group(prompt, rollouts, (verdict(0.0), verdict(1.0)))

    model = tiny_model("gpt2").double()
    batch = batch_of([group([20, 21])])
    update = make_policy(make_recipe(), model).update(batch, 0.0)
    assert update.metrics["update/tokens_counted"] == 5

    def gradient(wrt: list[int]) -> torch.Tensor:
        return update_gradient(make_policy(make_recipe(), tiny_model("gpt2").double()), [group(wrt), *policy_only])

    # By hand: -sum A log p over the five policy tokens (and the other group's) over the number of them all.
    hand = tiny_model("gpt2").double()
    advantages = make_policy(make_recipe(), tiny_model()).update(batch_of([group([20, 21]), *policy_only]), 0.0)
    total, counted = torch.zeros((), dtype=torch.float64), 0
    for g, row in zip([group([20, 21]), *policy_only], advantages.advantages, strict=True):
        for rollout, a in zip(g.rollouts, row, strict=True):
            ids = torch.tensor([*g.prompt.token_ids, *rollout.token_ids])
            logs = torch.log_softmax(hand(input_ids=ids[None]).logits[0], -1)
            for t, trained in enumerate(rollout.trainable, start=len(g.prompt.token_ids)):
                if trained:
                    total, counted = total - a * logs[t - 1, ids[t]], counted + 1
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(total / counted, list(hand.parameters()))])
    assert relative(gradient([20, 21]), wanted) < 1e-6  # advantages are float32
    assert relative(gradient([30, 31]), wanted) > 1e-3, "what follows them does depend on them"


@pytest.mark.parametrize(
    "keys",
    [{}, {"objective__mask_truncated": True}, {"objective__correction__kind": "mask"}, {"update__minibatches": 2}],
)
def test_where_nothing_counts_nothing_moves(keys):
    """No step, no decay, no momentum: weights, moments and counts stay bit for bit."""
    recipe = make_recipe(update__weight_decay=0.1, **keys)
    policy = make_policy(recipe)
    good = with_sampler(make_groups(seed=4), policy.model)
    policy.update(batch_of([_all_stopped(g) for g in good]), 0.0)
    weights, state, steps = weights_of(policy.model), [m.clone() for m in moments(policy)], policy.optimizer_steps
    assert steps > 0
    update = policy.update(batch_of([_nothing_left(g, keys) for g in make_groups()]), 0.0)
    assert torch.equal(weights_of(policy.model), weights)
    assert all(torch.equal(a, b) for a, b in zip(moments(policy), state, strict=True))
    assert policy.optimizer_steps == steps
    assert update.finite
    assert update.metrics["update/optimizer_steps"] == update.metrics["update/tokens_counted"] == 0
    assert "update/grad_norm" not in update.metrics


def _all_stopped(group: Group) -> Group:
    return replace(group, rollouts=tuple(replace(r, finish="stop") for r in group.rollouts))


def _nothing_left(group: Group, keys: dict) -> Group:
    """A group of which the recipe counts no token."""
    if "objective__mask_truncated" in keys:
        return replace(group, rollouts=tuple(replace(r, finish="length") for r in group.rollouts))
    if "objective__correction__kind" in keys:  # the sampler's log-probs are -1, the model's near -4.5: all are masked
        return group
    return replace(group, verdicts=tuple(verdict(None) for _ in group.rollouts))


def test_equal_rewards_still_step_with_a_gradient_of_zero():
    """Counting tokens without advantage: the moments decay as the definition of the step has it."""
    policy = make_policy(make_recipe())
    policy.update(batch_of(make_groups()), 0.0)
    steps, state = policy.optimizer_steps, [m.clone() for m in moments(policy)]
    flat_groups = [replace(g, verdicts=tuple(verdict(1.0) for _ in g.rollouts)) for g in make_groups(seed=2)]
    update = policy.update(batch_of(flat_groups), 0.0)
    assert policy.optimizer_steps == steps + 1
    assert update.metrics["update/grad_norm"] == 0.0
    assert update.metrics["update/loss"] == 0.0
    assert update.metrics["update/tokens_forwarded"] == 0
    assert not all(torch.equal(a, b) for a, b in zip(moments(policy), state, strict=True))
    assert policy.has_signal(batch_of([*flat_groups, *make_groups()])) == [False] * 3 + [True] * 3


def test_a_step_that_is_not_finite_is_left_out():
    policy = make_policy(make_recipe(update__minibatches=2))
    policy.update(batch_of(make_groups()), 0.0)
    with torch.no_grad():
        policy.model.model.norm.weight[3] = torch.nan
    weights, steps = weights_of(policy.model), policy.optimizer_steps
    state = [m.clone() for m in moments(policy)]
    update = policy.update(batch_of(make_groups()), 0.0)
    assert not update.finite
    assert update.metrics["update/skipped_steps"] == 2
    assert update.metrics["update/optimizer_steps"] == 0
    assert policy.optimizer_steps == steps
    assert torch.equal(weights_of(policy.model).nan_to_num(7.0), weights.nan_to_num(7.0))
    assert all(torch.equal(a, b) for a, b in zip(moments(policy), state, strict=True))


def test_a_gradient_that_overflows_under_a_finite_loss_is_left_out():
    policy = make_policy(make_recipe())
    (before,) = [weights_of(policy.model)]
    policy.model.model.norm.weight.register_hook(lambda gradient: gradient * torch.inf)
    update = policy.update(batch_of(make_groups()), 0.0)
    assert not update.finite
    assert torch.equal(weights_of(policy.model), before)


def test_the_step_after_a_skipped_one_is_as_if_it_had_not_been():
    """The gradient that was not finite leaves no trace in the next."""
    groups = make_groups()
    recipe = make_recipe(update__max_grad_norm=1.0)
    plain, hurt = make_policy(recipe), make_policy(recipe)
    good = hurt.model.model.norm.weight.detach().clone()
    with torch.no_grad():
        hurt.model.model.norm.weight[0] = torch.inf
    assert not hurt.update(batch_of(groups), 0.0).finite
    with torch.no_grad():
        hurt.model.model.norm.weight.copy_(good)
    for policy in (plain, hurt):
        assert policy.update(batch_of(groups), 0.0).finite
    assert torch.equal(weights_of(plain.model), weights_of(hurt.model))


def test_masters_stay_float32_under_bfloat16_products():
    policy = make_policy(make_recipe(model__compute_dtype="bfloat16"))
    before = weights_of(policy.model)
    policy.score(batch_of(make_groups()))
    assert torch.equal(weights_of(policy.model), before)
    policy.update(batch_of(make_groups()), 0.0)
    for parameter in policy.model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
    assert all(m.dtype == torch.float32 for m in moments(policy))
    tiny_steps = (weights_of(policy.model) - before).abs()
    assert 0 < tiny_steps[tiny_steps > 0].min() < 1e-3


def test_a_small_rate_is_not_rounded_away():
    """1e-6 of a weight near 0.1 is lost in bfloat16 masters and kept in float32 ones."""
    kept, lost = (
        make_policy(
            make_recipe(update__learning_rate=1e-6, model__dtype=dtype, model__compute_dtype="bfloat16"),
            tiny_model(dtype=getattr(torch, dtype)),
        )
        for dtype in ("float32", "bfloat16")
    )
    changed = []
    for policy in (kept, lost):
        before = weights_of(policy.model)
        policy.update(batch_of(make_groups()), 0.0)
        changed.append(float((weights_of(policy.model) != before).float().mean()))
    assert changed[0] > 0.9
    assert changed[1] < 0.2


def test_an_update_leaves_the_model_in_evaluation_mode_and_its_config_alone():
    for checkpointing in (False, True):
        model = tiny_model("gpt2", resid_pdrop=0.4, attn_pdrop=0.3, embd_pdrop=0.2)
        config = model.config.to_dict()
        policy = make_policy(make_recipe(model__gradient_checkpointing=checkpointing), model.train())
        first = policy.score(batch_of(make_groups()))
        assert torch.equal(policy.score(batch_of(make_groups())), first)
        metrics = policy.update(batch_of(make_groups()), 0.0).metrics
        assert metrics["update/optimizer_steps"] == 1
        assert not any(module.training for module in model.modules())
        assert model.config.to_dict() == config


def test_precision_left_to_the_machine_is_decided():
    recipe = Recipe()
    assert recipe.model.compute_dtype == "auto"
    assert make_policy(recipe).recipe.model.compute_dtype in ("float32", "bfloat16")


def test_scores_of_some_sequences_leave_the_others_unknown():
    policy, batch = make_policy(make_recipe()), batch_of(make_groups())
    every, some = policy.score(batch), policy.score(batch, [1, 4])
    asked = torch.isin(batch.step.layout.sequence, torch.tensor([1, 4]))
    assert torch.equal(some.isfinite(), asked)
    torch.testing.assert_close(some[asked], every[asked])
    assert policy.score(batch, []).isnan().all()


def test_the_reference_is_a_model_of_its_own_without_adapters():
    """KL of the policy to a reference with other weights, by hand; and 0 to itself at the start."""
    groups, keys = make_groups(), {"objective__kl__coefficient": 0.1, "objective__kl__estimator": "k1"}
    policy = make_policy(make_recipe(**keys), reference=tiny_model("llama", seed=9))
    batch = batch_of(groups)
    ours, theirs = policy.score(batch), make_policy(make_recipe(), tiny_model("llama", seed=9)).score(batch)
    metrics = policy.update(batch, 0.1).metrics
    assert metrics["update/kl_reference"] == pytest.approx(float((ours - theirs).mean()), abs=1e-5)
    same = make_policy(make_recipe(**keys), reference=tiny_model())
    assert same.update(batch, 0.1).metrics["update/kl_reference"] == 0.0
    assert same.update(batch, 0.1).metrics["update/kl_reference"] != 0.0, "the reference must not move along"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_is_forwarded_only_where_attention_cannot_be_ragged(attention):
    groups = make_groups(sizes=(2, 6), longest=11)
    lengths = [len(g.prompt.token_ids) + sum(len(r) for r in g.rollouts) for g in groups]
    updates = []
    for budget in (10 * max(lengths), max(lengths)):
        model = tiny_model()
        model.set_attn_implementation(attention)
        policy = make_policy(make_recipe(update__tokens_per_microbatch=budget), model)
        updates.append(policy.update(batch_of(groups), 0.0).metrics)
    together, apart = updates
    forwarded = sum(lengths) if attention == "sdpa" else 2 * max(lengths)
    assert together["update/tokens_forwarded"] == forwarded
    assert together["update/padding_share"] == pytest.approx(1 - sum(lengths) / forwarded)
    assert apart["update/padding_share"] == 0, "a micro-batch for each tree"
