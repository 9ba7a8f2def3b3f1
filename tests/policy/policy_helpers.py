"""Made-up groups, policies on tiny models, and the plain way to a gradient: one sequence, one forward."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from tiny import CHARACTERS, SPECIAL, tiny_model
from torch import Tensor

from assay.objective import objective
from assay.policy.batch import Batch, pack
from assay.policy.policy import Policy
from assay.recipe.schema import Recipe
from assay.records import Group, Prompt, Rollout, Segment, SegmentKind, Verdict

CPU = torch.device("cpu")
VOCABULARY = len(SPECIAL) + len(CHARACTERS)
SAMPLER_GAPS = (-1.2, -0.4, -0.1, 0.05, 0.3, 1.1)
"""Anchor less sampler, at some distance from every edge that a correction has here."""


def make_recipe(**keys: Any) -> Recipe:
    """A recipe in float32 without gradient clipping; ``update__epochs=2`` is ``update.epochs: 2``."""
    values: dict[str, dict[str, Any]] = {
        "model": {"dtype": "float32", "compute_dtype": "float32"},
        "update": {"max_grad_norm": None, "learning_rate": 1e-3},
        "objective": {"kl": {}, "correction": {}},
    }
    for path, value in keys.items():
        section, *between, last = path.split("__")
        place = values.setdefault(section, {})
        for name in between:
            place = place.setdefault(name, {})
        place[last] = value
    return Recipe.model_validate(values)


def make_policy(recipe: Recipe, model: Any = None, total_steps: int = 10, reference: Any = None) -> Policy:
    """A policy on ``model``, absent a tiny llama."""
    return Policy(recipe, tiny_model("llama") if model is None else model, CPU, total_steps, reference)


def rollout_of(
    prompt: Prompt, index: int, *segments: tuple[SegmentKind, Sequence[int]], finish: Any = "stop"
) -> Rollout:
    """A rollout of (kind, tokens) segments whose policy tokens have log-prob -1."""
    made = tuple(
        Segment(kind, tuple(ids), (-1.0,) * len(ids), (0,) * len(ids))
        if kind == "policy"
        else Segment(kind, tuple(ids))
        for kind, ids in segments
    )
    return Rollout(prompt.id, index, made, finish, f"{prompt.id}/{index}")


def verdict(reward: float | None) -> Verdict:
    return Verdict(reward, "scored" if reward is not None else "verifier_error", parts={"number": reward})


def make_groups(
    seed: int = 0, sizes: Sequence[int] = (4, 3, 2), longest: int = 12, rewards: Sequence[float] = (0.0, 0.3, 1.0)
) -> list[Group]:
    """Groups of random tokens; the first two rollouts of each have the least and the greatest reward."""
    rng = random.Random(seed)
    groups = []
    for g, size in enumerate(sizes):
        ids = tuple(rng.randrange(4, VOCABULARY) for _ in range(rng.randint(1, longest)))
        prompt = Prompt(f"p{seed}.{g}", (), "", ids)
        rollouts = []
        for i in range(size):
            tokens = [rng.randrange(4, VOCABULARY) for _ in range(rng.randint(1, longest))]
            rollouts.append(rollout_of(prompt, i, ("policy", tokens), finish=rng.choice(["stop", "length"])))
        given = [min(rewards), max(rewards), *(rng.choice(rewards) for _ in range(size))][:size]
        groups.append(Group(prompt, tuple(rollouts), tuple(verdict(r) for r in given), admission=g))
    return groups


def begun_alike(groups: Sequence[Group], beginning: Sequence[int]) -> list[Group]:
    """The groups with prompts that all begin with the same tokens."""
    prompts = [replace(g.prompt, token_ids=(*beginning, *g.prompt.token_ids)) for g in groups]
    return [replace(g, prompt=prompt) for g, prompt in zip(groups, prompts, strict=True)]


def batch_of(groups: Sequence[Group]) -> Batch:
    return pack(groups, Recipe().reward)


def with_sampler(
    groups: Sequence[Group], model: Any, seed: int = 0, gaps: Sequence[float] = SAMPLER_GAPS
) -> list[Group]:
    """The groups as if sampled by an engine whose log-probs are off the model's by one of ``gaps``."""
    rng = random.Random(seed)
    logprobs = iter(plain_logprobs(model, batch_of(groups))[0].tolist())

    def sampled(segment: Segment) -> Segment:
        found = [next(logprobs) for _ in segment.token_ids]
        noisy = tuple(p - rng.choice(gaps) for p in found)
        return replace(segment, sampler_logprobs=noisy) if segment.kind == "policy" else segment

    return [
        replace(g, rollouts=tuple(replace(r, segments=tuple(map(sampled, r.segments))) for r in g.rollouts))
        for g in groups
    ]


def plain_logprobs(model: Any, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies (N,) by the model's own forward of one whole sequence after the other."""
    found, entropies = [], []
    group_of = batch.step.layout.group.tolist()
    for s, response in enumerate(batch.responses):
        prompt = batch.prompts[group_of[s]]
        logits = model(input_ids=torch.cat([prompt, response])[None], use_cache=False).logits[0]
        logs = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, -1)
        found.append(logs.gather(1, response[:, None]).squeeze(1))
        entropies.append(-(logs.exp() * logs).sum(-1))
    return torch.cat(found), torch.cat(entropies)


def plain_gradient(
    model: Any, groups: Sequence[Group], recipe: Recipe, kl_coefficient: float = 0.0, ref: Tensor | None = None
) -> Tensor:
    """The flat gradient of the whole step's loss over all sequences at once, skipped ones included."""
    batch, settings = batch_of(groups), recipe.objective
    step = batch.step
    logprobs, entropy = plain_logprobs(model, batch, recipe.rollout.temperature)
    kind = objective.needs_anchor(settings, recipe.update.epochs, recipe.update.minibatches)
    anchor = {"live": None, "recompute": logprobs.detach(), "rollout": step.sampler_logprobs}[kind]
    advantages = objective.advantages(step, settings, anchor, ref, kl_coefficient).advantages
    plan = objective.plan(step, settings, advantages, anchor)
    weights = objective.step_weights(plan, step.layout, settings, recipe.rollout.max_tokens).weights
    output = objective.loss(
        settings,
        logprobs,
        step.layout,
        advantages=advantages,
        correction=plan.correction,
        weights=weights,
        counts=plan.counts,
        anchor_logprobs=anchor,
        ref_logprobs=ref,
        entropy=entropy,
        kl_coef=kl_coefficient,
    )
    return flat(torch.autograd.grad(output.loss, list(model.parameters())))


def update_gradient(policy: Policy, groups: Sequence[Group], kl_coefficient: float = 0.0) -> Tensor:
    """The flat gradient that the policy's only optimizer step of an update saw, unclipped."""
    update = policy.update(batch_of(groups), kl_coefficient)
    assert update.metrics["update/optimizer_steps"] == 1
    return flat([p.grad for p in policy.model.parameters() if p.requires_grad])


def flat(tensors: Sequence[Tensor | None]) -> Tensor:
    """All of them in one float64 vector."""
    return torch.cat([t.detach().double().flatten() for t in tensors if t is not None])


def weights_of(model: Any) -> Tensor:
    return flat(list(model.parameters()))


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Norm of the difference over the norm of the second."""
    return float((ours - theirs).norm() / theirs.norm())
