"""Drift: how far the policy has moved from the one that samples, measured before each publish, and what follows.

Three measures, each optional: the KL on a fixed probe set, the effective sample size of the step's weights, and how
unusual the gradient norm is. Each has a threshold and an action. `decide` is a function of readings, thresholds and
state alone; the `DriftMonitor` measures and remembers.

The KL is exact at each probe token: KL(q, p) = sum over the vocabulary of q (log q - log p), q the policy that samples
and p the one that moved, averaged over tokens of answers that the first policy gave. No sampling noise is in it, so
small thresholds mean something; that the answers are the first policy's own makes it a fixed yardstick, and blind to
what is never said there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import Tensor

from assay.errors import AssayError
from assay.policy.policy import Policy, Update
from assay.recipe.schema import DriftAction, DriftRecipe
from assay.records import Group

Measure = Literal["kl", "ess", "surprise"]

ACTIONS: tuple[DriftAction, ...] = ("warn", "publish", "sync", "rollback")
"""From the mildest to the severest; each but the first includes a publish."""
FIRST_NORMS = 8
"""Gradient norms that must be known before one can surprise."""
MEMORY = 0.95
"""Of the running mean and variance of the log norm: the weight of the past once 20 norms are known."""
LEAST_SPREAD = 0.1
"""Least standard deviation of the log norm: below 10 % no change of a norm is a surprise by being regular before."""
MAX_ROLLBACKS = 3
"""Rollbacks to the same checkpoint that a run survives."""


@dataclass(frozen=True)
class Readings:
    """What was measured of a step before its publish; ``None`` without a threshold, or where nothing was found."""

    kl: float | None = None
    """Nats per token, of the policy that samples from the one that moved."""
    ess: float | None = None
    """Share: effective sample size of the sequence weights."""
    surprise: float | None = None
    """Standard deviations of the log gradient norm above its running mean."""


@dataclass(frozen=True)
class NormMemory:
    """Running mean and variance of the log gradient norm, surprises trimmed; part of a checkpoint."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def surprise(self, norm: float) -> float | None:
        """(log norm - mean) / standard deviation; ``None`` before enough is known, or of a norm that is no number > 0.

        >>> memory = NormMemory(count=20, mean=0.0, variance=0.04)
        >>> round(memory.surprise(math.e), 2), NormMemory().surprise(1.0)
        (5.0, None)
        """
        if self.count < FIRST_NORMS or not (math.isfinite(norm) and norm > 0):
            return None
        return (math.log(norm) - self.mean) / max(math.sqrt(self.variance), LEAST_SPREAD)

    def after(self, norm: float) -> NormMemory:
        """The memory with one norm more; beyond three deviations it counts as three: one surprise hides no other."""
        if not (math.isfinite(norm) and norm > 0):
            return self
        value = math.log(norm)
        if self.count >= FIRST_NORMS:
            reach = 3 * max(math.sqrt(self.variance), LEAST_SPREAD)
            value = min(max(value, self.mean - reach), self.mean + reach)
        share = max(1 / (self.count + 1), 1 - MEMORY)
        away = value - self.mean
        return NormMemory(self.count + 1, self.mean + share * away, (1 - share) * (self.variance + share * away * away))


@dataclass(frozen=True)
class DriftState:
    """What the monitor carries from step to step; part of a checkpoint (`dataclasses.asdict` is JSON)."""

    norms: NormMemory = NormMemory()
    synchronous: bool = False
    """Has the run dropped to staleness 0? It stays there to its end."""
    good: int | None = None
    """Step of the newest checkpoint that a step without a crossing followed: where a rollback leads."""
    restored: int | None = None
    """Step of the last rollback: the checkpoint written then holds the weights of ``good``."""
    rollbacks: int = 0
    """How often the run went back to that checkpoint."""

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> DriftState:
        """The state that `dataclasses.asdict` made ``kept`` of; of nothing the first one.

        >>> state = DriftState(NormMemory(3, 0.5, 0.1), good=10)
        >>> DriftState.of(asdict(state)) == state, DriftState.of({}) == DriftState()
        (True, True)
        """
        return cls(**{**kept, "norms": NormMemory(**kept["norms"])}) if kept else cls()

    def after(self, step: int, decision: Decision, checkpoint: int | None) -> DriftState:
        """The state once ``decision`` is carried out after ``step``; ``checkpoint`` is the step of the newest one.

        A checkpoint is good when a step without a crossing followed it; one written by a rollback says nothing new.
        """
        if decision.action == "rollback":
            return replace(self, rollbacks=self.rollbacks + 1, restored=step)
        if decision.action == "sync":
            return replace(self, synchronous=True)
        if decision.crossings or checkpoint is None or checkpoint in (self.good, self.restored):
            return self
        return replace(self, good=checkpoint, rollbacks=0)


@dataclass(frozen=True)
class Crossing:
    """A threshold that was crossed."""

    measure: Measure
    value: float
    threshold: float
    action: DriftAction

    def line(self) -> str:
        """What was seen, and what is done.

        >>> Crossing("ess", 0.21, 0.3, "publish").line()
        'drift: effective sample size 0.21 is below drift.ess = 0.3: publish'
        """
        names = {"kl": "KL to the sampling policy", "ess": "effective sample size", "surprise": "gradient surprise"}
        side = "below" if self.measure == "ess" else "above"
        what = f"{names[self.measure]} {self.value:.3g} is {side} drift.{self.measure} = {self.threshold:g}"
        return f"drift: {what}: {self.action}"


