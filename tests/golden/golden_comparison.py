"""Compare the objective with a file of reference numbers, key by key; parameters are read out of the keys.

A key that nothing here knows raises ``KeyError``: no number of the file is passed over unseen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from assay.objective.advantage import ESTIMATORS, Signals, gae
from assay.objective.aggregation import Totals, token_weights
from assay.objective.correction import correct, log_weights
from assay.objective.kl import kl
from assay.objective.layout import Layout
from assay.objective.objective import loss, plan, step_weights
from assay.objective.ratio import log_ratio
from assay.objective.step import Step, outcome_rewards
from assay.recipe.schema import CorrectionRecipe, ObjectiveRecipe

TOLERANCE = 1e-7

AGGREGATIONS = {
    "token-mean": "token",
    "seq-mean-token-mean": "sequence",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "constant",
}
ADVANTAGES = {
    "grpo_std": {"estimator": "grpo"},
    "grpo_mean_only": {"estimator": "dr_grpo"},
    "rloo": {"estimator": "rloo"},
    "opo": {"estimator": "opo"},
    "reinforce_plus_plus_baseline": {"estimator": "reinforce++-baseline"},
    "reinforce_plus_plus": {"estimator": "reinforce++"},
    "grpo_passk": {"estimator": "passk"},
}
NUMBER = r"([0-9.]+(?:e[+-]?[0-9]+)?)"
LOSSES: dict[str, Callable[..., dict[str, Any]]] = {
    rf"ppo_clip_{NUMBER}_{NUMBER}_dual{NUMBER}": lambda lo, hi, c: {
        "loss": "clip", "clip_low": lo, "clip_high": hi, "dual_clip": c
    },
    rf"gspo_{NUMBER}_{NUMBER}": lambda lo, hi: {
        "loss": "clip", "ratio": "sequence", "clip_low": lo, "clip_high": hi
    },
    rf"cispo_{NUMBER}_{NUMBER}": lambda lo, hi: {"loss": "cispo", "clip_low": lo, "clip_high": hi},
    rf"sapo_{NUMBER}_{NUMBER}": lambda pos, neg: {"loss": "sapo", "tau_pos": pos, "tau_neg": neg},
    rf"geo_mean_{NUMBER}_{NUMBER}": lambda lo, hi: {"loss": "geo_mean", "clip_low": lo, "clip_high": hi},
}  # fmt: skip
CORRECTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    rf"tis_(token|sequence)_{NUMBER}": lambda level, cap: {"kind": "truncate", "level": level, "high": cap},
    rf"icepop_(token|sequence)_{NUMBER}_{NUMBER}": lambda level, lo, hi: {
        "kind": "mask", "level": level, "low": lo, "high": hi
    },
}  # fmt: skip


def parse(key: str, patterns: dict[str, Callable[..., dict[str, Any]]]) -> dict[str, Any]:
    """Settings that a key of the file stands for."""
    for pattern, settings in patterns.items():
        found = re.fullmatch(pattern, key)
        if found:
            return settings(*found.groups())
    raise KeyError(f"no test knows what {key!r} is")


@dataclass
class Comparison:
    """What was compared, and what differed."""

    numbers: int = 0
    entries: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, name: str, ours: Tensor, theirs: Tensor) -> None:
        """Compare two arrays of one shape to 1e-7, relative where the numbers are above 1."""
        assert ours.shape == theirs.shape, name
        assert ours.dtype == theirs.dtype == torch.float64, name
        gap = (ours - theirs).abs() / theirs.abs().clamp(min=1)
        self.numbers, self.entries = self.numbers + gap.numel(), self.entries + 1
        if not bool((gap <= TOLERANCE).all()):  # a NaN is a difference too
            self.differences.append(f"{name}: off by {gap.max().item():.3g}")


class Golden:
    """A file of reference numbers, its padded rows laid out flat."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.mask = torch.tensor(content["mask"], dtype=torch.float64).bool()
        names = sorted(set(content["uid"]))
        groups = [names.index(uid) for uid in content["uid"]]
        self.layout = Layout.of_lengths(self.mask.sum(1).tolist(), groups)
        self.everything = torch.ones(self.layout.n_tokens, dtype=torch.bool)
        self.valid = torch.ones(self.layout.n_sequences, dtype=torch.bool)
        self.constant = int(re.search(r"(\d+)$", content["aggregate_note"]).group(1))  # type: ignore[union-attr]

    def flat(self, padded: list[list[float]]) -> Tensor:
        """(B, T) as the file has it -> (N,)."""
        return torch.tensor(padded, dtype=torch.float64)[self.mask]

    def padded(self, flat: Tensor) -> Tensor:
        """(N,) -> (B, T), 0 in the padding."""
        return torch.zeros(self.mask.shape, dtype=torch.float64).masked_scatter(self.mask, flat)

    def step(self, rewards: list[float]) -> Step:
        """The rollouts with one kind of rewards."""
        return Step(
            layout=self.layout,
            trainable=self.everything,
            valid=self.valid,
            rewards=torch.tensor(rewards, dtype=torch.float64),
            truncated=~self.valid,
            sampler_logprobs=self.flat(self.content["rollout_logp"]),
        )


def compare(content: dict[str, Any]) -> Comparison:
    """Compare every entry of a golden file."""
    golden, result = Golden(content), Comparison()
    for entries in (advantages, losses, kls, aggregations, corrections):
        for name, ours, theirs in entries(golden):
            result.add(name, ours, theirs)
    return result


