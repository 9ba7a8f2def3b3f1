"""The model being trained: a batch goes in, optimizer steps come out."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import UserError
from assay.objective import objective
from assay.objective.objective import AdvantageResult, Plan, StepWeights
from assay.objective.layout import Layout
from assay.objective.tally import Tally
from assay.policy.batch import Batch, pack
from assay.policy.logprobs import Scorer, make_scorer
from assay.policy.optimizer import clip_gradients, learning_rate_factor, make_optimizer
from assay.policy.packing import MicroBatch, microbatches
from assay.recipe.schema import CorrectionRecipe, ObjectiveRecipe, Recipe
from assay.records import Group


@dataclass(frozen=True)
class Update:
    """What an update did."""

    metrics: dict[str, float]
    advantages: tuple[tuple[float, ...], ...]
    """Per group, per rollout: the advantage of its first trainable token (0 where it has none)."""
    finite: bool
    """False when an optimizer step was left out because loss or gradient were not finite."""


@dataclass(frozen=True)
class MiniBatch:
    """The part of a batch that one optimizer step uses."""

    sequences: Tensor
    """(K,) long: all of its sequences, skipped ones included: they are in the denominators."""
    micros: list[MicroBatch]
    """Its active sequences, packed; the same in every pass, so that an unmoved ratio is exactly 1."""


@dataclass(frozen=True)
class Prepared:
    """A batch with everything that is constant while it is used."""

    batch: Batch
    advantages: AdvantageResult
    plan: Plan
    minibatches: list[MiniBatch]
    anchor: Tensor | None
    """(N,), or ``None`` for the live anchor."""
    reference: Tensor | None
    """(N,), or ``None`` without a KL term."""
    tally: Tally


class Policy:
    """A causal LM with its optimizer. ``reference`` scores the KL's reference; with adapters it is the bare model."""

    def __init__(
        self, recipe: Recipe, model: Any, device: torch.device, total_steps: int, reference: Any = None
    ) -> None:
        self.recipe = recipe
        self.model = model
        self.device = device
        self._scorer = self._make_scorer(model)
        self._reference = None if reference is None else self._make_scorer(reference)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = make_optimizer(self._parameters, recipe.update)
        self._factor = learning_rate_factor(recipe.update, total_steps * recipe.update.epochs * recipe.update.minibatches)
        self.optimizer_steps = 0
        if recipe.model.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.enable_input_require_grads()

    def update(self, batch: Batch, kl_coefficient: float) -> Update:
        """Move the policy by one batch: ``update.epochs`` times over ``update.minibatches`` optimizer steps."""
        prepared = self._prepare(batch, kl_coefficient)
        tally, steps, skipped, norms = prepared.tally, 0, 0, []
        for epoch in range(self.recipe.update.epochs):
            order = list(prepared.minibatches)
            random.Random(f"{self.recipe.run.seed}/{self.optimizer_steps}/{epoch}").shuffle(order)
            for mini in order:
                weights = self._weights(prepared, mini)
                if weights.totals.empty:
                    continue  # nothing counts: no step, no weight decay, no momentum
                part, norm = self._step(prepared, mini, weights, kl_coefficient)
                steps, skipped = steps + (norm is not None), skipped + (norm is None)
                if norm is not None:
                    tally += part
                    norms.append(norm)
        metrics = tally.values() | self._describe(prepared, steps, skipped)
        if norms:
            metrics["update/grad_norm"] = sum(norms) / len(norms)
        return Update(metrics, _first_advantages(batch, prepared.advantages.advantages), finite=skipped == 0)

    def has_signal(self, batch: Batch) -> list[bool]:
        """Per group: would it have an advantage that is not 0? Of the reward alone, without a KL in it."""
        result = objective.advantages(batch.step, self.recipe.objective)
        return [bool(x) for x in result.signal]

    @torch.no_grad()
    def score(self, batch: Batch, sequences: Sequence[int] | None = None) -> Tensor:
        """Log-probs (N,) of the response tokens under the current weights; NaN where not asked for."""
        chosen = range(batch.n_sequences) if sequences is None else sequences
        return self._score(self._scorer, batch, self._pack(batch, chosen))

    def probe_logprobs(self, group: Group) -> list[float]:
        """Log-probs of the tokens of a group's rollouts under the current weights, one after the other."""
        return self.score(pack([group], self.recipe.reward)).tolist()

    def save(self, folder: Path) -> None:
        """Write trainable weights, optimizer and random state into ``folder``."""
        from safetensors.torch import save_file

        named = {n: p.detach().contiguous() for n, p in self.model.named_parameters() if p.requires_grad}
        save_file(named, folder / "policy.safetensors")
        state = {
            "optimizer": self._optimizer.state_dict(),
            "optimizer_steps": self.optimizer_steps,
            "random": torch.get_rng_state(),
        }
        torch.save(state, folder / "optimizer.pt")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Read what `save` wrote, into the tensors that are there: engines that share them see the new values."""
        from safetensors.torch import load_file

        saved = load_file(folder / "policy.safetensors")
        mine = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        if saved.keys() != mine.keys():
            raise UserError(f"checkpoint {folder} is of another model: its parameters have other names")
        for name, parameter in mine.items():
            parameter.copy_(saved[name])
        state = torch.load(folder / "optimizer.pt", map_location=self.device, weights_only=True)
        self._optimizer.load_state_dict(state["optimizer"])
        self.optimizer_steps = state["optimizer_steps"]
        torch.set_rng_state(state["random"].cpu())

    def _make_scorer(self, model: nn.Module) -> Scorer:
        return make_scorer(
            model,
            temperature=self.recipe.rollout.temperature,
            chunk=self.recipe.update.head_chunk,
            compute_dtype=self.recipe.model.compute_dtype,
            device=self.device,
            entropy_gradient=self.recipe.objective.entropy != 0,
        )

    def _pack(self, batch: Batch, sequences: Sequence[int]) -> list[MicroBatch]:
        update = self.recipe.update
        return microbatches(batch, sequences, update.tokens_per_microbatch, update.share_prompts)

    @torch.no_grad()
    def _score(self, scorer: Scorer, batch: Batch, micros: Sequence[MicroBatch]) -> Tensor:
        found = torch.full((batch.n_tokens,), math.nan)
        for micro in micros:
            found[micro.tokens] = scorer.logprobs(micro)[0].cpu()
        return found

    def _score_reference(self, batch: Batch, micros: Sequence[MicroBatch]) -> Tensor:
        if self._reference is not None:
            return self._score(self._reference, batch, micros)
        with self.model.disable_adapter():
            return self._score(self._scorer, batch, micros)

    def _prepare(self, batch: Batch, kl_coefficient: float) -> Prepared:
        """Everything that is decided before the first backward pass.

        The micro-batches are fixed here: those of the rollouts whose advantage is not 0 (or of all counting ones, if a
        term needs them), then those of the rest, which only the anchor's log-probs may be wanted of. With a KL in
        the reward the advantages need log-probs, so all valid rollouts are packed.
        """
        settings, update, step = self.recipe.objective, self.recipe.update, batch.step
        choice = objective.needs_anchor(settings, update.epochs, update.minibatches)
        kl_in_reward = settings.kl.where == "reward" and settings.kl.coefficient > 0
        valid = step.valid & (step.layout.count_by_sequence(step.tokens) > 0)
        first = None if kl_in_reward else objective.advantages(step, settings)
        wanted = valid if first is None else objective.plan(step, _without_correction(settings), first.advantages).active
        minis = self._split(batch, wanted)
        scored = [m for mini in minis for m in mini.micros]
        if objective.anchor_needs_all(settings):
            scored = scored + self._pack(batch, (valid & ~wanted).nonzero().flatten().tolist())
        anchor = {
            "live": lambda: None,
            "recompute": lambda: self._score(self._scorer, batch, scored),
            "rollout": lambda: step.sampler_logprobs,
        }[choice]()
        reference = self._score_reference(batch, scored) if settings.kl.coefficient > 0 else None
        result = first or objective.advantages(step, settings, anchor, reference, kl_coefficient)
        plan = objective.plan(step, settings, result.advantages, anchor)
        return Prepared(batch, result, plan, minis, anchor, reference, result.tally + plan.tally)

    def _split(self, batch: Batch, active: Tensor) -> list[MiniBatch]:
        """The batch as ``update.minibatches`` runs of whole groups, each with its active sequences packed."""
        groups = torch.arange(len(batch.groups))
        parts = torch.tensor_split(groups, self.recipe.update.minibatches)
        minis = []
        for part in parts:
            mine = torch.isin(batch.step.layout.group, part)
            chosen = (mine & active).nonzero().flatten().tolist()
            minis.append(MiniBatch(mine.nonzero().flatten(), self._pack(batch, chosen)))
        return minis

    def _weights(self, prepared: Prepared, mini: MiniBatch) -> StepWeights:
        recipe, layout = self.recipe, prepared.batch.step.layout
        return objective.step_weights(
            prepared.plan, layout, recipe.objective, recipe.rollout.max_tokens, mini.sequences
        )

    def _step(
        self, prepared: Prepared, mini: MiniBatch, weights: StepWeights, kl_coefficient: float
    ) -> tuple[Tally, float | None]:
        """One optimizer step. The norm is ``None``, and nothing moved, when loss or gradient are not finite."""
        for parameter in self._parameters:  # zeros, not None: with every advantage 0 the moments still decay
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()
        self.model.train(self.recipe.model.gradient_checkpointing)  # dropout is 0; checkpointing asks for train mode
        tally = weights.tally
        try:
            for micro in mini.micros:
                output = self._loss(prepared, micro, weights.weights, kl_coefficient)
                output.loss.backward()
                tally += output.tally
        finally:
            self.model.eval()
        norm = float(clip_gradients(self._parameters, self.recipe.update.max_grad_norm))
        if not (math.isfinite(norm) and math.isfinite(tally.sums["update/loss"][0])):
            return tally, None
        for group in self._optimizer.param_groups:
            group["lr"] = self.recipe.update.learning_rate * self._factor(self.optimizer_steps)
        self._optimizer.step()
        self.optimizer_steps += 1
        return tally, norm

    def _loss(
        self, prepared: Prepared, micro: MicroBatch, weights: Tensor, kl_coefficient: float
    ) -> objective.LossOutput:
        """The micro-batch's share of the loss; its arrays are gathered from the batch's by token place."""
        logprobs, entropy = self._scorer.logprobs(micro)
        step = prepared.batch.step

        def take(array: Tensor | None) -> Tensor | None:
            return None if array is None else array[micro.tokens].to(self.device)

        live = prepared.anchor is None
        constants = {
            "advantages": prepared.advantages.advantages,
            "correction": prepared.plan.correction,
            "weights": weights,
            "counts": prepared.plan.counts,
        }
        return objective.loss(
            self.recipe.objective,
            logprobs,
            _local_layout(step.layout, micro.tokens, self.device),
            **{name: array[micro.tokens].to(self.device) for name, array in constants.items()},
            anchor_logprobs=take(prepared.anchor),
            ref_logprobs=take(prepared.reference),
            entropy=entropy,
            sampler_logprobs=take(step.sampler_logprobs) if live else None,
            kl_coef=kl_coefficient,
        )

    def _describe(self, prepared: Prepared, steps: int, skipped: int) -> dict[str, float]:
        step, plan = prepared.batch.step, prepared.plan
        counting = step.layout.count_by_sequence(plan.counts) > 0
        counts = prepared.advantages.counts
        micros = [m for mini in prepared.minibatches for m in mini.micros]
        return {
            "update/learning_rate": self.recipe.update.learning_rate * self._factor(max(0, self.optimizer_steps - 1)),
            "update/optimizer_steps": steps,
            "update/skipped_steps": skipped,
            "update/tokens_counted": int(plan.counts.sum()),
            "update/tokens_forwarded": sum(m.n_forwarded for m in micros) * self.recipe.update.epochs,
            "update/sequences_skipped_share": float((counting & ~plan.active).sum() / counting.sum().clamp(min=1)),
            "update/lone_groups": counts.get("lone_groups", 0),
            "update/small_std_groups": counts.get("flat_groups", 0),
        }


def _without_correction(settings: ObjectiveRecipe) -> ObjectiveRecipe:
    return settings.model_copy(update={"correction": CorrectionRecipe()})


def _local_layout(layout: Layout, tokens: Tensor, device: torch.device) -> Layout:
    """The layout of a micro-batch whose scored tokens lie at ``tokens`` (n,), its sequences numbered from 0."""
    sequences, local = torch.unique(layout.sequence[tokens], return_inverse=True)
    return Layout(local.to(device), layout.group[sequences].to(device), layout.n_groups)


def _first_advantages(batch: Batch, advantages: Tensor) -> tuple[tuple[float, ...], ...]:
    """Per group and rollout, the advantage of the first trainable token: all of them, where an outcome is rewarded."""
    trainable = batch.step.trainable.tolist()
    offsets, values = batch.offsets.tolist(), advantages.tolist()

    def first(s: int) -> float:
        return next((values[t] for t in range(offsets[s], offsets[s + 1]) if trainable[t]), 0.0)

    sizes = [len(g.rollouts) for g in batch.groups]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(tuple(first(a + i) for i in range(n)) for a, n in zip(starts, sizes, strict=True))
