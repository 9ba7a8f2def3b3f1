"""From a recipe and what is known of its costs to a plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from assay.errors import UserError
from assay.plan.basis import Basis, Note
from assay.plan.calibrate import all_threads, calibrate, seen
from assay.plan.costs_file import read_costs, with_work
from assay.plan.devices import device
from assay.plan.measure import measure
from assay.plan.presets import device_costs, preset_work
from assay.plan.search import Plan, search
from assay.plan.shape import shape_of, shape_of_size
from assay.plan.terms import terms_of
from assay.plan.workload import Workload
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
    _refuse_contradictions(known)
    if known.costs:
        file = read_costs(known.costs)
        return with_work(file, known.costs, *_work(recipe, known, console))
    if known.device or known.parameters or not (known.run or known.measured_steps):
        return _of_device(recipe, gpus, known, console)
    found = calibrate(known.run) if known.run else measure(recipe, known.measured_steps or 1, console)
    if found.threads and gpus:
        raise UserError(f"--gpus {gpus}: the costs are a processor's; add --device to take its lengths alone")
    if not found.threads and not gpus:
        raise UserError("the costs are an accelerator's: say how many with --gpus")
    return found


def _refuse_contradictions(known: Known) -> None:
    if known.run and known.measured_steps:
        raise UserError("--from and --measure both say what was measured: give one of them")
    if known.costs and (known.device or known.parameters):
        raise UserError("--costs says what everything costs; --device and --parameters are for plans without it")


def _of_device(recipe: Recipe, gpus: int, known: Known, console: Console | None) -> Basis:
    name = known.device or ("h100" if gpus else "cpu")
    if (name == "cpu") != (gpus == 0):
        raise UserError(f"--device {name} with --gpus {gpus}: " + ("say how many" if gpus == 0 else "leave out --gpus"))
    parameters, lora = known.parameters, recipe.model.lora
    shape = shape_of_size(parameters, lora.rank if lora else None) if parameters else shape_of(recipe.model)
    costs, priced = device_costs(recipe, shape, device(name))
    work, notes = _work(recipe, known, console)
    return Basis(costs, work, (*priced, *notes), threads=None if gpus else all_threads())


def _work(recipe: Recipe, known: Known, console: Console | None) -> tuple[Workload, list[Note]]:
    """Lengths: as a run has them, else a guess."""
    if known.run:
        return seen(known.run)
    if known.measured_steps:
        found = measure(recipe, known.measured_steps, console)
        return found.work, [n for n in found.notes if n.what in ("lengths", "groups with signal")]
    return preset_work(recipe)
