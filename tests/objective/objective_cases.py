"""Random training steps in float64, and the gradient of one under any split of it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.objective.aggregation import Totals
from assay.objective.layout import Layout
from assay.objective.objective import Plan, advantages, loss, plan, step_totals, step_weights
from assay.objective.step import Step
from assay.objective.tally import Tally
from assay.recipe.schema import ObjectiveRecipe

MAX_TOKENS = 7
SAFE_GAPS = (-1.5, -0.7, -0.4, -0.1, -0.02, 0.03, 0.12, 0.4, 0.8, 1.4)
"""Log-ratios at some distance from every clip edge that the tests use."""


@dataclass(frozen=True)
class Case:
    """A step with the log-probs of every model; excluded tokens hold NaN everywhere."""

    step: Step
    anchor: Tensor
    policy: Tensor
    ref: Tensor

    def keep(self, sequences: Sequence[int]) -> Case:
        """The same step as if the other rollouts had never been."""
        layout, places = self.step.layout.select(torch.tensor(sequences, dtype=torch.long))
        per_sequence = ("valid", "rewards", "truncated", "parts", "greedy")
        step = replace(
            self.step,
            layout=layout,
            **{name: getattr(self.step, name)[sequences] for name in per_sequence},
            **{name: getattr(self.step, name)[places] for name in ("trainable", "sampler_logprobs", "values")},
        )
        return Case(step, self.anchor[places], self.policy[places], self.ref[places])


def draw(seed: int, groups: int | None = None) -> Case:
    """A step of 1 to 4 groups of 1 to 5 rollouts of 0 to 6 tokens, some forced, some rollouts invalid or
    cut."""
    rng = random.Random(seed)
    sizes = [rng.randint(1, 5) for _ in range(groups or rng.randint(1, 4))]
    group = [g for g, size in enumerate(sizes) for _ in range(size)]
    s = len(group)
    valid = [rng.random() < 0.85 for _ in range(s)]
    lengths = [rng.randint(1, 6) if v else rng.randint(0, 6) for v in valid]
    n = sum(lengths)
    layout = Layout.of_lengths(lengths, group)
    levels = rng.choice([(0.0, 1.0), (0.0, 0.1, 1.0), tuple(rng.uniform(-1, 2) for _ in range(5))])
    rewards = [rng.choice(levels) if v else math.nan for v in valid]
    trainable = torch.tensor([rng.random() < 0.85 for _ in range(n)], dtype=torch.bool)
    valid_array = torch.tensor(valid, dtype=torch.bool)
    excluded = ~(trainable & valid_array[layout.sequence])

    def tokens(values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float64).masked_fill(excluded, torch.nan)

    def sequences(values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float64).masked_fill(~valid_array, torch.nan)

    anchor = tokens(rng.uniform(-3, -0.1) for _ in range(n))
    step = Step(
        layout=layout,
        trainable=trainable,
        valid=valid_array,
        rewards=sequences(rewards),
        truncated=torch.tensor([rng.random() < 0.2 for _ in range(s)], dtype=torch.bool),
        sampler_logprobs=anchor + tokens(rng.choice((-0.9, -0.3, 0.0, 0.05, 0.3, 0.9)) for _ in range(n)),
        parts=torch.stack([sequences(rng.choice((0.0, 0.5, 1.0)) for _ in range(s)) for _ in range(2)], 1),
        part_weights=torch.tensor([1.0, 0.3], dtype=torch.float64),
        greedy=sequences(rng.choice(levels) for _ in range(s)),
        values=tokens(rng.uniform(-1, 1) for _ in range(n)),
    )
    policy = anchor + tokens(rng.choice(SAFE_GAPS) + rng.uniform(-1e-3, 1e-3) for _ in range(n))
    return Case(step, anchor, policy, anchor + tokens(rng.uniform(-1, 1) for _ in range(n)))


def entropy_of(policy: Tensor) -> Tensor:
    """Something smooth with a gradient that stands for an entropy; NaN where the log-prob is."""
    unknown = policy.isnan()
    smooth = 1 + 0.1 * policy.masked_fill(unknown, 0.0).square()
    return smooth.masked_fill(unknown, torch.nan)


@dataclass(frozen=True)
class Found:
    """What an update came to."""

    gradient: Tensor
    loss: float
    tally: Tally
    totals: Totals
    plan: Plan
    advantages: Tensor


@dataclass(frozen=True)
class Split:
    """How the step is walked: for each rank its micro-batches, lists of whole sequences."""

    ranks: list[list[list[int]]]
    padded: bool = False


def whole(case: Case) -> Split:
    """Everything at once."""
    return Split([[list(range(case.step.layout.n_sequences))]])


def split(case: Case, seed: int, ranks: int = 2) -> Split:
    """Sequences dealt to ranks at random, each rank's cut into micro-batches at random."""
    rng = random.Random(seed)
    hands: list[list[int]] = [[] for _ in range(ranks)]
    order = list(range(case.step.layout.n_sequences))
    rng.shuffle(order)
    for sequence in order:
        rng.choice(hands).append(sequence)
    walked = []
    for hand in hands:
        micros: list[list[int]] = [[]]
        for sequence in hand:
            if rng.random() < 0.4:
                micros.append([])
            micros[-1].append(sequence)
        walked.append(micros)
    return Split(walked, padded=rng.random() < 0.5)


