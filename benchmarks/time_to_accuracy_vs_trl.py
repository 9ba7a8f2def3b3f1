"""Seconds of training until 70 % of held-out sums are right, beside TRL's GRPOTrainer. Goal: 5 times as fast.

8 prompts, 8 rollouts each, at most 24 tokens, learning rate 2e-5, constant; the same problems held out, the same order
of prompts. The sides take turns of a few steps; after each turn the side saves its model as its user would, and one and
the same greedy decoding (held_out.py) judges it. Only the steps are on the clock. A side that is not there within its
bound is reported so, with the seconds it had: the ratio is then a bound, and marked. TRL does not compile its model
here: that would cost it more than it gives back in so few steps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpo_work
import harness
from held_out import accuracy
from workers import Worker

from assay.policy.model import load_tokenizer

NAME = "time_to_accuracy_vs_trl"
LEARNING_RATE = 2e-5
BOUNDS = {"trl": "a lower bound", "assay": "an upper bound"}
"""What the ratio is when that side did not reach the goal."""


@dataclass
class Course:
    """How one side's training goes."""

    worker: Worker
    goal: float
    seconds: float = 0.0
    rewards: list[float] = field(default_factory=list)
    """Mean reward, by step."""
    judged: list[float] = field(default_factory=list)
    """Held-out accuracies, in the order in which they were found."""

    @property
    def steps(self) -> int:
        """Steps done."""
        return len(self.rewards)

    @property
    def reached(self) -> bool:
        """Is the accuracy there?"""
        return bool(self.judged) and self.judged[-1] >= self.goal

    def train(self, steps: int) -> None:
        """Do some steps."""
        for _ in range(steps):
            step = self.worker.ask("step")
            self.seconds += step["seconds"]
            self.rewards.append(step["reward"])

    def found(self, share: float) -> None:
        """Take note of a held-out accuracy."""
        self.judged.append(share)
        say(f"{self.worker.name:<8} step {self.steps:>3} {self.seconds:8.1f} s  held out {share:.3f}")


def run_pair(chosen: argparse.Namespace, work: grpo_work.Work, folder: Path) -> list[Course]:
    """Train both sides in turn until each has reached the goal or its bound."""
    _, held_out = work.prompt_sets()
    assert held_out is not None
    prompts = held_out.prompts[: chosen.limit]
    tokenizer = load_tokenizer(work.model, work.recipe(folder).model)
    say(f"at the start, held out {accuracy(Path(work.model), tokenizer, prompts, work.tokens):.3f}")
    with ExitStack() as stack:
        file = grpo_work.write(work, folder)
        workers = [stack.enter_context(grpo_work.start(side, file)) for side in grpo_work.sides_of(chosen)]
        courses = [Course(worker, chosen.goal) for worker in workers]
        running = courses
        while running:
            for course in running:
                course.train(min(chosen.every, work.steps - course.steps))
                saved = folder / f"model-{course.worker.name}"
                course.worker.ask("save", folder=str(saved))
                course.found(accuracy(saved, tokenizer, prompts, work.tokens))
            running = [c for c in running if not c.reached and c.steps < work.steps and c.seconds < chosen.seconds]
    return courses


def say(text: str) -> None:
    """Tell whoever waits how it goes."""
    print(text, file=sys.stderr, flush=True)


def details(pairs: Sequence[Sequence[Course]]) -> dict[str, dict[str, Any]]:
    """By side: steps, and on the way there the held-out accuracies and the mean rewards; pairs apart by semicolons."""
    found = {}
    for courses in zip(*pairs, strict=True):
        found[courses[0].worker.name] = {
            "steps": "; ".join(str(c.steps) for c in courses),
            "held out": "; ".join(" ".join(f"{share:.2f}" for share in c.judged) for c in courses),
            "rewards": "; ".join(" ".join(f"{reward:.2f}" for reward in c.rewards) for c in courses),
        }
    return found


def missed(pairs: Sequence[Sequence[Course]]) -> list[str]:
    """The sides that, in some pair, did not reach the goal within their bound."""
    return sorted({c.worker.name for courses in pairs for c in courses if not c.reached})


def main() -> None:
    """Measure both sides and print the ratio."""
    parser = harness.arguments(__doc__ or "", rounds=1, also="--pairs")
    grpo_work.options(parser, prompts=8, samples=8, tokens=24)
    parser.add_argument("--goal", type=float, default=0.7, help="held-out accuracy to reach")
    parser.add_argument("--every", type=int, default=2, help="steps between evaluations")
    parser.add_argument("--limit", type=int, default=80, help="held-out prompts")
    parser.add_argument("--steps", type=int, default=48, help="the most steps of a side")
    parser.add_argument("--seconds", type=float, default=900, help="the most seconds of training of a side")
    chosen = parser.parse_args()
    work = grpo_work.work_of(chosen, chosen.steps, LEARNING_RATE, held_out=60, compiled=False)
    pairs = []
    for seed in range(chosen.rounds):
        with tempfile.TemporaryDirectory() as folder:
            pairs.append(run_pair(chosen, replace(work, seed=seed), Path(folder)))
    sides = {
        side: harness.Measured(tuple(course.seconds for course in courses), "s")
        for side, courses in zip(grpo_work.sides_of(chosen), zip(*pairs, strict=True), strict=True)
    }
    settings = {k: getattr(chosen, k) for k in ("goal", "every", "limit", "steps", "seconds")}
    settings |= grpo_work.shown(work, chosen)
    late, found = missed(pairs), details(pairs)
    if len(late) == len(grpo_work.SIDES):
        harness.show(sides, found)
        print(f"neither side reached the goal: there is no ratio\n{NAME}=nan")
        return
    mark = "".join(f"{BOUNDS[side]}: {side} did not reach the goal" for side in late)
    grpo_work.conclude(NAME, "trl/assay", sides, settings, chosen, found, mark)


if __name__ == "__main__":
    main()
