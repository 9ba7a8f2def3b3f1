"""Supervised warm-up: the loop on given completions in place of sampled ones.

A model too weak to ever be right has nothing to be rewarded for; a few steps of imitation give it something. Each given
completion is a group of one rollout with reward 1; with the advantage A = r and the loss -A log p, the update is
maximum likelihood on the completion's tokens, through the same packing, aggregation, optimizer and checkpoints.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from assay.data.conventions import column_at
from assay.data.prompts import PromptSet
from assay.data.sampler import PromptSampler
from assay.errors import UserError
from assay.loop.assembly import Ingredients, checked
from assay.loop.harvest import Harvest
from assay.loop.in_flight import InFlight
from assay.loop.trainer import Outcome, run_loop
from assay.policy.policy import Update
from assay.recipe.load import Resolved
from assay.recipe.schema import CorrectionRecipe, DataRecipe, DriftRecipe, KlRecipe, Recipe, RegimeRecipe, SyncRecipe
from assay.records import Group, Prompt, Rollout, Segment, Verdict
from assay.track.console import Console

KEPT = (
    "update/grad_norm",
    "update/learning_rate",
    "update/optimizer_steps",
    "update/skipped_steps",
    "update/padding_share",
    "update/tokens_forwarded",
)
"""Metrics of the update that mean the same as in reinforcement learning."""


@dataclass
class CompletionSource:
    """Given completions as groups of one, in the seeded order of the data. Every prompt has one: see `fitting`."""

    prompts: PromptSet
    sampler: PromptSampler
    tokenizer: Any
    column: str
    per_step: int
    cursor: int = 0
    admissions: int = 0

    async def next_groups(self) -> Harvest:
        """The next ``per_step`` completions."""
        indices, self.cursor = self.sampler.take(self.cursor, self.per_step)
        first, self.admissions = self.admissions, self.admissions + self.per_step
        groups = tuple(self._group(self.prompts.prompts[k], first + i) for i, k in enumerate(indices))
        return Harvest(groups, origin="given")

    async def in_flight(self, version: int) -> InFlight:
        """Nothing: what is given needs no making."""
        return InFlight()

    def known(self, version: int) -> InFlight:
        """Nothing, again."""
        return InFlight()

    def restore(self, in_flight: InFlight, version: int) -> None:
        """The counters are the whole state."""

    async def drained(self) -> None:
        """Nothing is being made."""

    async def discard(self) -> int:
        """Nothing is in the making."""
        return 0

    def drop_to_sync(self) -> None:
        """It never ran ahead."""

    async def close(self) -> None:
        """Nothing is held."""

    def _group(self, prompt: Prompt, admission: int) -> Group:
        """One rollout of reward 1, that nobody sampled: it has no log-probs and is of no version."""
        text = _completion(prompt, self.column)
        ids = _tokens(text, self.tokenizer)
        segment = Segment("policy", ids, sampler_logprobs=(math.nan,) * len(ids), versions=(0,) * len(ids))
        rollout = Rollout(prompt.id, 0, (segment,), "stop", text)
        return Group(prompt, (rollout,), (Verdict(1.0, "scored", correct=1.0),), admission)


def _completion(prompt: Prompt, column: str) -> str:
    text = column_at(prompt.columns, column)
    if isinstance(text, str) and text:
        return text
    raise UserError(
        f"{prompt.source}: no text to imitate in column {column!r}: add it, or name another with data.completion"
    )


def _tokens(text: str, tokenizer: Any) -> tuple[int, ...]:
    """A completion's tokens, the one that ends it included."""
    ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)
    return ids if tokenizer.eos_token_id is None else (*ids, tokenizer.eos_token_id)


def fitting(prompts: PromptSet, tokenizer: Any, data: DataRecipe, context: int | None) -> PromptSet:
    """The prompts whose completion ends within the model's ``context``; the others are skipped and counted.

    Raises UserError for a row without a text to imitate, for one too long where ``data.overlong`` is ``refuse``, and
    where none is left.
    """
    kept = []
    for prompt in prompts.prompts:
        length = len(prompt.token_ids) + len(_tokens(_completion(prompt, data.completion), tokenizer))
        if context is None or length <= context:
            kept.append(prompt)
        elif data.overlong == "refuse":
            raise UserError(
                f"{prompt.source}: prompt and completion have {length} tokens, more than the model's context of "
                f"{context}: shorten it, or set data.overlong=skip"
            )
    if not kept:
        raise UserError(f"data.train: every prompt with its completion is longer than the model's context of {context}")
    return replace(prompts, prompts=tuple(kept), too_long=prompts.too_long + len(prompts) - len(kept))


def train_on_completions(
    recipe: Recipe | Resolved, *, resume: bool | Path = False, console: Console | None = None
) -> Outcome:
    """Run a recipe as supervised warm-up; `assay.loop.trainer.train` says what is returned and raised.

    The recipe's model, data, update, aggregation, evaluation and checkpoints hold; its sampling and rewards serve the
    evaluation alone.
    """
    resolved = checked(recipe)
    path = resolved.path and resolved.path.with_stem(f"{resolved.path.stem}-sft")  # runs of its own name to resume
    settings = replace(resolved, recipe=supervised(resolved.recipe), path=path)
    return asyncio.run(run_loop(settings, resume, console, completions, sft_metrics))


def supervised(recipe: Recipe) -> Recipe:
    """The recipe with an objective of maximum likelihood: A = r, loss -A log p, no KL, no correction, temperature 1."""
    objective = recipe.objective.model_copy(
        update={
            "estimator": "none",
            "loss": "reinforce",
            "anchor": "auto",
            "entropy": 0.0,
            "mask_truncated": False,
            "kl": KlRecipe(),
            "correction": CorrectionRecipe(),
        }
    )
    rollout = recipe.rollout.model_copy(update={"temperature": 1.0, "dynamic_sampling": False})
    track = recipe.track.model_copy(update={"rollouts": False})
    changed = {"objective": objective, "rollout": rollout, "track": track, "drift": DriftRecipe()}
    changed |= {"regime": RegimeRecipe(), "sync": SyncRecipe(backend=recipe.sync.backend, gguf=recipe.sync.gguf)}
    return recipe.model_copy(update=changed)


def completions(ingredients: Ingredients) -> CompletionSource:
    """The source of a supervised run."""
    recipe, context = ingredients.recipe, ingredients.dispatcher.engine.limits.context
    prompts = fitting(ingredients.prompts, ingredients.tokenizer, recipe.data, context)
    skipped = len(ingredients.prompts) - len(prompts)
    if skipped:
        text = f"{skipped} completions, with their prompts, are longer than the model's context of {context}: skipped"
        ingredients.console.message(text, "warning")
    return CompletionSource(
        prompts,
        PromptSampler(len(prompts), recipe.run.seed, recipe.data.shuffle),
        ingredients.tokenizer,
        recipe.data.completion,
        recipe.rollout.prompts_per_step,
    )


def sft_metrics(harvest: Harvest, update: Update) -> dict[str, float]:
    """What is worth saying of a supervised step: the likelihood of the completions, not rewards that are all 1."""
    found = {name: update.metrics[name] for name in KEPT if name in update.metrics}
    if "update/policy_loss" in update.metrics:
        found["sft/loss"] = update.metrics["update/policy_loss"]
    lengths = [len(r) for g in harvest.groups for r in g.rollouts]
    return found | {"sft/tokens_mean": fmean(lengths)}
