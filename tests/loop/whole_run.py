"""An uninterrupted run with all that a resumed one could get wrong, and what it means that another equals it.

It is in deterministic mode and has replaced groups (dynamic sampling), an epoch's end, a learning-rate warm-up, an
adaptive KL controller with its reference model, several optimizer steps on a batch, evaluations between checkpoints, a
best checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loop_helpers import settings

from assay.track.glossary import is_timing
from assay.track.metrics import read_metrics


@dataclass(frozen=True)
class Whole:
    """The uninterrupted run."""

    place: Path
    folder: Path
    counts: dict[str, int]
    """How often each moment came."""


def values(place: Path, name: str, seed: int = 0) -> dict[str, Any]:
    """The recipe: 12 prompts, 3 to 6 of them a step."""
    return settings(
        place,
        rollout={"prompts_per_step": 3, "dynamic_sampling": True, "max_extra_groups": 3},
        objective={"kl": {"coefficient": 0.05, "controller": "adaptive", "target": 0.001, "horizon": 40}},
        update={"learning_rate": 3e-3, "warmup_steps": 5, "schedule": "linear", "epochs": 2, "minibatches": 2},
        eval={"every": 3, "samples": 2},
        checkpoint={"every": 2},
        run={"steps": 6, "deterministic": True, "name": name, "seed": seed},
    )


def assert_equal_runs(found: Path, expected: Path) -> None:
    """Logs (timings aside), rollouts, checkpoints and model are equal to the last bit, and nothing else lies about."""
    for log in ("metrics.jsonl", "evals.jsonl"):
        assert lines(found / log) == lines(expected / log), log
    assert summary(found) == summary(expected)
    mine, theirs = contents(found), contents(expected)
    assert sorted(mine) == sorted(theirs)
    assert [name for name in mine if mine[name] != theirs[name]] == []
    assert [p.name for p in (*found.glob(".*"), *found.glob("*/.*"))] == []


def lines(log: Path) -> list[dict[str, str]]:
    """A log without what a clock says; NaN equals itself."""
    return [{k: repr(v) for k, v in row.items() if not is_timing(k)} for row in read_metrics(log)]


def summary(folder: Path) -> dict[str, Any]:
    """What summary.json says, the clock and the name aside: tokens are counted over all resumptions."""
    told = json.loads((folder / "summary.json").read_text())
    assert all(seconds > 0 for seconds in told["seconds"].values())
    return {k: sorted(v) if k in ("seconds", "speed") else v for k, v in told.items() if k != "run"}


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of rollouts, weights and states, by file name."""
    files = [*folder.glob("rollouts/*"), *folder.glob("model/*"), *folder.glob("checkpoints/*/*")]
    kept = {str(p.relative_to(folder)): p.read_bytes() for p in files if p.suffix in (".parquet", ".safetensors")}
    for path in folder.glob("checkpoints/*/state.json"):
        state = json.loads(path.read_text())
        del state["totals"]
        kept[str(path.relative_to(folder))] = json.dumps(state).encode()
    return kept
