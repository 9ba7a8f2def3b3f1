"""The assembly: from a scored step to constants per token, and from log-probs to the loss.

The order of an update, and who calls what:

1. ``needs_anchor`` and ``anchor_needs_all``: whose log-probs are wanted before the first backward, of whom.
2. ``advantages``: rewards to token advantages.
3. ``plan``: what counts, what it weighs, which rollouts need a gradient. Skipped is not excluded: a rollout
   with advantage 0 is not forwarded, and still counts in every denominator.
4. For each optimizer step ``step_totals`` (summed over ranks) and ``step_weights``: the weight of each token.
   If the totals are ``empty`` there is no optimizer step; with none ``active`` the gradient is exactly 0.
5. For each micro-batch of whole sequences ``loss``: their gradients add up to the step's, however split.

Advantages, correction and weights are constants; only the policy's log-probs and entropy carry a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.errors import UserError
from assay.objective.advantage import ESTIMATORS
from assay.objective.aggregation import Totals, token_weights
from assay.objective.correction import correct, log_weights
from assay.objective.kl import k3, kl
from assay.objective.layout import Layout, only, wide
from assay.objective.loss import LOSSES, LossInputs, TokenLoss
from assay.objective.mismatch import corrected_mismatch, mismatch
from assay.objective.ratio import RATIOS, log_ratio
from assay.objective.step import Step, rewards_less_kl
from assay.objective.tally import Tally
from assay.recipe.derived import AnchorKind, anchor_needs, choose_anchor, corrects
from assay.recipe.schema import ObjectiveRecipe, Recipe, UpdateRecipe


def anchor_needs_all(settings: ObjectiveRecipe) -> bool:
    """Must the anchor's log-probs of *all* valid rollouts be known before the first backward?

    So for a correction or rejection, which decides denominators, and for a KL in the reward.
    """
    return bool(anchor_needs(Recipe(objective=settings, update=UpdateRecipe(epochs=1, minibatches=1))))


def needs_anchor(settings: ObjectiveRecipe, epochs: int, minibatches: int) -> AnchorKind:
    """Whose log-probs the ratio divides by, as :func:`assay.recipe.derived.choose_anchor` resolves it."""
    update = UpdateRecipe(epochs=epochs, minibatches=minibatches)
    return choose_anchor(Recipe(objective=settings, update=update)).kind


def needs_all(settings: ObjectiveRecipe) -> bool:
    """Do rollouts with advantage 0 have a gradient too? So with a KL in the loss or an entropy term."""
    return (settings.kl.where == "loss" and settings.kl.coefficient > 0) or settings.entropy != 0


@dataclass(frozen=True)
class AdvantageResult:
    """Token advantages and what was set to 0."""

    advantages: Tensor
    """(N,): 0 outside the trainable tokens of valid rollouts."""
    signal: Tensor
    """(G,) bool: has the group an advantage that isn't 0?"""
    counts: Mapping[str, int]
    """By reason: ``lone_groups`` (fewer than two valid rollouts), ``flat_groups`` and ``flat_parts`` (std
    below ``min_std``), ``no_greedy_rollouts``; and ``no_signal_groups``, those whose final advantages are all
    0."""
    tally: Tally
    """``update/kl_reference`` where the KL is in the reward."""


def advantages(
    step: Step,
    settings: ObjectiveRecipe,
    anchor_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    kl_coef: float = 0.0,
) -> AdvantageResult:
    """Map the step's rewards to token advantages by the recipe's estimator.

    Log-probs (N,) are needed for a KL in the reward alone (ValueError), and read at trainable tokens of valid
    rollouts. Raises UserError when the estimator needs a signal that the step lacks.
    """
    chosen = ESTIMATORS[settings.estimator]
    if chosen.needs is not None and getattr(step, chosen.needs) is None:
        raise UserError(
            f"objective.estimator: {chosen.name} needs {chosen.needs}, which this run does not make; choose another"
        )
    rewards, tally = rewards_less_kl(step, settings, anchor_logprobs, ref_logprobs, kl_coef)
    result = chosen.compute(rewards, step.layout, step.signals, settings)
    layout, everywhere = step.layout, torch.ones_like(step.valid)
    alive = layout.count_by_sequence(result.values != 0) > 0
    signal = layout.count_by_group(alive) > 0
    present = layout.count_by_group(everywhere) > 0
    counts = dict(result.counts) | {"no_signal_groups": int((present & ~signal).sum())}
    return AdvantageResult(result.values.detach(), signal, counts, tally)


