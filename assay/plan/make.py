"""From a recipe and what is known of its costs to a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from assay.errors import UserError
from assay.plan.basis import Basis
from assay.plan.calibrate import WORK_NOTES, all_threads, calibrate
from assay.plan.costs_file import read_costs, with_work
from assay.plan.devices import device
from assay.plan.measure import measure
from assay.plan.presets import device_costs, preset_work
from assay.plan.search import Plan, search
from assay.plan.shape import ModelShape, shape_of, shape_of_size
from assay.plan.terms import terms_of
from assay.recipe.schema import Recipe
from assay.track.console import Console


@dataclass(frozen=True)
class Known:
    """Where costs and lengths come from."""

    run: Path | None = None
    """A run folder: its lengths; its costs too, unless a device or a file says others."""
    measured_steps: int | None = None
    """Run the recipe here for so many steps, and take it from them."""
    costs: Path | None = None
    """A costs file."""
    device: str | None = None
    """A device of the table, or ``cpu``."""
    parameters: float | None = None
    """Size of the model, where its config is out of reach or another size is meant."""


def make_plan(
    recipe: Recipe,
    gpus: int,
    known: Known,
    *,
    steps: int | None = None,
    seed: int = 0,
    console: Console | None = None,
) -> Plan:
    """Simulate the recipe on ``gpus`` GPUs (0: on this machine's processor) in every split and regime.

    ``console``: who hears of the steps that are measured.

    Raises UserError for sources that contradict each other, or hold too little.
    """
    return search(basis(recipe, gpus, known, console), terms_of(recipe), gpus, steps=steps, seed=seed)


def basis(recipe: Recipe, gpus: int, known: Known, console: Console | None = None) -> Basis:
    """Costs and workload: of the file, else of the device, else of the run, else guesses for a common device."""
    if known.run and known.measured_steps:
        raise UserError("--from and --measure both say what was measured: give one of them")
    if known.costs and (known.device or known.parameters):
        raise UserError("--costs says what everything costs; --device and --parameters are for plans without it")
    run = calibrate(known.run) if known.run else None
    if known.measured_steps:
        run = measure(recipe, known.measured_steps, console)
    if known.costs:
        work, notes = preset_work(recipe)
        file = read_costs(known.costs)
        guessed = Basis(file.costs, work, tuple(notes))
        return with_work(file, known.costs, _work_only(run) if run else guessed)
    if run and not (known.device or known.parameters):
        return run
    name = known.device or ("h100" if gpus else "cpu")
    costs, priced = device_costs(recipe, _shape(recipe, known), device(name))
    work, notes = (run.work, list(_work_only(run).notes)) if run else preset_work(recipe)
    return Basis(costs, work, (*priced, *notes), threads=all_threads() if name == "cpu" else None)


def _work_only(run: Basis) -> Basis:
    """A run's lengths, without what it says of costs."""
    return replace(run, notes=tuple(n for n in run.notes if n.what in WORK_NOTES))


def _shape(recipe: Recipe, known: Known) -> ModelShape:
    if known.parameters:
        return shape_of_size(known.parameters, recipe.model.lora.rank if recipe.model.lora else None)
    return shape_of(recipe.model)
