"""Peak memory of a training step beside TRL's GRPOTrainer: the step of step_vs_trl. Goal: at most 0.7 of TRL's.

Each round starts each side anew and has it do two steps: in the second the optimizer's state is there while activations
are. The figure is the most memory that the side's process had resident at any time since its start, Assay's verifier
processes added to it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import grpo_work
import harness
from step_vs_trl import LEARNING_RATE

STEPS = 2


def peak_mb(side: str, work: grpo_work.Work) -> float:
    """The peak of a fresh process of that side after its steps, in MB."""
    with (
        tempfile.TemporaryDirectory() as folder,
        grpo_work.start(side, grpo_work.write(work, Path(folder))) as worker,
    ):
        for _ in range(STEPS):
            worker.ask("step")
        return worker.peak_mb()


def main() -> None:
    """Measure both sides and print the ratio."""
    parser = harness.arguments(__doc__ or "", rounds=2)
    grpo_work.options(parser, prompts=16, samples=8, tokens=32)
    chosen = parser.parse_args()
    work = grpo_work.work_of(chosen, STEPS, LEARNING_RATE)

    def fresh(side: str) -> Callable[[int], float]:
        return lambda _: peak_mb(side, work)

    sides = harness.alternate({side: fresh(side) for side in grpo_work.sides_of(chosen)}, chosen.rounds, "MB")
    grpo_work.conclude("memory_vs_trl", "assay/trl", sides, grpo_work.shown(work, chosen), chosen)


if __name__ == "__main__":
    main()
