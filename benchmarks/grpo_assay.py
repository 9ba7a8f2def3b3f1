"""Assay's side of the training benchmarks: the loop that `assay train` runs, held before each step.

Run by the benchmarks (`grpo_work.start`) with the file that describes the work. Nothing is left out of a step: samples
are judged in worker processes, weights published and probed, metrics and rollouts written to the run folder.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from grpo_work import Work
from workers import Line, Paced

from assay.loop.assembly import Ingredients, sampled_groups
from assay.loop.harvest import Harvest
from assay.loop.source import GroupSource
from assay.loop.trainer import run_loop
from assay.policy.export import export
from assay.track.console import make_console

PHASES = ("generate", "score", "update", "publish")
NAME = "benchmark"


@dataclass(kw_only=True)
class HeldSource(GroupSource):
    """The source of a run, which waits before each step until it is asked for."""

    pause: Callable[[], None] = field(repr=False)

    async def next_groups(self) -> Harvest:
        """The groups of the next step, when it is asked for."""
        self.pause()
        return await super().next_groups()


def last_step(metrics: Path, samples: int) -> dict[str, Any]:
    """What the run has written of its last step."""
    said = json.loads(metrics.read_text(encoding="utf-8").splitlines()[-1])
    return {
        "tokens": round(said["rollout/tokens_mean"] * said["group/count"] * samples),
        "reward": said["reward/mean"],
        "padding": said["update/padding_share"],
        "phases": {name: said.get(f"time/{name}", 0.0) for name in PHASES},
    }


def main() -> None:
    """Run the loop until nobody asks for steps any more."""
    line = Line()
    said = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    work = Work(**{f.name: said[f.name] for f in fields(Work)})
    runs = Path(said["folder"]) / "runs"

    def held(ingredients: Ingredients) -> HeldSource:
        def save(folder: str) -> None:
            export(ingredients.policy.model, ingredients.tokenizer, Path(folder), "")

        pace = Paced(line, lambda _: last_step(runs / NAME / "metrics.jsonl", work.samples), {"save": save})
        return HeldSource(**vars(sampled_groups(ingredients)), pause=pace.pause)

    asyncio.run(run_loop(work.recipe(runs, NAME), False, make_console("plain"), held))


if __name__ == "__main__":
    main()
