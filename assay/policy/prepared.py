"""Everything about a batch that is decided before the first backward pass, and constant while it is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.objective import objective
from assay.objective.layout import Layout, wide
from assay.objective.mismatch import mismatch
from assay.objective.objective import AdvantageResult, LossOutput, Plan, StepWeights
from assay.objective.tally import Tally
from assay.policy.batch import Batch
from assay.policy.flops import Work, work_of
from assay.policy.packing import MicroBatch, microbatches
from assay.recipe.schema import CorrectionRecipe, Recipe, UpdateRecipe

Score = Callable[[Sequence[MicroBatch]], Tensor]
"""Log-probs (N,) of the micro-batches' tokens, NaN at all others."""


@dataclass(frozen=True)
class MiniBatch:
    """The part of a batch that one optimizer step uses."""

    sequences: Tensor
    """(K,) long: all of its sequences, skipped ones included: they are in the denominators."""
    micros: list[MicroBatch]
    """Its active sequences, packed; the same in every pass, so that an unmoved ratio is exactly 1."""


@dataclass(frozen=True)
class Prepared:
    """A batch, its constants, and how it is walked."""

    recipe: Recipe
    batch: Batch
    advantages: AdvantageResult
    plan: Plan
    minibatches: list[MiniBatch]
    anchor: Tensor | None
    """(N,), or ``None`` for the live anchor."""
    reference: Tensor | None
    """(N,), or ``None`` without a KL term."""
    kl_coefficient: float
    """As the controller has it now."""
    scored: Work
    """What went through a model forward alone, for the anchor and the reference."""

    @property
    def tally(self) -> Tally:
        """Metrics that are known already."""
        return self.advantages.tally + self.plan.tally

    @property
    def trained(self) -> Work:
        """What goes forward and backward, in all epochs."""
        return work_of(micro for mini in self.minibatches for micro in mini.micros) * self.recipe.update.epochs

    def weights(self, mini: MiniBatch) -> StepWeights:
        """The weight of each token in the optimizer step of ``mini``."""
        recipe, layout = self.recipe, self.batch.step.layout
        return objective.step_weights(self.plan, layout, recipe.objective, recipe.rollout.max_tokens, mini.sequences)

    def loss(self, micro: MicroBatch, logprobs: Tensor, entropy: Tensor, weights: Tensor) -> LossOutput:
        """The micro-batch's share of its optimizer step's loss.

        ``logprobs`` and ``entropy`` (n,) are the policy's, ``weights`` (N,) those of the step; the constants of the n
        tokens are gathered from the batch's by place, onto the log-probs' device.
        """

        def take(array: Tensor) -> Tensor:
            return array[micro.tokens].to(logprobs.device)

        layout = self.batch.step.layout
        sequences, local = torch.unique(layout.sequence[micro.tokens], return_inverse=True)
        here = Layout(local.to(logprobs.device), layout.group[sequences].to(logprobs.device), layout.n_groups)
        return objective.loss(
            self.recipe.objective,
            logprobs,
            here,
            advantages=take(self.advantages.advantages),
            correction=take(self.plan.correction),
            weights=take(weights),
            counts=take(self.plan.counts),
            anchor_logprobs=None if self.anchor is None else take(self.anchor),
            ref_logprobs=None if self.reference is None else take(self.reference),
            entropy=entropy,
            kl_coef=self.kl_coefficient,
        )

    def mismatch(self, logprobs: Tensor) -> Tally:
        """How far the sampler was, of the log-probs (N,) of the first optimizer step, NaN where nothing was forwarded.

        Nothing where the plan had the trainer's log-probs of all rollouts before, and said it of them.
        """
        step = self.batch.step
        if self.anchor is not None and self.anchor is not step.sampler_logprobs:
            return Tally()
        return mismatch(wide(logprobs), wide(step.sampler_logprobs), self.plan.counts, step.layout, step.lags)

    def describe(self, n_forwarded: Callable[[MicroBatch], int]) -> dict[str, float]:
        """Metrics of what counts, what is forwarded (``n_forwarded``: how many tokens of one) and what is skipped."""
        counting = self.batch.step.layout.count_by_sequence(self.plan.counts) > 0
        forwarded = sum(n_forwarded(m) for mini in self.minibatches for m in mini.micros) * self.recipe.update.epochs
        return {
            "update/tokens_counted": int(self.plan.counts.sum()),
            "update/tokens_forwarded": forwarded,
            "update/padding_share": 1 - self.trained.tokens / forwarded if forwarded else 0.0,
            "update/sequences_skipped_share": float((counting & ~self.plan.active).sum() / counting.sum().clamp(min=1)),
            "update/lone_groups": self.advantages.counts.get("lone_groups", 0),
            "update/small_std_groups": self.advantages.counts.get("flat_groups", 0),
        }


def prepare(batch: Batch, recipe: Recipe, kl_coefficient: float, score: Score, score_reference: Score) -> Prepared:
    """Advantages, micro-batches, anchor, reference and plan, in this order.

    The micro-batches are fixed here: those of the rollouts whose advantage is not 0 (or of all that count, if a term
    needs them), then those of the rest, of which the anchor's log-probs may be wanted. With a KL in the reward the
    advantages themselves need log-probs, so all valid rollouts are packed.
    """
    settings, update, step = recipe.objective, recipe.update, batch.step
    regularised = settings.kl.coefficient > 0
    valid = step.valid & (step.layout.count_by_sequence(step.tokens) > 0)
    result, wanted = None, valid
    if not (regularised and settings.kl.where == "reward"):
        result = objective.advantages(step, settings)
        uncorrected = settings.model_copy(update={"correction": CorrectionRecipe()})
        wanted = objective.plan(step, uncorrected, result.advantages).active
    minibatches = _split(batch, wanted, update)
    scored = [micro for mini in minibatches for micro in mini.micros]
    if objective.anchor_needs_all(settings):
        scored += pack_sequences(batch, valid & ~wanted, update)
    kind = objective.needs_anchor(settings, update.epochs, update.minibatches)
    anchor = score(scored) if kind == "recompute" else step.sampler_logprobs if kind == "rollout" else None
    reference = score_reference(scored) if regularised else None
    if result is None:
        result = objective.advantages(step, settings, anchor, reference, kl_coefficient)
    plan = objective.plan(step, settings, result.advantages, anchor)
    passes = (kind == "recompute") + regularised
    return Prepared(
        recipe, batch, result, plan, minibatches, anchor, reference, kl_coefficient, work_of(scored) * passes
    )


def pack_sequences(batch: Batch, chosen: Tensor, update: UpdateRecipe) -> list[MicroBatch]:
    """The ``chosen`` (S,) bool sequences of a batch as the recipe packs them."""
    return microbatches(batch, chosen.nonzero().flatten().tolist(), update.tokens_per_microbatch, update.share_prompts)


def _split(batch: Batch, active: Tensor, update: UpdateRecipe) -> list[MiniBatch]:
    """The batch as ``update.minibatches`` runs of whole groups, each with its active sequences packed."""
    minis = []
    for groups in torch.tensor_split(torch.arange(len(batch.groups)), update.minibatches):
        mine = torch.isin(batch.step.layout.group, groups)
        minis.append(MiniBatch(mine.nonzero().flatten(), pack_sequences(batch, mine & active, update)))
    return minis
