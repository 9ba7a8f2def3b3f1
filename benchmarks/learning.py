"""A training step's two halves for the benchmarks that look at Assay alone: answers of one length, and their update.

The answers are the engine's own. Every other one of a group is called right, so that all groups are mixed and every
answer is back-propagated; the learning rate is next to nothing, so that a round leaves the next one the same work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from decoding import TASK, Work

from assay.policy.batch import Batch, pack
from assay.policy.policy import Policy
from assay.recipe.schema import Recipe
from assay.records import Group, Prompt, Rollout, Verdict

LEARNING_RATE = 1e-9


def policy_of(work: Work, model: Any, device: torch.device, kernels: bool = True, **update: Any) -> Policy:
    """The policy that a recipe for this work describes; ``update``: further keys of that section."""
    recipe = Recipe.from_dict(
        {
            "model": {"path": work.place, "compute_dtype": work.precision},
            "data": {"train": [TASK], "max_prompt_tokens": max(len(p.token_ids) for p in work.prompts)},
            "rollout": {
                "prompts_per_step": len(work.prompts),
                "group_size": work.samples,
                "max_tokens": work.tokens,
                "max_running": work.rows,
            },
            "update": {"learning_rate": LEARNING_RATE, **update},
            "run": {"kernels": kernels},
        }
    )
    return Policy(recipe, model, device, total_steps=1)


def batch_of(prompts: Sequence[Prompt], answers: Sequence[Sequence[Rollout]], policy: Policy) -> Batch:
    """The answers as a batch of mixed groups."""
    groups = [
        Group(prompt, tuple(rollouts), tuple(Verdict(float(r.index % 2), "scored") for r in rollouts))
        for prompt, rollouts in zip(prompts, answers, strict=True)
    ]
    return pack(groups, policy.recipe.reward)
