"""`assay plan` beside real runs of two processes: generation in its own, ahead of the trainer's.

Three runs of one recipe go side by side: one synchronous, whose two processes take turns, and two whose processes work
at once, at staleness 1 and 2. Costs and lengths are taken from the first, the steps of the others predicted from them.
Side by side, because a shared machine is never twice the same: what slows one run slows the others in the same second,
and each process has one thread, of which the system gives every one the same share. Steps count from the time when all
are under way until the first is done.

The number is the predicted step over the measured one, at the bound where it is furthest from 1; the goal is .85 to
1.15. The learning rate is too small to change lengths. The model is a small one with random weights (small_model.py),
so that a step takes seconds at most.
"""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
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
        "run": {"steps": settings["steps"], "threads": 1},
    }
    return load_recipe(values).recipe


@dataclass
class Side:
    """A run under way."""

    eta: int
    place: Path
    process: subprocess.Popen[bytes]
    ends: list[float] = field(default_factory=list)
    """When each step was done."""

    def look(self) -> None:
        """Note the steps that were done since the last look."""
        log = self.place / "metrics.jsonl"
        lines = log.read_text(encoding="utf-8").count("\n") if log.exists() else 0
        self.ends += [time.perf_counter()] * (lines - len(self.ends))

    def step_s(self, begin: float, end: float) -> float:
        """Mean seconds of the steps that lie between two times."""
        inside = [t for t in self.ends if begin <= t <= end]
        return (inside[-1] - inside[0]) / (len(inside) - 1)


def start(eta: int, settings: Mapping[str, Any], folder: Path, steps: int) -> Side:
    """Start a run in a process of its own."""
    recipe, name = recipe_at(eta, settings, folder), f"staleness-{eta}"
    named = recipe.run.model_copy(update={"folder": str(folder), "name": name, "steps": steps})
    file = save_recipe(recipe.model_copy(update={"run": named}), folder / f"{name}-recipe")
    command = [sys.executable, "-m", "assay.cli", "train", str(file), "--console", "silent"]
    return Side(eta, folder / name, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))


def side_by_side(settings: Mapping[str, Any], bounds: list[int], folder: Path) -> list[Side]:
    """Run the synchronous side to its end, the others beside it."""
    sides = [start(0, settings, folder, settings["steps"])]
    sides += [start(eta, settings, folder, 10 * settings["steps"]) for eta in bounds]
    try:
        while sides[0].process.poll() is None:
            for side in sides:
                side.look()
                if side.process.poll():
                    raise RuntimeError((side.process.stderr or io.BytesIO()).read().decode()[-500:])
            time.sleep(0.02)
    finally:
        for side in sides:
            while side.process.poll() is None:
                side.process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    side.process.wait(20)
    return sides


def predicted(basis: Basis, recipe: Recipe, steps: int) -> float:
    """Seconds of a step of two processes under the costs of a run, with its groups in their order, over and over.

    A group's answers depend on its number and the weights, which hardly move: a real run meets the same lengths.
    """
    assert isinstance(basis.work, SeenWork)
    work, skip = basis.work.model_copy(update={"in_order": True}), 2 + 2 * (recipe.regime.max_staleness or 0)
    tally = Simulation(basis.costs, work, terms_of(recipe), TWO_PROCESSES).run(skip + steps)
    return fmean(step.seconds for step in tally.steps[skip:])


def one_round(settings: Mapping[str, Any], bounds: list[int]) -> dict[int, tuple[float, float]]:
    """By bound, the predicted step and the measured one. Bound 0 is the run that gave the costs."""
    with tempfile.TemporaryDirectory(prefix="plan-check-") as name:
        folder = Path(name)
        save_small_model(folder / "model")
        save_sums(folder / "sums.jsonl")
        sides = side_by_side(settings, bounds, folder)
        basis = calibrate(sides[0].place)
        begin, end = max(s.ends[2 * s.eta] for s in sides), min(s.ends[-1] for s in sides)
        found = {}
        for side in sides:
            step = predicted(basis, recipe_at(side.eta, settings, folder), settings["steps"])
            found[side.eta] = step, side.step_s(begin, end)
            line = f"staleness {side.eta}: predicted {step:.3f} s, measured {found[side.eta][1]:.3f} s"
            print(line, file=sys.stderr, flush=True)
        return found


def main() -> None:
    """Measure, and print what the prediction was worth."""
    parser = harness.arguments(__doc__ or "", rounds=3)
    parser.set_defaults(model="small")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--bounds", type=int, nargs="*", default=[1, 2])
    chosen = parser.parse_args()
    settings = harness.settings(chosen)
    found = [one_round(settings, chosen.bounds) for _ in range(chosen.rounds)]
    ratios = {eta: median(f[eta][0] / f[eta][1] for f in found) for eta in found[0]}
    sides = {}
    for eta in ratios:
        sides[f"predicted, η = {eta}"] = harness.Measured(tuple(f[eta][0] for f in found), "s")
        sides[f"measured, η = {eta}"] = harness.Measured(tuple(f[eta][1] for f in found), "s")
    details = {f"η = {eta}": {"predicted / measured": round(ratio, 3)} for eta, ratio in ratios.items()}
    worst = max((ratios[eta] for eta in chosen.bounds or [0]), key=lambda ratio: max(ratio, 1 / ratio))
    harness.finish(NAME, worst, sides, settings, chosen.save, details)


if __name__ == "__main__":
    main()