@dataclass(frozen=True)
class Plan:
    """What a step's tokens are worth before the first backward; constants for all its optimizer steps."""

    counts: Tensor
    """(N,) bool: in numerator and denominator; trainable, valid, neither rejected nor masked."""
    correction: Tensor
    """(N,): importance weight of the policy loss; 0 where not counting."""
    active: Tensor
    """(S,) bool: rollouts that must be forwarded for the gradient."""
    tally: Tally
    """``update/rejected_share``, ``update/advantage_abs_mean``; with an anchor of the trainer's ``update/ess_*`` and
    ``mismatch/*``, with a correction ``mismatch/corrected/*``."""


def plan(step: Step, settings: ObjectiveRecipe, advantages: Tensor, anchor_logprobs: Tensor | None = None) -> Plan:
    """Decide what counts, what it weighs and what is forwarded.

    ``anchor_logprobs`` (N,) are the training engine's, of all valid rollouts, where :func:`anchor_needs_all`
    (ValueError without); elsewhere optional, for the metrics.
    """
    layout, tokens = step.layout, step.tokens
    if settings.mask_truncated:
        tokens = tokens & ~step.truncated[layout.sequence]
    counts, weights, tally = tokens, torch.ones_like(advantages), Tally()
    usable = step.tokens & step.sampler_logprobs.isfinite()
    if corrects(settings.correction):
        if anchor_logprobs is None:
            raise ValueError("a correction needs anchor_logprobs")
        logs = log_weights(wide(anchor_logprobs).detach(), wide(step.sampler_logprobs), usable)
        correction = correct(logs, usable, layout, settings.correction)
        weights, counts = correction.weights.to(weights.dtype), tokens & usable & ~correction.rejected
        by_sequence = settings.correction.level == "sequence" and settings.correction.kind != "none"
        tally += corrected_mismatch(
            wide(anchor_logprobs).detach(), wide(step.sampler_logprobs), correction, counts, layout, by_sequence
        )
    elif settings.anchor == "rollout":
        counts = tokens & usable
    if anchor_logprobs is not None and settings.anchor != "rollout":
        tally += mismatch(wide(anchor_logprobs).detach(), wide(step.sampler_logprobs), usable, layout, step.lags)
    tally += Tally.of(
        {
            "update/rejected_share": ((tokens & ~counts).sum(), tokens.sum()),
            "update/advantage_abs_mean": (only(advantages.abs(), counts).sum(), counts.sum()),
        }
    )
    wanted = counts if needs_all(settings) else counts & (advantages != 0)
    active = layout.count_by_sequence(wanted) > 0
    return Plan(counts, only(weights, counts).detach(), active, tally)


@dataclass(frozen=True)
class StepWeights:
    """The weights of one optimizer step."""

    weights: Tensor
    """(N,): loss = sum of w_t l_t; 0 outside the mini-batch and where nothing counts."""
    totals: Totals
    """Of all ranks. ``totals.empty``: no optimizer step."""
    tally: Tally
    """Denominators of what ``loss`` sums over all counting tokens, skipped rollouts included."""


def step_counts(plan: Plan, layout: Layout, sequences: Tensor | None = None) -> Tensor:
    """(N,) bool: the counting tokens of the mini-batch ``sequences`` (K,) long, or of the whole batch."""
    if sequences is None:
        return plan.counts
    chosen = torch.zeros_like(plan.active)
    chosen[sequences] = True
    return plan.counts & chosen[layout.sequence]


def step_totals(plan: Plan, layout: Layout, sequences: Tensor | None = None) -> Totals:
    """Denominators of one optimizer step, over the mini-batch ``sequences`` (K,) long or the whole batch."""
    return Totals.count(step_counts(plan, layout, sequences), layout, plan.active)


