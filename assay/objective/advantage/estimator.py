"""What an advantage estimator is: inputs, result, the laws it declares, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from torch import Tensor

from assay.objective.layout import Layout, only
from assay.recipe.schema import ObjectiveRecipe
from assay.registry import Registry


@dataclass(frozen=True)
class Signals:
    """What an estimator may look at besides rewards; what it ``needs`` is never ``None`` for it."""

    valid: Tensor
    """(S,) bool: does the rollout carry a reward? An invalid one is in no statistic and gets advantage 0."""
    trainable: Tensor
    """(N,) bool: was the token sampled by the policy?"""
    parts: Tensor | None = None
    """(S, P): unweighted reward parts; NaN where a part has no score."""
    part_weights: Tensor | None = None
    """(P,): their weights."""
    greedy: Tensor | None = None
    """(S,): reward of the greedy answer to the rollout's prompt."""
    values: Tensor | None = None
    """(N,): a critic's estimate of the return from each token on."""

    def tokens(self, layout: Layout) -> Tensor:
        """(N,) bool: trainable tokens of valid rollouts, which get an advantage and are whitened over."""
        return self.trainable & self.valid[layout.sequence]


@dataclass(frozen=True)
class Advantage:
    """An estimator's result."""

    values: Tensor
    """(N,): 0 outside the trainable tokens of valid rollouts."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Groups (or parts) whose advantage a rule set to 0, by reason."""


class Compute(Protocol):
    """The function of an estimator."""

    def __call__(self, token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe) -> Advantage:
        """Map token rewards (N,) to token advantages (N,)."""
        ...


ZeroSum = Literal["group", "group_tokens", "batch_tokens"]
Scale = Literal["invariant", "equivariant"]
Need = Literal["parts", "greedy", "values"]


@dataclass(frozen=True)
class Estimator:
    """A registered estimator. Property tests read the laws it declares, `explain` its formula."""

    name: str
    compute: Compute
    formula: str
    """Plain text; ``{eps}`` and the like stand for settings, ``{divisor}`` for what ``scale`` chooses."""
    zero_sum: ZeroSum | None = None
    """Over what advantages sum to 0: a group's rollouts, a group's tokens, the whole batch's tokens."""
    shift_invariant: bool = False
    """A constant added to all rewards of a group, parts and greedy ones too, changes nothing."""
    scale: Scale | None = None
    """All rewards times c > 0 change nothing (up to ``eps``), or give c times the advantages. With ``scale:
    none`` an ``invariant`` one is equivariant."""
    needs: Need | None = None
    """The optional signal without which it cannot work."""
    group_baseline: bool = False
    """Are rollouts compared within their group? Then fewer than two valid ones give 0."""
    keys: frozenset[str] = frozenset()
    """The objective's keys that it reads; ``kl.reward``: the rewards that a KL is subtracted from."""


ESTIMATORS: Registry[Estimator] = Registry("advantage estimator")
"""All estimators by the name that ``objective.estimator`` takes."""

F = TypeVar("F", bound=Compute)


def estimator(
    name: str,
    *,
    formula: str,
    zero_sum: ZeroSum | None = None,
    shift_invariant: bool = False,
    scale: Scale | None = None,
    needs: Need | None = None,
    group_baseline: bool = False,
    keys: Iterable[str] = ("kl.reward",),
) -> Callable[[F], F]:
    """Return a decorator that registers an estimator; :class:`Estimator` says what is declared."""

    def file(compute: F) -> F:
        entry = Estimator(
            name, compute, formula, zero_sum, shift_invariant, scale, needs, group_baseline, frozenset(keys)
        )
        ESTIMATORS.register(name)(entry)
        return compute

    return file


def outcomes(token_rewards: Tensor, layout: Layout, signals: Signals) -> Tensor:
    """Sum of each valid sequence's token rewards, 0 for invalid ones -> (S,)."""
    return layout.sum_by_sequence(token_rewards, signals.valid[layout.sequence])


def spread(per_sequence: Tensor, layout: Layout, signals: Signals) -> Tensor:
    """Give every trainable token of a valid rollout its rollout's value (S,) -> (N,)."""
    return only(per_sequence[layout.sequence], signals.tokens(layout))
