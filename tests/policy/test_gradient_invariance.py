"""The gradient of a step is a function of its groups alone: not of packing, order, chunks, or what is skipped."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from policy_helpers import (
    CPU,
    batch_of,
    make_groups,
    make_policy,
    make_recipe,
    plain_gradient,
    plain_logprobs,
    relative,
    rollout_of,
    update_gradient,
    verdict,
    weights_of,
    with_sampler,
)
from tiny import tiny_model

from assay.objective.aggregation import AGGREGATIONS
from assay.objective.correction import CORRECTIONS
from assay.objective.loss import LOSSES
from assay.policy.packing import microbatches
from assay.records import Group, Prompt

PACKINGS = [
    {"update__tokens_per_microbatch": 1},
    {"update__tokens_per_microbatch": 40, "update__share_prompts": False},
    {"update__tokens_per_microbatch": 64, "update__head_chunk": 3},
    {"update__tokens_per_microbatch": 100_000, "update__share_prompts": False, "update__head_chunk": 1},
    {"update__tokens_per_microbatch": 100_000},
]
"""From one sequence at a time to all at once."""


def double(family: str = "gpt2"):
    """A family whose float64 is float64 throughout, so that what differs isn't rounding."""
    return tiny_model(family).double()


@cache
def sampled(seed: int = 1, sizes: tuple[int, ...] = (4, 3, 2)) -> tuple[Group, ...]:
    with torch.no_grad():
        return tuple(with_sampler(make_groups(seed, sizes), double(), seed))


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
@pytest.mark.parametrize("correction", sorted(CORRECTIONS))
def test_losses_aggregations_and_corrections_do_not_see_the_packing(loss, aggregation, correction):
    keys = {
        "objective__loss": loss,
        "objective__aggregation": aggregation,
        "objective__correction__kind": correction,
        "rollout__max_tokens": 12,
    }
    groups = sampled()
    wanted = plain_gradient(double(), groups, make_recipe(**keys))
    for packing in random.Random(f"{loss}{aggregation}{correction}").sample(PACKINGS, 2):
        assert relative(update_gradient(make_policy(make_recipe(**keys, **packing), double()), groups), wanted) < 1e-10


