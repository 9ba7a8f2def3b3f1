"""`assay plan` beside real runs of two processes: generation in its own, ahead of the trainer's.

Costs and lengths are taken from a synchronous run of the two processes, which take turns; with them the step of the
same recipe is predicted where they work at once, at each bound on staleness. Then that is run. One thread for each side
in all of it, and a learning rate too small to change the lengths. The number is the predicted step over the measured
one, of the bound where it is furthest from 1; the goal is .85 to 1.15. A round is a run at each bound, in turn. The
model is a small one with random weights (small_model.py), so that a step takes a fraction of a second, or another.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

import harness
from small_model import save_small_model, save_sums

from assay.plan.basis import Basis
from assay.plan.calibrate import calibrate
from assay.plan.layout import Layout
from assay.plan.simulation import simulate
from assay.plan.tally import Prediction
from assay.plan.terms import terms_of
from assay.recipe.load import load_recipe
from assay.recipe.save import save_recipe
from assay.recipe.schema import Recipe
from assay.track.metrics import read_metrics

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


def run(eta: int, settings: Mapping[str, Any], folder: Path, name: str) -> Path:
    """Train in a process of its own; returns the run folder."""
    recipe = recipe_at(eta, settings, folder)
    place = folder / name
    named = recipe.run.model_copy(update={"folder": str(folder), "name": name})
    file = save_recipe(recipe.model_copy(update={"run": named}), folder / f"{name}-recipe")
    command = [sys.executable, "-m", "assay.cli", "train", str(file), "--console", "silent"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return place


def measured(place: Path, skip: int) -> float:
    """Seconds of a step, over those after the first ``skip``."""
    return fmean(row["time/step"] for row in read_metrics(place / "metrics.jsonl")[skip:])


def predicted(basis: Basis, recipe: Recipe) -> Prediction:
    """The step of two processes under the costs of a run."""
    terms = terms_of(recipe)
    return simulate(basis.costs, basis.work, terms, TWO_PROCESSES, steps=400)


def rounds(settings: Mapping[str, Any], bounds: list[int], folder: Path) -> Iterator[dict[int, tuple[float, float]]]:
    """Of each round: by bound, the predicted step and the measured one. Bound 0 is the run that gave the costs."""
    for number in range(settings["rounds"]):
        source = run(0, settings, folder, f"costs-{number}")
        basis = calibrate(source)
        found: dict[int, tuple[float, float]] = {}
        for eta in (0, *bounds):
            place = source if eta == 0 else run(eta, settings, folder, f"staleness-{eta}-{number}")
            step = predicted(basis, recipe_at(eta, settings, folder)).step_s
            found[eta] = step, measured(place, skip=2 + 2 * eta)
            line = f"round {number + 1}  staleness {eta}  predicted {step:.3f} s, measured {found[eta][1]:.3f} s"
            print(line, file=sys.stderr, flush=True)
        yield found


def main() -> None:
    """Measure, and print what the prediction was worth."""
    parser = harness.arguments(__doc__ or "", rounds=5)
    parser.set_defaults(model="small")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--bounds", type=int, nargs="*", default=[1, 2])
    chosen = parser.parse_args()
    settings = harness.settings(chosen)
    with tempfile.TemporaryDirectory(prefix="plan-check-") as folder:
        save_small_model(Path(folder) / "model")
        save_sums(Path(folder) / "sums.jsonl")
        found = list(rounds(settings, chosen.bounds, Path(folder)))
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