Entry = tuple[str, Tensor, Tensor]


def advantages(golden: Golden) -> Iterator[Entry]:
    """Every estimator on every kind of rewards, padding included (ours is 0 there) where the peer clears
    it."""
    signals = Signals(golden.valid, golden.everything, values=golden.flat(golden.content["values"]))
    for kind, entries in golden.content.get("advantage", {}).items():
        rewards = outcome_rewards(golden.step(golden.content[f"rewards_{kind}"]))
        critics = [re.fullmatch(rf"gae_{NUMBER}_{NUMBER}_whitened", key) for key in entries]
        known = ADVANTAGES | {
            m[0]: {"estimator": "gae", "gamma": float(m[1]), "lam": float(m[2])} for m in critics if m
        }
        for key, expected in entries.items():
            name = f"advantage.{kind}.{key}"
            if key == "gae_returns":
                gamma, lam = next((float(m[1]), float(m[2])) for m in critics if m)
                ours = gae(rewards, signals.values, golden.layout, golden.everything, gamma, lam)[1]  # type: ignore[arg-type]
                yield name, ours, golden.flat(expected)
                continue
            settings = ObjectiveRecipe(**known[key])
            ours = ESTIMATORS[settings.estimator].compute(rewards, golden.layout, signals, settings).values
            if settings.estimator == "gae":
                yield name, ours, golden.flat(expected)
            else:
                yield name, golden.padded(ours), torch.tensor(expected, dtype=torch.float64)


def losses(golden: Golden) -> Iterator[Entry]:
    """Value, gradient and metrics of every loss, through the same assembly that training uses."""
    content, layout = golden.content, golden.layout
    anchor, advantage = golden.flat(content["old_logp"]), golden.flat(content["advantages_in"])
    for key, expected in content.get("loss", {}).items():
        name, aggregation, *which = key.split("|")
        parsed = parse(name, LOSSES) | {"aggregation": AGGREGATIONS[aggregation]}
        settings = ObjectiveRecipe(**parsed, constant_tokens=golden.constant)
        logprobs = golden.flat(content[which[0] if which else "logp"]).requires_grad_()
        step = golden.step([0.0] * layout.n_sequences)
        chosen = plan(step, settings, advantage)
        weights = step_weights(chosen, layout, settings, max_tokens=golden.constant)
        output = loss(
            settings, logprobs, layout, advantages=advantage, correction=chosen.correction,
            weights=weights.weights, counts=chosen.counts, anchor_logprobs=anchor,
        )  # fmt: skip
        output.loss.backward()
        yield f"loss.{key}.loss", output.loss.detach(), scalar(expected["loss"])
        grad = golden.padded(logprobs.grad)  # type: ignore[arg-type]
        yield f"loss.{key}.grad", grad, torch.tensor(expected["grad_logp"], dtype=torch.float64)
        drift = -log_ratio(logprobs.detach(), anchor, golden.everything).mean()
        yield f"loss.{key}.ppo_kl", drift, scalar(expected["metrics"]["actor/ppo_kl"])
        if settings.loss != "geo_mean":
            metrics = (output.tally + weights.tally).values()
            clipped = metrics["update/clip_low_share"] + metrics["update/clip_high_share"]
            yield f"loss.{key}.clipfrac", scalar(clipped), scalar(expected["metrics"]["actor/pg_clipfrac"])
            dual = scalar(expected["metrics"]["actor/pg_clipfrac_lower"])
            yield f"loss.{key}.dual", scalar(metrics["update/dual_clip_share"]), dual


def kls(golden: Golden) -> Iterator[Entry]:
    """Value per token and gradient of the sum of every KL estimate."""
    ref = golden.flat(golden.content["ref_logp"])
    for name, expected in golden.content.get("kl", {}).items():
        logprobs = golden.flat(golden.content["logp"]).requires_grad_()
        value = kl(name, logprobs, ref)
        value.sum().backward()
        yield f"kl.{name}.value", value.detach(), golden.flat(expected["value"])
        grad = golden.padded(logprobs.grad)  # type: ignore[arg-type]
        yield f"kl.{name}.grad", grad, torch.tensor(expected["grad_logp_of_masked_sum"], dtype=torch.float64)


def aggregations(golden: Golden) -> Iterator[Entry]:
    """Every aggregation of one array."""
    values, layout = golden.flat(golden.content["aggregate_input"]), golden.layout
    totals = Totals.count(golden.everything, layout)
    for name, expected in golden.content.get("aggregate", {}).items():
        weights = token_weights(AGGREGATIONS[name], golden.everything, layout, totals, golden.constant, torch.float64)
        yield f"aggregate.{name}", (weights * values).sum(), scalar(expected)


def corrections(golden: Golden) -> Iterator[Entry]:
    """Every importance weight, per token."""
    anchor, sampler = golden.flat(golden.content["old_logp"]), golden.flat(golden.content["rollout_logp"])
    logs = log_weights(anchor, sampler, golden.everything)
    for key, expected in golden.content.get("correction", {}).items():
        settings = CorrectionRecipe(**parse(key, CORRECTIONS))
        ours = correct(logs, golden.everything, golden.layout, settings).weights
        yield f"correction.{key}", ours, golden.flat(expected)


def scalar(number: float) -> Tensor:
    """A number as a float64 scalar tensor."""
    return torch.tensor(number, dtype=torch.float64)
