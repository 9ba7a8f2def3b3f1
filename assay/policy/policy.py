"""The model being trained: a batch goes in, optimizer steps come out."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay.hardware import with_precision
from assay.objective import objective
from assay.objective.objective import StepWeights
from assay.objective.tally import Tally
from assay.policy.batch import Batch, pack
from assay.policy.flops import Work
from assay.policy.logprobs import Scorer, make_scorer, spread
from assay.policy.model import checkpoint_layers
from assay.policy.optimizer import clip_gradients, learning_rate_factor, make_optimizer
from assay.policy.packing import MicroBatch
from assay.policy.prepared import MiniBatch, Prepared, pack_sequences, prepare
from assay.policy.state import load_state, save_state, trainable
from assay.recipe.derived import optimizer_steps
from assay.recipe.schema import Recipe
from assay.records import Group


@dataclass(frozen=True)
class Update:
    """What an update did."""

    metrics: dict[str, float]
    advantages: tuple[tuple[float, ...], ...]
    """Per group, per rollout: the advantage of its first trainable token (0 where it has none)."""
    finite: bool
    """False when an optimizer step was left out because loss or gradient were not finite."""
    trained: Work = Work()
    """What went through the model forward and backward."""
    scored: Work = Work()
    """What went forward alone, for the anchor and the reference."""


class Policy:
    """A causal LM with its optimizer. ``reference`` scores the KL's reference; with adapters it is the bare model."""

    def __init__(
        self, recipe: Recipe, model: Any, device: torch.device, total_steps: int, reference: Any = None
    ) -> None:
        self.recipe = with_precision(recipe, device.type)
        self.model = model.eval()
        self.device = device
        self.optimizer_steps = 0
        self._scorer = self._make_scorer(model)
        self._reference = None if reference is None else self._make_scorer(reference.eval())
        self._parameters = trainable(model)
        self._optimizer = make_optimizer(self._parameters.values(), recipe.update)
        self._factor = learning_rate_factor(recipe.update, total_steps * optimizer_steps(recipe))
        if recipe.model.gradient_checkpointing:
            checkpoint_layers(model)

    def update(self, batch: Batch, kl_coefficient: float) -> Update:
        """Move the policy by one batch: ``update.epochs`` times over ``update.minibatches`` optimizer steps."""
        prepared = prepare(
            batch,
            self.recipe,
            kl_coefficient,
            lambda micros: self._scorer.logprobs_of_all(micros, batch.n_tokens),
            lambda micros: self._score_reference(micros, batch.n_tokens),
        )
        tally, norms, skipped, unmoved = prepared.tally, [], 0, True
        for epoch in range(self.recipe.update.epochs):
            order = list(prepared.minibatches)
            random.Random(f"{self.recipe.run.seed}/{self.optimizer_steps}/{epoch}").shuffle(order)
            for mini in order:
                weights = prepared.weights(mini)
                if weights.totals.empty:
                    continue  # nothing counts: no step, no weight decay, no momentum
                norm, part, logprobs = self._step(prepared, mini, weights)
                tally, unmoved = tally + prepared.mismatch(logprobs) if unmoved else tally, False
                if norm is None:
                    skipped += 1
                else:
                    norms.append(norm)
                    tally += part
        rate = self.recipe.update.learning_rate * self._factor(max(0, self.optimizer_steps - 1))
        counts = {
            "update/learning_rate": rate,
            "update/optimizer_steps": len(norms),
            "update/skipped_steps": skipped,
        }
        metrics = tally.values() | prepared.describe(self._scorer.n_forwarded) | counts
        if norms:
            metrics["update/grad_norm"] = sum(norms) / len(norms)
        firsts = _first_advantages(batch, prepared.advantages.advantages)
        return Update(metrics, firsts, finite=skipped == 0, trained=prepared.trained, scored=prepared.scored)

    def release(self) -> None:
        """Free the gradients until the next update: their memory is the engine's meanwhile."""
        self._optimizer.zero_grad(set_to_none=True)

    def has_signal(self, batch: Batch) -> list[bool]:
        """Per group: would it have an advantage that is not 0? Of the reward alone, without a KL in it."""
        return objective.advantages(batch.step, self.recipe.objective).signal.tolist()

    def score(self, batch: Batch, sequences: Sequence[int] | None = None) -> Tensor:
        """Log-probs (N,) of the response tokens under the current weights; NaN where not asked for."""
        chosen = torch.full((batch.n_sequences,), sequences is None)
        chosen[list(sequences or ())] = True
        return self._scorer.logprobs_of_all(pack_sequences(batch, chosen, self.recipe.update), batch.n_tokens)

    def probe_logprobs(self, group: Group) -> list[float]:
        """Log-probs of the tokens of a group's rollouts under the current weights, one after the other."""
        return self.score(pack([group], self.recipe.reward)).tolist()

    def distributions(self, groups: Sequence[Group]) -> Tensor:
        """Log-probs (N, V) of the whole vocabulary at the tokens of the groups' rollouts, under the current weights."""
        batch = pack(groups, self.recipe.reward)
        micros = pack_sequences(batch, torch.ones(batch.n_sequences, dtype=torch.bool), self.recipe.update)
        parts = [self._scorer.distributions(micro).cpu() for micro in micros]
        found = torch.empty(batch.n_tokens, parts[0].shape[1], dtype=parts[0].dtype)
        for micro, part in zip(micros, parts, strict=True):
            found[micro.tokens] = part
        return found

    def save(self, folder: Path) -> None:
        """Write trainable weights, optimizer and random state into ``folder``. Raises OSError."""
        save_state(folder, self._parameters, self._optimizer, self.optimizer_steps)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, into the tensors that are there: engines that share them see the new values."""
        self.optimizer_steps = load_state(folder, self._parameters, self._optimizer)

    def _make_scorer(self, model: nn.Module) -> Scorer:
        return make_scorer(
            model,
            temperature=self.recipe.rollout.temperature,
            chunk=self.recipe.update.head_chunk,
            compute_dtype=self.recipe.model.compute_dtype,
            device=self.device,
            entropy_gradient=self.recipe.objective.entropy != 0,
            kernels=self.recipe.run.kernels,
        )

    def _score_reference(self, micros: Sequence[MicroBatch], n_tokens: int) -> Tensor:
        if self._reference is not None:
            return self._reference.logprobs_of_all(micros, n_tokens)
        with self.model.disable_adapter():
            return self._scorer.logprobs_of_all(micros, n_tokens)

    def _step(self, prepared: Prepared, mini: MiniBatch, weights: StepWeights) -> tuple[float | None, Tally, Tensor]:
        """One optimizer step: gradient norm, metrics, and log-probs (N,) before it, NaN where nothing was forwarded.

        The norm is ``None``, and nothing moved, when loss or gradient are not finite.
        """
        parameters = self._parameters.values()
        for parameter in parameters:  # zeros, not None: with every advantage 0 the moments still decay
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()
        tally, before = weights.tally, []
        with self._scorer.weights.kept():
            for micro in mini.micros:
                logprobs, entropy = self._scorer.logprobs(micro)
                before.append(logprobs.detach())
                output = prepared.loss(micro, logprobs, entropy, weights.weights)
                output.loss.backward()
                tally += output.tally
        found = spread(mini.micros, before, prepared.batch.n_tokens)
        norm = float(clip_gradients(parameters, self.recipe.update.max_grad_norm))
        if not (math.isfinite(norm) and math.isfinite(tally.sums["update/loss"][0])):
            return None, tally, found
        for group in self._optimizer.param_groups:
            group["lr"] = self.recipe.update.learning_rate * self._factor(self.optimizer_steps)
        self.optimizer_steps += 1  # first: a step that fails may have moved some of the weights
        self._optimizer.step()
        return norm, tally, found


def _first_advantages(batch: Batch, advantages: Tensor) -> tuple[tuple[float, ...], ...]:
    """Per group and rollout, the advantage of the first trainable token: all of them, where an outcome is rewarded."""
    values, trained = advantages.tolist(), batch.step.trainable.tolist()
    spans = pairwise(batch.offsets.tolist())
    firsts = (next((values[t] for t in range(start, end) if trained[t]), 0.0) for start, end in spans)
    return tuple(tuple(next(firsts) for _ in group.rollouts) for group in batch.groups)
