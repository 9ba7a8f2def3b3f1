"""Peak memory of a training step beside TRL's GRPOTrainer: the step of step_vs_trl. Goal: at most 0.7 of TRL's.

The figure is the most memory that a side's process has resident at any time within a step, Assay's verifier processes
added to it. The first steps of each side are not counted: in the following ones the optimizer's state is there while
activations are. TRL has the settings that make it fastest (with micro-batches of half the size it
takes less and is some per cent slower: ``--microbatch 8``); memory that is freed goes back as it does by default.
"""

from __future__ import annotations

import grpo_work
import harness
from step_vs_trl import LEARNING_RATE
from workers import Worker


def peak_mb(worker: Worker) -> float:
    """The peak of a side's processes within its next step, in MB."""
    worker.forget_peak()
    worker.ask("step")
    return worker.peak_mb()


def main() -> None:
    """Measure both sides and print the ratio."""
    parser = harness.arguments(__doc__ or "")
    grpo_work.options(parser, prompts=16, samples=8, tokens=32)
    chosen = parser.parse_args()
    work = grpo_work.work_of(chosen, chosen.rounds + grpo_work.WARM, LEARNING_RATE)
    sides = grpo_work.take_turns(work, chosen, peak_mb, "MB", environment={})
    grpo_work.conclude("memory_vs_trl", "assay/trl", sides, grpo_work.shown(work, chosen), chosen)


if __name__ == "__main__":
    main()
