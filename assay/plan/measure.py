"""A few real steps of the recipe, to take costs and lengths from."""

from __future__ import annotations

import tempfile
from pathlib import Path

from assay.loop.trainer import train
from assay.plan.basis import Basis
from assay.plan.calibrate import calibrate
from assay.recipe.schema import CheckpointRecipe, EvalRecipe, Recipe, RegimeRecipe, SyncRecipe
from assay.track.console import Console


def measure(recipe: Recipe, steps: int, console: Console | None = None) -> Basis:
    """Train for so many steps, synchronously, in a folder that is thrown away; returns what they cost.

    Nothing is held out or evaluated, and the recipe's own runs are not touched. The folder lies where runs do, since a
    checkpoint and the model are written at the end. Raises whatever the run raises.
    """
    parent = Path(recipe.run.folder)
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=parent) as folder:
        outcome = train(shortened(recipe, steps, folder), console=console)
        return calibrate(Path(outcome.folder))


def shortened(recipe: Recipe, steps: int, folder: str) -> Recipe:
    """The recipe as it is run to be measured: synchronous, without evaluation, its rollouts logged."""
    return recipe.model_copy(
        update={
            "run": recipe.run.model_copy(update={"folder": folder, "steps": steps, "name": "measured"}),
            "rollout": recipe.rollout.model_copy(update={"oversample": 0}),
            "data": recipe.data.model_copy(update={"eval": [], "holdout": 0}),
            "regime": RegimeRecipe(),
            "sync": SyncRecipe(backend=recipe.sync.backend, gguf=recipe.sync.gguf),
            "eval": EvalRecipe(),
            "checkpoint": CheckpointRecipe(),
            "track": recipe.track.model_copy(update={"rollouts": True, "trackers": []}),
        }
    )