VARIANTS = {
    "sequence ratio": {"objective__ratio": "sequence", "objective__anchor": "recompute"},
    "rollout anchor": {"objective__anchor": "rollout", "objective__clip_high": 0.21},
    "dual clip": {"objective__anchor": "rollout", "objective__dual_clip": 3.0},
    "sequence weights": {"objective__correction__kind": "truncate", "objective__correction__level": "sequence"},
    "sequences rejected": {"objective__correction__reject_low": 0.8, "objective__correction__reject_high": 1.2},
    "entropy": {"objective__entropy": 0.01},
    "truncated masked": {"objective__mask_truncated": True},
    "batch scale": {"objective__scale": "batch"},
    "whitened": {"objective__estimator": "reinforce++", "objective__gamma": 0.9},
    "temperature": {"rollout__temperature": 0.6},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_do_not_see_the_packing(name):
    keys, groups = VARIANTS[name], sampled()
    wanted = plain_gradient(double(), groups, make_recipe(**keys))
    for packing in PACKINGS[1:4]:
        assert relative(update_gradient(make_policy(make_recipe(**keys, **packing), double()), groups), wanted) < 1e-10


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_a_kl_to_a_reference_does_not_see_the_packing(where):
    keys = {"objective__kl__coefficient": 0.1, "objective__kl__where": where, "objective__kl__estimator": "k3"}
    groups, reference = sampled(), tiny_model("gpt2", seed=5).double()
    with torch.no_grad():
        ref, _ = plain_logprobs(reference, batch_of(groups))
    wanted = plain_gradient(double(), groups, make_recipe(**keys), 0.07, ref)
    for packing in PACKINGS[:3]:
        policy = make_policy(make_recipe(**keys, **packing), double(), reference=reference)
        assert relative(update_gradient(policy, groups, 0.07), wanted) < 1e-10


def shuffled(groups: Sequence[Group], seed: int) -> list[Group]:
    """The same groups in another order, the rollouts within each too."""
    rng = random.Random(seed)
    found = []
    for group in rng.sample(groups, len(groups)):
        order = rng.sample(range(len(group.rollouts)), len(group.rollouts))
        found.append(
            replace(
                group,
                rollouts=tuple(group.rollouts[i] for i in order),
                verdicts=tuple(group.verdicts[i] for i in order),
            )
        )
    return found


@pytest.mark.parametrize("seed", range(3))
def test_rewards_stay_with_their_rollouts_in_any_order(seed):
    """Advantages by rollout name, and the gradient, do not change when groups and rollouts change places."""
    recipe, groups = make_recipe(objective__correction__kind="mask", update__tokens_per_microbatch=50), sampled()

    def advantages(order: Sequence[Group]) -> dict[str, float]:
        given = make_policy(recipe, double()).update(batch_of(order), 0.0).advantages
        texts = [[r.text for r in g.rollouts] for g in order]
        return {t: a for ts, row in zip(texts, given, strict=True) for t, a in zip(ts, row, strict=True)}

    other = shuffled(groups, seed)
    assert advantages(other) == pytest.approx(advantages(groups), abs=1e-6)
    ours, theirs = (update_gradient(make_policy(recipe, double()), order) for order in (other, groups))
    assert relative(ours, theirs) < 1e-6  # advantages are float32


def test_swapped_rewards_swap_advantages():
    groups = make_groups(sizes=(4,), rewards=(0.0, 1.0))
    (group,) = groups
    swapped = replace(group, verdicts=(group.verdicts[1], group.verdicts[0], *group.verdicts[2:]))
    recipe = make_recipe()
    before, after = (make_policy(recipe).update(batch_of([g]), 0.0).advantages[0] for g in (group, swapped))
    assert before[0] != before[1]
    assert after == (before[1], before[0], *before[2:])


def test_lengths_of_one_to_hundreds_keep_their_rewards():
    prompt = Prompt("p", (), "", (4, 5, 6))
    rng = random.Random(0)
    lengths = [200, 1, 2, 90, 1, 37, 150, 4]
    rollouts = tuple(
        rollout_of(prompt, i, ("policy", [rng.randrange(4, 80) for _ in range(n)])) for i, n in enumerate(lengths)
    )
    group = Group(prompt, rollouts, tuple(verdict(float(i % 3)) for i in range(len(lengths))))
    wanted = plain_gradient(double(), [group], make_recipe())
    for packing in PACKINGS:
        recipe = make_recipe(**packing)
        assert relative(update_gradient(make_policy(recipe, double()), [group]), wanted) < 1e-10


def test_what_has_no_advantage_is_not_forwarded_and_still_counts():
    groups = make_groups(sizes=(3, 3, 2))
    flat_one = replace(groups[1], verdicts=tuple(verdict(1.0) for _ in groups[1].rollouts))
    groups = [groups[0], flat_one, groups[2]]
    recipe = make_recipe(update__tokens_per_microbatch=1)  # one sequence at a time, so nothing is padded
    wanted = plain_gradient(double(), groups, recipe)
    policy = make_policy(recipe, double())
    update = policy.update(batch_of(groups), 0.0)
    batch = batch_of(groups)
    assert update.metrics["update/tokens_counted"] == batch.n_tokens
    assert update.metrics["update/sequences_skipped_share"] >= 3 / 8
    lengths = [len(g.prompt.token_ids) + len(r) for g in groups for r in g.rollouts]
    given = [a for row in update.advantages for a in row]
    assert given[3:6] == [0, 0, 0]
    forwarded = sum(length for length, a in zip(lengths, given, strict=True) if a != 0)
    assert update.metrics["update/tokens_forwarded"] == forwarded
    assert relative(update_gradient(make_policy(recipe, double()), groups), wanted) < 1e-10
    alone = update_gradient(make_policy(recipe, double()), [groups[0], groups[2]])
    assert relative(alone, wanted) > 0.1, "without the flat group the denominator would be smaller"


@pytest.mark.parametrize(
    "keys",
    [
        {"objective__correction__kind": "mask"},
        {"objective__correction__reject_low": 0.8, "objective__correction__reject_high": 1.2},
    ],
)
def test_tokens_that_are_rejected_leave_the_denominator_of_skipped_rollouts_too(keys):
    """So their anchor must be known, although no gradient flows through them."""
    groups = list(sampled(sizes=(4, 4)))
    groups[1] = replace(groups[1], verdicts=tuple(verdict(1.0) for _ in groups[1].rollouts))
    wanted = plain_gradient(double(), groups, make_recipe(**keys))
    policy = make_policy(make_recipe(**keys), double())
    update = policy.update(batch_of(groups), 0.0)
    skipped = sum(len(r) for r in groups[1].rollouts)
    first = (
        make_policy(make_recipe(**keys), double()).update(batch_of(groups[:1]), 0.0).metrics["update/tokens_counted"]
    )
    assert 0 < update.metrics["update/tokens_counted"] - first < skipped
    assert relative(update_gradient(make_policy(make_recipe(**keys), double()), groups), wanted) < 1e-10


@pytest.mark.parametrize(
    ("keys", "kl"), [({"objective__entropy": 0.01}, 0.0), ({"objective__kl__coefficient": 0.1}, 0.1)]
)
def test_a_term_that_all_rollouts_have_forwards_all(keys, kl):
    groups = [replace(g, verdicts=tuple(verdict(1.0) for _ in g.rollouts)) for g in make_groups()]
    policy = make_policy(make_recipe(**keys), double(), reference=tiny_model("gpt2", seed=5).double())
    gradient = update_gradient(policy, groups, kl)
    assert gradient.norm() > 0
    assert policy.update(batch_of(groups), kl).metrics["update/sequences_skipped_share"] == 0


def test_several_optimizer_steps_end_in_the_same_weights_however_packed():
    """Two epochs of two mini-batches. A large Adam epsilon keeps the map from gradient to step smooth."""
    groups = sampled(sizes=(3, 3, 2, 2))

    def trained(**packing) -> torch.Tensor:
        recipe = make_recipe(update__epochs=2, update__minibatches=2, update__adam_eps=1e-2, **packing)
        policy = make_policy(recipe, double())
        assert policy.update(batch_of(groups), 0.0).metrics["update/optimizer_steps"] == 4
        return weights_of(policy.model)

    start = weights_of(double())
    wanted = trained() - start
    for packing in PACKINGS[:4]:
        assert relative(trained(**packing) - start, wanted) < 1e-9


def test_gradient_checkpointing_gives_the_same_gradients():
    groups = make_groups()
    for family, lora in (("llama", False), ("gemma3", False), ("gpt2", False), ("llama", True)):
        plain, again = (
            update_gradient(_checkpointed(family, lora, checkpointing), groups) for checkpointing in (False, True)
        )
        torch.testing.assert_close(again, plain, rtol=0, atol=0)


def _checkpointed(family: str, lora: bool, checkpointing: bool):
    from assay.policy.model import add_lora

    recipe = make_recipe(model__gradient_checkpointing=checkpointing, **({"model__lora": {"rank": 4}} if lora else {}))
    model = tiny_model(family, attention_dropout=0.5)
    if recipe.model.lora is not None:
        model = add_lora(model, recipe.model.lora, seed=3)
    return make_policy(recipe, model)


def test_checkpointing_keeps_no_activations_of_a_layer():
    """What the forward pass saves for the backward shrinks by more than half."""

    def saved(checkpointing: bool) -> int:
        policy = _checkpointed("llama", False, checkpointing)
        batch = batch_of(make_groups())
        (micro,) = microbatches(batch, range(batch.n_sequences), 4096, True)
        kept: set[tuple[int, int]] = set()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: kept.add((t.untyped_storage().data_ptr(), t.untyped_storage().nbytes())) or t, lambda t: t
        ):
            policy._scorer.logprobs(micro)
        weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
        return sum(size for place, size in kept if place not in weights)

    assert saved(True) < 0.5 * saved(False)


def test_arrays_follow_the_micro_batch_to_its_device():
    """On the CPU alone: what is made for the model is made on the scorer's device, what is the batch's stays."""
    batch = batch_of(make_groups())
    (micro,) = microbatches(batch, range(batch.n_sequences), 4096, True)
    moved = micro.to(torch.device("meta"))
    assert moved.tokens.device == CPU
    places = {moved.input_ids, moved.positions, moved.tree, moved.branch, moved.predicts, moved.targets}
    assert {t.device.type for t in places} == {"meta"}
    assert moved.related().device.type == "meta"
