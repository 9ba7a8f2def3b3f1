"""What the recipe knows of the objective's estimators and losses: which keys each reads, and what each needs.

The recipe lies beneath the objective and cannot ask its registries; a test holds these tables to them. A name
that is not listed here is somebody's own: everything is then taken to be read, and nothing is refused on its
account.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class EstimatorFacts:
    """One advantage estimator, as the checks need it."""

    group_baseline: bool
    """Are rollouts compared within their group? Then a group needs two."""
    reads: frozenset[str] = frozenset()
    """Keys beneath ``objective`` that it reads."""
    token_rewards: bool = True
    """Does it see the token rewards, from which a KL in the reward is subtracted?"""
    lacks: str = ""
    """What it needs that is not built, or nothing."""


_DIVISOR = frozenset({"scale", "eps", "min_std"})

ESTIMATORS: Mapping[str, EstimatorFacts] = {
    "grpo": EstimatorFacts(True, _DIVISOR),
    "dr_grpo": EstimatorFacts(True),
    "rloo": EstimatorFacts(True),
    "opo": EstimatorFacts(True),
    "passk": EstimatorFacts(True, _DIVISOR),
    "gdpo": EstimatorFacts(True, frozenset({"eps", "min_std"}), token_rewards=False),
    "none": EstimatorFacts(False),
    "reinforce++": EstimatorFacts(False, frozenset({"gamma"})),
    "reinforce++-baseline": EstimatorFacts(True),
    "remax": EstimatorFacts(False, lacks="a greedy rollout of every prompt"),
    "gae": EstimatorFacts(False, frozenset({"gamma", "lam"}), lacks="a critic"),
}
"""Estimators by the name that ``objective.estimator`` takes."""

ESTIMATOR_KEYS: frozenset[str] = frozenset({"scale", "eps", "min_std", "gamma", "lam"})
"""Keys beneath ``objective`` that only estimators read."""

LOSSES: Mapping[str, frozenset[str]] = {
    "clip": frozenset({"ratio", "clip_low", "clip_high", "dual_clip"}),
    "cispo": frozenset({"ratio", "clip_low", "clip_high"}),
    "sapo": frozenset({"ratio", "tau_pos", "tau_neg"}),
    "geo_mean": frozenset({"clip_low", "clip_high"}),
    "reinforce": frozenset(),
}
"""The keys beneath ``objective`` that each policy loss reads, by the name that ``objective.loss`` takes."""

LOSS_KEYS: frozenset[str] = frozenset({"ratio", "clip_low", "clip_high", "dual_clip", "tau_pos", "tau_neg"})
"""Keys beneath ``objective`` that only policy losses read."""


def reads_of_estimator(name: str) -> frozenset[str]:
    """The estimator keys that ``name`` reads; all of them for a name that is not listed."""
    return ESTIMATORS[name].reads if name in ESTIMATORS else ESTIMATOR_KEYS


def reads_of_loss(name: str) -> frozenset[str]:
    """The loss keys that ``name`` reads; all of them for a name that is not listed."""
    return LOSSES.get(name, LOSS_KEYS)