def step_weights(
    plan: Plan,
    layout: Layout,
    settings: ObjectiveRecipe,
    max_tokens: int,
    sequences: Tensor | None = None,
    extra_totals: Totals | None = None,
) -> StepWeights:
    """Weigh each token for one optimizer step.

    ``max_tokens`` is Dr. GRPO's constant where the recipe names none; ``extra_totals`` are what the other
    ranks counted with :func:`step_totals`.
    """
    counts = step_counts(plan, layout, sequences)
    mine = Totals.count(counts, layout, plan.active)
    totals = mine if extra_totals is None else mine + extra_totals
    constant = settings.constant_tokens or max_tokens
    weights = token_weights(settings.aggregation, counts, layout, totals, constant, plan.correction.dtype)
    share = mine.tokens / max(totals.tokens, 1)
    tally = Tally(
        dict.fromkeys(("update/loss", "update/policy_loss"), (0.0, share))
        | {f"update/{clip}_share": (0.0, float(mine.tokens)) for clip in ("clip_low", "clip_high", "dual_clip")}
    )
    return StepWeights(weights, totals, tally)


@dataclass(frozen=True)
class LossOutput:
    """The loss of a micro-batch: its share of the optimizer step's loss, to be back-propagated as it is."""

    loss: Tensor
    """(): never to be divided by a number of micro-batches or ranks."""
    tally: Tally
    """To be added to the other micro-batches' and to ``StepWeights.tally``."""


def loss(
    settings: ObjectiveRecipe,
    policy_logprobs: Tensor,
    layout: Layout,
    *,
    advantages: Tensor,
    correction: Tensor,
    weights: Tensor,
    counts: Tensor,
    anchor_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
    kl_coef: float = 0.0,
) -> LossOutput:
    """loss = sum of w_t (c_t l_t + kl_coef k_t - entropy_coef H_t) over the micro-batch's counting tokens.

    All arrays (n,) are the micro-batch's own, of whole sequences in any order (``Layout.select`` finds their
    places); ``layout`` numbers its sequences from 0. ``anchor_logprobs`` absent is the live anchor: the
    policy's own, detached, and a ratio of exactly 1. Raises ValueError when a term lacks its input.
    """
    logprobs = only(wide(policy_logprobs), counts)
    anchor = logprobs.detach() if anchor_logprobs is None else wide(anchor_logprobs).detach()
    d = log_ratio(logprobs, anchor, counts)
    r = RATIOS[settings.ratio].compute(logprobs, d, counts, layout)
    inputs = LossInputs(logprobs, d, r, only(advantages, counts).to(d.dtype), counts, layout)
    term = LOSSES[settings.loss].compute(inputs, settings)
    w = only(weights, counts).to(d.dtype)
    policy_term = (w * only(correction, counts).to(d.dtype) * term.values).sum()
    total, tally = policy_term, ratio_tally(term, d.detach(), r.detach(), counts)
    number = counts.sum()
    if settings.kl.where == "loss" and (ref_logprobs is not None or kl_coef != 0):
        if ref_logprobs is None:
            raise ValueError("a KL in the loss needs ref_logprobs")
        divergence = kl(settings.kl.estimator, logprobs, only(wide(ref_logprobs).detach(), counts))
        total = total + kl_coef * (w * divergence).sum()
        tally += Tally.of({"update/kl_reference": (divergence.sum(), number)})
    if entropy is not None:
        nats = only(wide(entropy), counts)
        total = total - settings.entropy * (w * nats).sum()
        tally += Tally.of({"update/entropy": (nats.sum(), number)})
    elif settings.entropy != 0:
        raise ValueError("an entropy bonus needs entropy")
    zero = d.new_zeros(())
    tally += Tally.of({"update/loss": (total, zero), "update/policy_loss": (policy_term, zero)})
    return LossOutput(total, tally)


def ratio_tally(term: TokenLoss, log_ratio: Tensor, ratio: Tensor, counts: Tensor) -> Tally:
    """Metrics of the ratio and its clips; the clips' denominators are in ``StepWeights.tally``."""
    number, zero = counts.sum(), log_ratio.new_zeros(())
    sums = {
        "update/ratio_mean": (only(ratio, counts).sum(), number),
        "update/kl_anchor": (k3(log_ratio).sum(), number),
        "update/clip_low_share": ((term.low & counts).sum(), zero),
        "update/clip_high_share": ((term.high & counts).sum(), zero),
        "update/dual_clip_share": ((term.dual & counts).sum(), zero),
    }
    return Tally.of(sums, {"update/ratio_max": ratio[counts].max()} if bool(counts.any()) else {})
