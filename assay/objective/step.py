"""The training step as flat arrays, and the token rewards made of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.objective.advantage import Signals
from assay.objective.kl import kl
from assay.objective.layout import Layout, only, wide
from assay.objective.tally import Tally
from assay.recipe.schema import ObjectiveRecipe


@dataclass(frozen=True)
class Step:
    """The whole training batch: N response tokens of S rollouts of G groups.

    Example: two groups of two rollouts with 3, 2, 4 and 1 tokens have N = 10, S = 4, ``layout.sequence = 0 0
    0 1 1 2 2 2 2 3`` and ``layout.group = 0 0 1 1``. Raises ValueError when shapes disagree.
    """

    layout: Layout
    trainable: Tensor
    """(N,) bool: sampled by the policy. Forced and tool tokens are conditioned on and are in nothing here."""
    valid: Tensor
    """(S,) bool: does the rollout carry a reward? Else it is in neither gradient nor baseline."""
    rewards: Tensor
    """(S,): NaN where invalid."""
    truncated: Tensor
    """(S,) bool: cut at the length cap."""
    sampler_logprobs: Tensor
    """(N,): by the engine; NaN where not the policy's. Where it should be finite and isn't, and is needed,
    the token is rejected."""
    parts: Tensor | None = None
    """(S, P): unweighted reward parts, NaN where one has no score."""
    part_weights: Tensor | None = None
    """(P,)."""
    greedy: Tensor | None = None
    """(S,): reward of the greedy answer to each rollout's prompt."""
    values: Tensor | None = None
    """(N,): a critic's values."""
    lags: Tensor | None = None
    """(N,) long: how many versions older than the trainer the sampler of each token was; 0 where not the policy's."""

    def __post_init__(self) -> None:
        n, s = self.layout.n_tokens, self.layout.n_sequences
        p = 0 if self.parts is None else self.parts.shape[-1]
        shapes = {
            "trainable": (n,),
            "valid": (s,),
            "rewards": (s,),
            "truncated": (s,),
            "sampler_logprobs": (n,),
        }
        shapes |= {"parts": (s, p), "part_weights": (p,), "greedy": (s,), "values": (n,), "lags": (n,)}
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array is not None and tuple(array.shape) != shape:
                raise ValueError(f"{name} has the shape {tuple(array.shape)} where {shape} belongs")
        if (self.parts is None) != (self.part_weights is None):
            raise ValueError("parts and part_weights come together")
        if not bool(self.rewards[self.valid].isfinite().all()):
            raise ValueError("a valid rollout has a reward that is no finite number")
        if bool((self.valid & (self.layout.last_token(torch.ones_like(self.trainable)) < 0)).any()):
            raise ValueError("a valid rollout has no token")

    @property
    def signals(self) -> Signals:
        """What estimators look at besides the rewards."""
        return Signals(self.valid, self.trainable, self.parts, self.part_weights, self.greedy, self.values)

    @property
    def tokens(self) -> Tensor:
        """(N,) bool: trainable tokens of valid rollouts."""
        return self.signals.tokens(self.layout)


def outcome_rewards(step: Step) -> Tensor:
    """Each valid rollout's reward on its last trainable token, 0 elsewhere -> (N,).

    A rollout of nothing but forced tokens has it on its last token: it still moves its group's baseline.
    """
    last = step.layout.last_token(step.trainable)
    last = torch.where(last < 0, step.layout.last_token(torch.ones_like(step.trainable)), last)
    rewards = wide(step.rewards)
    out = rewards.new_zeros(step.layout.n_tokens)
    return out.index_put((last[step.valid],), rewards[step.valid])


def rewards_less_kl(
    step: Step,
    settings: ObjectiveRecipe,
    anchor_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    kl_coef: float,
) -> tuple[Tensor, Tally]:
    """Token rewards (N,): the outcome, less kl_coef times the anchor's KL where the KL is in the reward."""
    rewards = outcome_rewards(step)
    if settings.kl.where != "reward" or kl_coef == 0:
        return rewards, Tally()
    if anchor_logprobs is None or ref_logprobs is None:
        raise ValueError("a KL in the reward needs anchor_logprobs and ref_logprobs")
    tokens = step.tokens
    anchor, ref = only(wide(anchor_logprobs), tokens), only(wide(ref_logprobs), tokens)
    cost = kl(settings.kl.estimator, anchor, ref).detach()
    return rewards - kl_coef * cost, Tally.of({"update/kl_reference": (cost.sum(), tokens.sum())})
