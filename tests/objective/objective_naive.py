"""The definitions in Python loops over lists, to hold the tensor code to. Nothing of assay.objective is used
here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from assay.recipe.schema import CorrectionRecipe, ObjectiveRecipe


@dataclass(frozen=True)
class Rollouts:
    """Token places of every rollout, and its group."""

    tokens: list[list[int]]
    groups: list[int]

    def siblings(self, group: int, valid: Sequence[bool]) -> list[int]:
        return [s for s, g in enumerate(self.groups) if g == group and valid[s]]


def whiten(values: dict[int, float]) -> dict[int, float]:
    if len(values) < 2:
        return dict.fromkeys(values, 0.0)
    mean = statistics.fmean(values.values())
    spread = math.sqrt(sum((v - mean) ** 2 for v in values.values()) / (len(values) - 1) + 1e-8)
    return {t: (v - mean) / spread for t, v in values.items()}


def normalised(scores: dict[int, float], settings: ObjectiveRecipe) -> dict[int, float]:
    """(r - mean) / (std + eps) of one group's scores by rollout; 0 of fewer than two or of too small a
    std."""
    if len(scores) < 2 or statistics.stdev(scores.values()) < settings.min_std:
        return dict.fromkeys(scores, 0.0)
    mean, std = statistics.fmean(scores.values()), statistics.stdev(scores.values())
    return {s: (r - mean) / (std + settings.eps) for s, r in scores.items()}


def rollout_advantages(
    rollouts: Rollouts,
    rewards: Sequence[float],
    valid: Sequence[bool],
    lengths: Sequence[int],
    settings: ObjectiveRecipe,
    greedy: Sequence[float],
) -> dict[int, float]:
    """Advantage of each valid rollout by the estimators that give all its tokens the same one."""
    out: dict[int, float] = {}
    everyone = [rewards[s] for s in range(len(rewards)) if valid[s]]
    for group in sorted(set(rollouts.groups)):
        members = rollouts.siblings(group, valid)
        mine = {s: rewards[s] for s in members}
        if settings.estimator == "remax":
            out |= {s: rewards[s] - greedy[s] for s in members}
        elif len(members) < 2:
            out |= dict.fromkeys(members, 0.0)
        elif settings.estimator in ("grpo", "passk"):
            spread = {"group": list(mine.values()), "batch": everyone, "none": [0.0]}[settings.scale]
            std = statistics.stdev(spread) if settings.scale != "none" else 1 - settings.eps
            mean = statistics.fmean(mine.values())
            best, second = sorted(mine.values(), reverse=True)[:2]
            winner = max(members, key=lambda s: (rewards[s], -s))
            for s in members:
                lead = best - second if s == winner else 0.0
                value = rewards[s] - mean if settings.estimator == "grpo" else lead
                out[s] = 0.0 if std < settings.min_std else value / (std + settings.eps)
        elif settings.estimator in ("dr_grpo", "reinforce++-baseline"):
            out |= {s: r - statistics.fmean(mine.values()) for s, r in mine.items()}
        elif settings.estimator == "rloo":
            out |= {s: r - statistics.fmean(rewards[o] for o in members if o != s) for s, r in mine.items()}
        else:
            assert settings.estimator == "opo"
            total = sum(lengths[s] for s in members)
            base = sum(lengths[s] * rewards[s] for s in members) / max(total, 1)
            out |= {s: r - base for s, r in mine.items()}
    return out


def gdpo(
    rollouts: Rollouts,
    parts: Sequence[Sequence[float]],
    weights: Sequence[float],
    valid: Sequence[bool],
    settings: ObjectiveRecipe,
) -> dict[int, float]:
    """Each rollout's weighted sum of its parts, each normalised in its group; not yet whitened."""
    out = {s: 0.0 for s in range(len(valid)) if valid[s]}
    for group in sorted(set(rollouts.groups)):
        for p, weight in enumerate(weights):
            scores = {s: parts[s][p] for s in rollouts.siblings(group, valid) if not math.isnan(parts[s][p])}
            for s, value in normalised(scores, settings).items():
                out[s] += weight * value
    return out


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """Advantages and returns of one sequence of the policy's tokens."""
    advantages, carried = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        after = values[t + 1] if t + 1 < len(rewards) else 0.0
        carried = rewards[t] + gamma * after - values[t] + gamma * lam * carried
        advantages[t] = carried
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def rejected_and_weights(
    logs: dict[int, float], rollouts: Rollouts, settings: CorrectionRecipe
) -> tuple[set[int], dict[int, float]]:
    """Rejected tokens, and the weight of every other one, from the log-weights of the tokens that have
    one."""
    rejected: set[int] = set()
    weights: dict[int, float] = {}
    for tokens in rollouts.tokens:
        mine = [t for t in tokens if t in logs]
        mean = math.exp(sum(logs[t] for t in mine) / len(mine)) if mine else 1.0
        low = -math.inf if settings.reject_low is None else settings.reject_low
        high = math.inf if settings.reject_high is None else settings.reject_high
        for t in mine:
            log = logs[t] if settings.level == "token" else sum(logs[u] for u in mine)
            weight = math.exp(min(max(log, -20.0), 20.0))
            outside = settings.kind == "mask" and not settings.low <= weight <= settings.high
            if outside or not low <= mean <= high:
                rejected.add(t)
            elif settings.kind == "truncate":
                weights[t] = min(weight, settings.high)
            else:
                weights[t] = 1.0 if settings.kind == "none" else weight
    return rejected, weights


