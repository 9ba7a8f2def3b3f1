"""What a run comes to: the best evaluation, before and after, where the time and the tokens went."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from assay.loop.checkpoint import RunState

LIMIT = "limit/"
"""Before a phase's name, the key in ``RunState.totals`` of the seconds that its arithmetic takes at full rate."""

Evaluations = Mapping[int, Mapping[str, float]]
"""The metrics of each evaluation by its step; step 0 is the untrained model."""


def summarize(name: str, state: RunState, evaluations: Evaluations) -> dict[str, Any]:
    """What ``summary.json`` holds: ``before`` and ``after`` as of `estimates_of`, seconds per phase, tokens, speeds."""
    before, after = evaluations.get(0), evaluations.get(state.step) if state.step else None
    kinds = ("time/", LIMIT)
    return {
        "run": name,
        "steps": state.step,
        "before": None if before is None else estimates_of(before),
        "after": None if after is None else estimates_of(after),
        "best_step": best_step(evaluations),
        "seconds": {k[5:]: v for k, v in state.totals.items() if k.startswith("time/")},
        "tokens": {k: int(v) for k, v in state.totals.items() if not k.startswith(kinds)},
        "speed": speeds(state.totals),
    }


def speeds(totals: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Over the whole run, for each phase that did something: tokens per second, and the share of the machine's limit.

    >>> speeds({"time/generate": 4.0, "generated": 10.0, "limit/generate": 1.0, "forwarded": 0.0})
    {'generate': {'tokens_s': 2.5, 'limit_share': 0.25}}
    """
    found: dict[str, dict[str, float]] = {}
    for phase, tokens in (("generate", "generated"), ("update", "forwarded")):
        seconds, done = totals.get(f"time/{phase}", 0.0), totals.get(tokens, 0.0)
        if seconds and done:
            found[phase] = {"tokens_s": done / seconds, "limit_share": totals.get(LIMIT + phase, 0.0) / seconds}
    return found


def best_step(evaluations: Evaluations) -> int | None:
    """The training step with the best greedy accuracy, the earliest of equals; the untrained model does not compete.

    >>> best_step({0: {"eval/greedy": 0.9}, 2: {"eval/greedy": 0.5}, 4: {"eval/greedy": 0.5}}), best_step({})
    (2, None)
    """
    known = {s: row["eval/greedy"] for s, row in evaluations.items() if s and not math.isnan(row["eval/greedy"])}
    return max(sorted(known), key=lambda step: known[step], default=None)


def estimates_of(row: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The estimates of a line of evals.jsonl by name, each with value, low, high and n.

    >>> estimates_of({"eval/prompts": 9, "eval/greedy": 0.5, "eval/greedy_low": 0.2, "eval/greedy_high": 0.8})
    {'greedy': {'value': 0.5, 'low': 0.2, 'high': 0.8, 'n': 9}}
    """
    names = [k[5:] for k in row if k.startswith("eval/") and f"{k}_low" in row]
    return {
        name: {
            "value": row[f"eval/{name}"],
            "low": row[f"eval/{name}_low"],
            "high": row[f"eval/{name}_high"],
            "n": int(row["eval/prompts"]),
        }
        for name in names
    }


def added(totals: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Both, name by name.

    >>> added({"time/update": 1.0}, {"time/update": 0.5, "generated": 7})
    {'time/update': 1.5, 'generated': 7.0}
    """
    return dict(totals) | {name: totals.get(name, 0.0) + value for name, value in more.items()}