@dataclass(frozen=True)
class Decision:
    """What is to be done about a step's readings."""

    crossings: tuple[Crossing, ...] = ()

    @property
    def action(self) -> DriftAction | None:
        """The severest of the crossings' actions."""
        return next((a for a in reversed(ACTIONS) if any(c.action == a for c in self.crossings)), None)

    @property
    def publishes(self) -> bool:
        """Must the weights be handed over now, whatever ``sync.every`` says?"""
        return self.action in ("publish", "sync", "rollback")


def decide(readings: Readings, thresholds: DriftRecipe) -> Decision:
    """The thresholds that the readings cross, in the order kl, ess, surprise. A reading that is NaN crosses.

    >>> decide(Readings(kl=0.3, ess=0.8), DriftRecipe(kl=0.1, kl_action="rollback", ess=0.5)).action
    'rollback'
    """
    found = []
    for measure in ("kl", "ess", "surprise"):
        value, threshold = getattr(readings, measure), getattr(thresholds, measure)
        if value is None or threshold is None:
            continue
        sound = value >= threshold if measure == "ess" else value <= threshold
        if not sound:
            found.append(Crossing(measure, value, threshold, getattr(thresholds, f"{measure}_action")))
    return Decision(tuple(found))


def publish_due(
    every: int | Literal["drift"], version: int, engine: int, max_staleness: int | None, decision: Decision
) -> bool:
    """Are the weights of ``version`` to be published now, to an engine that has version ``engine``?

    Each ``every`` versions, when the drift says so, and before the engine is further behind than staleness allows.

    >>> [publish_due("drift", version, 10, 2, Decision()) for version in (11, 12, 13)]
    [False, False, True]
    """
    late = max_staleness is not None and version - engine > max_staleness
    return decision.publishes or late or (every != "drift" and version % every == 0)


def kl_of(sampling: Tensor, moved: Tensor) -> float:
    """Mean over tokens of KL(q, p) = sum of q (log q - log p), from log-probs (n, V) of q and p."""
    return float((sampling.exp() * (sampling - moved)).sum(-1).mean())


class DriftMonitor:
    """Measures before each publish; remembers the distributions of the policy that samples.

    ``probe``: groups whose tokens the KL is measured on; needed with a KL threshold only. Memory: two arrays of probe
    tokens by vocabulary.
    """

    def __init__(self, settings: DriftRecipe, probe: Sequence[Group] = (), state: DriftState | None = None) -> None:
        self.settings = settings
        self.state = state or DriftState()
        self._probe = probe
        self._sampling: Tensor | None = None
        self._moved: Tensor | None = None

    def published(self, policy: Policy) -> None:
        """The engine samples from the policy's present weights from now on."""
        if self._probe:
            moved, self._moved = self._moved, None
            self._sampling = policy.distributions(self._probe) if moved is None else moved

    def measure(self, policy: Policy, update: Update) -> Readings:
        """Readings of a step whose update moved the policy, before it is published."""
        kl = None
        if self._sampling is not None:
            self._moved = policy.distributions(self._probe)
            kl = kl_of(self._sampling, self._moved)
        norm = update.metrics.get("update/grad_norm", math.nan)
        surprise = self.state.norms.surprise(norm) if self.settings.surprise is not None else None
        self.state = replace(self.state, norms=self.state.norms.after(norm))
        ess = update.metrics.get("update/ess_sequence") if self.settings.ess is not None else None
        return Readings(kl, ess, surprise)

    @property
    def can_roll_back(self) -> bool:
        """Is there a threshold whose action is a rollback?"""
        measures = ("kl", "ess", "surprise")
        chosen = {getattr(self.settings, f"{m}_action") for m in measures if getattr(self.settings, m) is not None}
        return "rollback" in chosen

    def refuse_endless_rollbacks(self) -> None:
        """Raise AssayError when the run has gone back to the same checkpoint so often that it leads nowhere."""
        if self.state.rollbacks >= MAX_ROLLBACKS:
            raise AssayError(
                f"the policy drifted again after {MAX_ROLLBACKS} rollbacks to the checkpoint of step "
                f"{self.state.good or 0}: lower update.learning_rate or raise the drift thresholds in a new run"
            )

    def settle(self, step: int, decision: Decision, checkpoint: int | None) -> None:
        """Carry on from ``step``, the decision carried out: see `DriftState.after`."""
        if decision.action == "rollback":
            self._moved = None  # measured of weights that are gone
        self.state = self.state.after(step, decision, checkpoint)

    def metrics(self, readings: Readings, decision: Decision) -> dict[str, float]:
        """What is logged of a step: the readings there are, and the place of the action in `ACTIONS`, from 1."""
        if self.settings == DriftRecipe():
            return {}
        found: dict[str, float] = {f"drift/{k}": v for k, v in asdict(readings).items() if v is not None}
        found["drift/action"] = 0 if decision.action is None else 1 + ACTIONS.index(decision.action)
        return found | {"drift/rollbacks": self.state.rollbacks}