def token_weight(counting: Sequence[int], rollouts: Rollouts, aggregation: str, constant: float) -> dict[int, float]:
    """The weight of each counting token by the aggregation's words."""
    chosen = set(counting)
    mine = [[t for t in tokens if t in chosen] for tokens in rollouts.tokens]
    sequences = sum(1 for tokens in mine if tokens)
    by_group: dict[int, int] = {}
    for tokens, group in zip(mine, rollouts.groups, strict=True):
        by_group[group] = by_group.get(group, 0) + len(tokens)
    groups = sum(1 for tokens in by_group.values() if tokens)
    out = {}
    for tokens, group in zip(mine, rollouts.groups, strict=True):
        for t in tokens:
            out[t] = {
                "token": 1 / len(chosen),
                "sequence": 1 / (sequences * len(tokens)),
                "sequence_sum": 1 / sequences,
                "constant": 1 / (sequences * constant),
                "prompt": 1 / (groups * by_group[group]),
            }[aggregation]
    return out


def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def token_losses(
    theta: dict[int, float],
    frozen: dict[int, float],
    anchor: dict[int, float],
    advantages: dict[int, float],
    rollouts: Rollouts,
    settings: ObjectiveRecipe,
) -> dict[int, float]:
    """The loss of each counting token; what a definition stops the gradient of is taken at ``frozen``."""
    out: dict[int, float] = {}
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    for tokens in rollouts.tokens:
        mine = [t for t in tokens if t in theta]
        if not mine:
            continue
        d = {t: clamp(theta[t] - anchor[t], -20, 20) for t in mine}
        d0 = {t: clamp(frozen[t] - anchor[t], -20, 20) for t in mine}
        s0 = math.exp(sum(d0.values()) / len(mine))
        sign = {t: math.copysign(1.0, advantages[t]) if advantages[t] else 0.0 for t in mine}
        bounded = [
            sign[t] * min(sign[t] * d[t], sign[t] * clamp(d[t], -settings.clip_low, settings.clip_high)) for t in mine
        ]
        geometric = math.exp(sum(bounded) / len(mine)) * sum(advantages[t] for t in mine) / len(mine)
        for t in mine:
            a = advantages[t]
            by_sequence = settings.ratio == "sequence"
            r = s0 * math.exp(theta[t] - frozen[t]) if by_sequence else math.exp(d[t])
            r0 = s0 if by_sequence else math.exp(d0[t])
            if settings.loss == "clip":
                gain = min(r * a, clamp(r, low, high) * a)
                out[t] = -(max(gain, settings.dual_clip * a) if settings.dual_clip and a < 0 else gain)
            elif settings.loss == "cispo":
                out[t] = -clamp(r0, low, high) * a * theta[t]
            elif settings.loss == "sapo":
                tau = settings.tau_pos if a > 0 else settings.tau_neg
                out[t] = -(4 / tau) / (1 + math.exp(-tau * (r - 1))) * a
            elif settings.loss == "geo_mean":
                out[t] = -geometric
            else:
                out[t] = -a * theta[t]
    return out


def kl_values(name: str, theta: dict[int, float], frozen: dict[int, float], ref: dict[int, float]) -> dict[int, float]:
    """KL per token; with a trailing + its value at ``frozen`` and k2's change from there."""

    def at(kind: str, point: dict[int, float], t: int) -> float:
        x = ref[t] - point[t]
        return {"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - x - 1, "abs": abs(x)}[kind]

    if not name.endswith("+"):
        return {t: at(name, theta, t) for t in theta}
    return {t: at(name[:-1], frozen, t) + at("k2", theta, t) - at("k2", frozen, t) for t in theta}
