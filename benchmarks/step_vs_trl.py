"""One training step beside TRL's GRPOTrainer: 16 prompts, 8 rollouts each, at most 32 tokens. Goal: 5 times as fast.

Both sides do whole steps in turn, the other one asleep: sample, judge, update, and for Assay publish, probe and record.
The learning rate is next to nothing, so that the answers stay as long as they are and rounds compare like with like.
What the work is: grpo_work.py; TRL's settings: grpo_trl.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import grpo_work
import harness
from workers import Worker

LEARNING_RATE = 1e-9


def details(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Medians over a side's steps: tokens sampled, seconds of each phase, and the padding among the update's tokens."""
    found = {"tokens": median(s["tokens"] for s in steps)}
    found |= {f"{name} s": median(s["phases"][name] for s in steps) for name in steps[0]["phases"]}
    if "padding" in steps[0]:
        found["padding %"] = 100 * median(s["padding"] for s in steps)
    return found


def main() -> None:
    """Measure both sides and print the ratio."""
    parser = harness.arguments(__doc__ or "")
    grpo_work.options(parser, prompts=16, samples=8, tokens=32)
    chosen = parser.parse_args()
    work = grpo_work.work_of(chosen, chosen.rounds + grpo_work.WARM, LEARNING_RATE)
    steps: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def seconds(worker: Worker) -> float:
        steps[worker.name].append(worker.ask("step"))
        return steps[worker.name][-1]["seconds"]

    sides = grpo_work.take_turns(work, chosen, seconds, "s")
    found = {side: details(done) for side, done in steps.items()}
    grpo_work.conclude("step_vs_trl", "trl/assay", sides, grpo_work.shown(work, chosen), chosen, found)


if __name__ == "__main__":
    main()