def update(
    case: Case,
    settings: ObjectiveRecipe,
    how: Split,
    *,
    kl_coef: float | None = None,
    live: bool = False,
    skip: bool = True,
) -> Found:
    """The gradient (N,) with respect to the policy's log-probs, as a learner would gather it."""
    step, layout = case.step, case.step.layout
    coefficient = settings.kl.coefficient if kl_coef is None else kl_coef
    given = advantages(step, settings, case.anchor, case.ref, coefficient).advantages
    chosen = plan(step, settings, given, None if live else case.anchor)
    hands = [[s for micro in micros for s in micro] for micros in how.ranks]
    parts = [layout.select(torch.tensor(hand, dtype=torch.long)) for hand in hands]
    plans = [
        Plan(chosen.counts[places], chosen.correction[places], chosen.active[hand], Tally())
        for hand, (_, places) in zip(hands, parts, strict=True)
    ]
    totals = [step_totals(p, local) for p, (local, _) in zip(plans, parts, strict=True)]
    leaf, flat = leaf_of(case.policy, layout, padded=how.padded)
    value, tally, everyone = 0.0, chosen.tally, sum(totals[1:], totals[0])
    for r, micros in enumerate(how.ranks):
        others = sum(
            (t for i, t in enumerate(totals) if i != r),
            Totals(0, 0, torch.zeros_like(totals[r].group_tokens)),
        )
        weighed = step_weights(plans[r], parts[r][0], settings, MAX_TOKENS, extra_totals=others)
        weights = torch.zeros_like(given).index_put((parts[r][1],), weighed.weights)
        tally += weighed.tally
        for micro in micros:
            kept = [s for s in micro if chosen.active[s] or not skip]
            local, places = layout.select(torch.tensor(kept, dtype=torch.long))
            logprobs = flat()[places]
            output = loss(
                settings,
                logprobs,
                local,
                advantages=given[places],
                correction=chosen.correction[places],
                weights=weights[places],
                counts=chosen.counts[places],
                anchor_logprobs=None if live else case.anchor[places],
                ref_logprobs=case.ref[places],
                entropy=entropy_of(logprobs),
                kl_coef=coefficient,
            )
            output.loss.backward()
            value, tally = value + output.loss.item(), tally + output.tally
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    if how.padded:
        gradient = gradient[padding_mask(layout)]
        order = torch.argsort(layout.sequence, stable=True)
        gradient = torch.zeros_like(gradient).index_put((order,), gradient)
    return Found(gradient, value, tally, everyone, chosen, given)


def padding_mask(layout: Layout) -> Tensor:
    """(S, T + 2) bool: where the tokens stand in a right-padded view."""
    lengths = layout.count_by_sequence(torch.ones_like(layout.sequence, dtype=torch.bool))
    width = int(lengths.max()) + 2 if len(lengths) else 0
    return torch.arange(width) < lengths[:, None]


def leaf_of(policy: Tensor, layout: Layout, *, padded: bool):
    """A leaf tensor with the policy's log-probs, flat or padded with NaN, and a function that reads it
    flat."""
    if not padded:
        leaf = policy.clone().requires_grad_()
        return leaf, lambda: leaf * 1.0
    mask, order = padding_mask(layout), torch.argsort(layout.sequence, stable=True)
    leaf = torch.full(mask.shape, torch.nan, dtype=policy.dtype).masked_scatter(mask, policy[order]).requires_grad_()
    return leaf, lambda: torch.zeros_like(policy).index_put((order,), leaf[mask])
