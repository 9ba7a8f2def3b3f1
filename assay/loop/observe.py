"""Numbers of a step, read off its groups: pure functions from a harvest to named metrics (see docs/metrics.md)."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import torch

from assay.loop.harvest import Harvest
from assay.recipe.derived import WATCH
from assay.records import Group, Rollout, Verdict, is_right, share
from assay.rollout.engine import Stats
from assay.track.text import count_numbers


def harvest_metrics(harvest: Harvest) -> dict[str, float]:
    """Rewards, verdicts, group make-up and lengths of a step, over everything generated.

    What dynamic sampling set aside is included: only then do they say how good the policy is. (The groups that it keeps
    are mixed ones, whose mean reward stays near the middle however much is learned.) A number that nothing was measured
    for is left out.
    """
    pairs = [(r, v) for g in harvest.generated for r, v in zip(g.rollouts, g.verdicts, strict=True)]
    return (
        _group_metrics(harvest)
        | _reward_metrics([v for _, v in pairs], [v for g in harvest.replaced for v in g.verdicts])
        | _rollout_metrics(harvest.generated, pairs)
        | {"rollout/retried": harvest.retried}
        | _cancelled_metrics(harvest, [len(r) for r, _ in pairs])
        | (_staleness_metrics(harvest) if harvest.ahead else {})
        | _kv_metrics(harvest.sampling)
    )


def _kv_metrics(stats: Stats) -> dict[str, float]:
    return {"mismatch/kv_gap": stats.kv_gap / stats.kv_measured} if stats.kv_measured else {}


def _group_metrics(harvest: Harvest) -> dict[str, float]:
    kinds = Counter(g.kind for g in harvest.generated)
    total = max(1, len(harvest.generated))
    return {
        **{f"group/{kind}": kinds[kind] / total for kind in ("all_fail", "mixed", "all_pass", "no_signal")},
        "group/count": len(harvest.groups),
        "group/extra": harvest.extra,
        "group/unused": len(harvest.unused),
    }


def _reward_metrics(verdicts: Sequence[Verdict], replaced: Sequence[Verdict]) -> dict[str, float]:
    """``replaced`` verdicts are counted by outcome, though their rollouts were sampled anew: a verifier that fails now
    and then is to be seen."""
    if not verdicts:
        return {}
    given = [*verdicts, *replaced]
    valid = [v for v in verdicts if v.reward is not None]
    found: dict[str, float] = {f"verdict/{o}": n for o, n in Counter(v.outcome for v in given).items()}
    found["reward/valid_share"] = share([v.valid for v in given])
    rewards = [v.reward for v in valid if v.reward is not None]
    if rewards:
        found["reward/mean"] = fmean(rewards)
        found["reward/std"] = stdev(rewards) if len(rewards) > 1 else 0.0
        found["reward/correct"] = fmean(_correctness(v) for v in valid)
    parts: dict[str, list[float]] = {}
    for verdict in valid:
        for name, score in verdict.parts.items():
            if score is not None:
                parts.setdefault(name, []).append(score)
    return found | {_part_metric(name): fmean(scores) for name, scores in parts.items()}


def _part_metric(name: str) -> str:
    """``reward/part/NAME``, of a watched verifier ``reward/watch/NAME``.

    >>> _part_metric("math"), _part_metric("watch/strict")
    ('reward/part/math', 'reward/watch/strict')
    """
    return f"reward/{name}" if name.startswith(WATCH) else f"reward/part/{name}"


def _rollout_metrics(groups: Sequence[Group], pairs: Sequence[tuple[Rollout, Verdict]]) -> dict[str, float]:
    if not pairs:
        return {}
    lengths = [len(r) for r, _ in pairs]
    found: dict[str, float] = {
        "rollout/tokens_mean": fmean(lengths),
        "rollout/tokens_max": max(lengths),
        "rollout/truncated_share": share([r.finish == "length" for r, _ in pairs]),
        "rollout/answers_mean": fmean(count_numbers(r.text) for r, _ in pairs),
        "rollout/duplicate_share": _duplicates(groups),
    }
    forced = [any(s.kind == "forced" for s in r.segments) for r, _ in pairs]
    if any(forced):
        found["rollout/forced_share"] = share(forced)
    for name, side in (("correct", True), ("wrong", False)):
        of_side = [len(r) for r, v in pairs if v.valid and is_right(v) == side]
        if of_side:
            found[f"rollout/tokens_mean_{name}"] = fmean(of_side)
    return found


def _cancelled_metrics(harvest: Harvest, kept: Sequence[int]) -> dict[str, float]:
    """What oversampling cut off, and by how much that shortens what is trained on: at least, since a rollout that was
    cut off would have grown."""
    if not harvest.cancelled or not kept:
        return {}
    every = [*kept, *(len(r) for r in harvest.cancelled)]
    return {
        "rollout/cancelled_share": len(harvest.cancelled) / len(every),
        "rollout/cancelled_tokens": sum(len(r) for r in harvest.cancelled),
        "rollout/length_bias": fmean(kept) - fmean(every),
    }


def _staleness_metrics(harvest: Harvest) -> dict[str, float]:
    """Ages of the rollouts that are trained on, by their oldest token, and what is in the making beside them."""
    versions = [r.oldest_version for g in harvest.groups for r in g.rollouts]
    ages = [harvest.version - v for v in versions if v is not None]
    found: dict[str, float] = {
        "staleness/running": harvest.running,
        "staleness/waiting": harvest.waiting,
        "staleness/due": harvest.due,
    }
    if ages:
        found |= {"staleness/mean": fmean(ages), "staleness/max": max(ages)}
    return found


def _duplicates(groups: Sequence[Group]) -> float:
    repeated = [count - 1 for g in groups for count in Counter(r.text for r in g.rollouts).values()]
    return sum(repeated) / max(1, sum(len(g.rollouts) for g in groups))


def _correctness(verdict: Verdict) -> float:
    score = verdict.correct if verdict.correct is not None else verdict.reward
    return 0.0 if score is None else score


def generated_tokens(harvest: Harvest) -> int:
    """Tokens of every completion of the step, also of those not used or sampled anew; given ones too."""
    return sum(len(r) for g in (*harvest.generated, *harvest.replaced) for r in g.rollouts)


def speed_metrics(
    times: Mapping[str, float], generated: int, forwarded: float, at_limit: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Tokens per second of generation and update, their shares of the limit, and the peak memory so far.

    ``at_limit``: by phase, the seconds that its arithmetic would take at the machine's full rate.
    """
    found = {}
    if times.get("time/generate"):
        found["speed/generate_tokens_s"] = generated / times["time/generate"]
    if times.get("time/update") and forwarded:
        found["speed/update_tokens_s"] = forwarded / times["time/update"]
    for phase, seconds in (at_limit or {}).items():
        if seconds and times.get(f"time/{phase}"):
            found[f"speed/{phase}_limit_share"] = seconds / times[f"time/{phase}"]
    return found | {"memory/peak_mb": peak_memory_mb()}


def peak_memory_mb() -> float:
    """Peak memory in MB: of the accelerator where there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
