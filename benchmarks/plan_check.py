"""`assay plan` beside real runs of two processes: generation in its own, ahead of the trainer's.

Three runs of one recipe: a synchronous one, whose two processes take turns, and two whose processes work at once, at
staleness 1 and 2. Costs and lengths are taken from the first, the steps of the others predicted from them. The runs
take turns of a few steps (the others are stopped, whole process trees, between two steps), because a shared machine is
never twice the same: what slows one slows the next within seconds. A step in which a run was stopped is left out,
and so is one of more than three times the median of its run: the answers' cap allows no such step, only the machine.

The number is the predicted step over the measured one, at the bound where it is furthest from 1; the goal is .85 to
1.15. One thread for each side. The learning rate is too small to change lengths. The model is a small one with random
weights (small_model.py), so that a step takes seconds at most.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import harness
from small_model import save_small_model, save_sums

from assay.plan.basis import Basis
from assay.plan.calibrate import calibrate
from assay.plan.layout import Layout
from assay.plan.simulation import Simulation
from assay.plan.terms import terms_of
from assay.plan.workload import SeenWork
from assay.recipe.load import load_recipe
from assay.recipe.save import save_recipe
from assay.recipe.schema import Recipe

NAME = "plan_check"
TASK = (
    'reasoning_gym:chain_sum{"size": 600, "seed": 1, "min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 2}'
)
TWO_PROCESSES = Layout(engines=1, trainers=1, shared=False, unit="process")


def recipe_at(eta: int, settings: Mapping[str, Any], folder: Path) -> Recipe:
    """The work, at one bound on staleness."""
    model = str(folder / "model") if settings["model"] == "small" else settings["model"]
    values = {
        "model": {"path": model, "compute_dtype": "float32"},
        "data": {"train": [str(folder / "sums.jsonl")]},
        "rollout": {
            "prompts_per_step": settings["prompts"],
            "group_size": settings["samples"],
            "max_tokens": settings["tokens"],
            "process": "own",
            "options": {"threads": 1},
        },
        "reward": {"parts": [{"verifier": "regex", "options": {"pattern": "^[0-4a-zA-M]"}}]},
        "regime": {"max_staleness": eta},
        "update": {"learning_rate": 1e-9},
        "checkpoint": {"every": 0},
        "track": {"samples_every": 0},
        "run": {"steps": 10_000, "threads": 1},
    }
    return load_recipe(values).recipe


@dataclass
class Side:
    """A run, stopped but for its turns."""

    eta: int
    place: Path
    process: subprocess.Popen[bytes]
    seen: int = 0
    """Steps that are done."""
    clean: dict[int, float] = field(default_factory=dict)
    """Seconds of the steps that no stop lies in, by their number."""

    def turn(self, steps: int) -> None:
        """Go on for so many steps; the first of them is not clean, since it lay still."""
        signal_tree(self.process.pid, signal.SIGCONT)
        ends = [self._next_end() for _ in range(steps)]
        signal_tree(self.process.pid, signal.SIGSTOP)
        last = self.seen
        self.clean |= {last - i: ends[-1 - i] - ends[-2 - i] for i in range(steps - 1)}

    def _next_end(self) -> float:
        """Wait for the end of the next step; when that was."""
        log = self.place / "metrics.jsonl"
        while not log.exists() or log.read_bytes().count(b"\n") <= self.seen:
            if self.process.poll() is not None:
                raise RuntimeError((self.process.stderr or io.BytesIO()).read().decode()[-500:])
            time.sleep(0.005)
        self.seen += 1
        return time.perf_counter()

    def undisturbed(self) -> dict[int, float]:
        """The clean steps that took at most three times their median."""
        limit = 3 * median(self.clean.values())
        return {step: seconds for step, seconds in self.clean.items() if seconds <= limit}

    def end(self) -> None:
        """Stop it for good."""
        signal_tree(self.process.pid, signal.SIGCONT)
        while self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Signal a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    family = [pid]
    for member in family:
        family += children.get(member, [])
    for member in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, number)


def start(eta: int, settings: Mapping[str, Any], folder: Path) -> Side:
    """Start a run in a process of its own."""
    recipe, name = recipe_at(eta, settings, folder), f"staleness-{eta}"
    named = recipe.run.model_copy(update={"folder": str(folder), "name": name})
    file = save_recipe(recipe.model_copy(update={"run": named}), folder / f"{name}-recipe")
    command = [sys.executable, "-m", "assay.cli", "train", str(file), "--console", "silent"]
    return Side(eta, folder / name, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))


def in_turn(settings: Mapping[str, Any], bounds: list[int], folder: Path) -> list[Side]:
    """Run all sides, a few steps each in turn."""
    sides: list[Side] = []
    try:
        for eta in (0, *bounds):
            sides.append(start(eta, settings, folder))
            sides[-1].turn(3 + 2 * eta)  # to where the pipeline is full
            sides[-1].clean.clear()
        for _ in range(settings["rounds"]):
            for side in sides:
                side.turn(settings["turn"])
                print(f"staleness {side.eta}: {fmean(side.clean.values()):.3f} s", file=sys.stderr, flush=True)
    finally:
        for side in sides:
            side.end()
    return sides


def calibrated(side: Side) -> Basis:
    """Costs of its undisturbed steps, with all of its groups."""
    whole = calibrate(side.place)
    log = side.place / "metrics.jsonl"
    kept = side.undisturbed()
    rows = [line for line in log.read_text(encoding="utf-8").splitlines() if json.loads(line)["step"] in kept]
    log.write_text("\n".join([*rows[:1], *rows]) + "\n", encoding="utf-8")  # the first is taken for a warm-up
    return replace(calibrate(side.place), work=whole.work)


def predicted(basis: Basis, recipe: Recipe, steps: int) -> float:
    """Seconds of a step of two processes under the costs of a run, with its groups in their order, over and over.

    A group's answers depend on its number and the weights, which hardly move: a real run meets the same lengths.
    """
    assert isinstance(basis.work, SeenWork)
    work, skip = basis.work.model_copy(update={"in_order": True}), 2 + 2 * (recipe.regime.max_staleness or 0)
    tally = Simulation(basis.costs, work, terms_of(recipe), TWO_PROCESSES).run(skip + steps)
    return fmean(step.seconds for step in tally.steps[skip:])


def check(settings: Mapping[str, Any], bounds: list[int]) -> dict[int, tuple[float, tuple[float, ...]]]:
    """By bound, the predicted step and the measured ones. Bound 0 is the run that gave the costs."""
    with tempfile.TemporaryDirectory(prefix="plan-check-") as name:
        folder = Path(name)
        save_small_model(folder / "model")
        save_sums(folder / "sums.jsonl")
        sides = in_turn(settings, bounds, folder)
        basis = calibrated(sides[0])
        return {
            s.eta: (predicted(basis, recipe_at(s.eta, settings, folder), 200), tuple(s.undisturbed().values()))
            for s in sides
        }


def main() -> None:
    """Measure, and print what the prediction was worth."""
    parser = harness.arguments(__doc__ or "", rounds=6)
    parser.set_defaults(model="small")
    parser.add_argument("--turn", type=int, default=5, help="steps of a turn")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--bounds", type=int, nargs="*", default=[1, 2])
    chosen = parser.parse_args()
    settings = harness.settings(chosen)
    found = check(settings, chosen.bounds)
    ratios = {eta: step / fmean(steps) for eta, (step, steps) in found.items()}
    sides, details = {}, {}
    for eta, (step, steps) in found.items():
        sides[f"measured, η = {eta}"] = harness.Measured(steps, "s")
        details[f"η = {eta}"] = {
            "predicted s": round(step, 3),
            "measured mean s": round(fmean(steps), 3),
            "predicted / measured": round(ratios[eta], 3),
        }
    for name, figures in details.items():
        print(name, ", ".join(f"{what} {figure}" for what, figure in figures.items()))
    worst = max((ratios[eta] for eta in chosen.bounds or [0]), key=lambda ratio: max(ratio, 1 / ratio))
    harness.finish(NAME, worst, sides, settings, chosen.save, details)


if __name__ == "__main__":
    main()
