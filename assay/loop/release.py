"""Release: a checkpoint of a run becomes a model folder that anything can load."""

from __future__ import annotations

from pathlib import Path

import torch

from assay.errors import UserError
from assay.loop.checkpoint import CheckpointStore
from assay.loop.folder import RunFolder, model_place
from assay.loop.memory import memory
from assay.loop.summary import best_step, summarize
from assay.policy.export import export, model_card
from assay.policy.model import add_lora, check_model, load_model, load_tokenizer
from assay.policy.state import load_weights, trainable
from assay.recipe.load import load_recipe
from assay.track.metrics import read_metrics


def release(run: RunFolder, step: int | None = None, best: bool = False, out: Path | None = None) -> Path:
    """Write the model of a run's checkpoint, adapters merged, with tokenizer and model card; returns its folder.

    ``step``: the checkpoint after it; ``best``: the one with the best held-out accuracy; neither: that one if it is
    kept, else the last. ``out``: where to; absent, ``model-step-N`` in the run folder. Raises UserError for a
    checkpoint that is not there and for an ``out`` that is.
    """
    if not run.recipe.is_file():
        raise UserError(f"{run.path}: not a run that can be exported: it holds no recipe.yaml")
    recipe = load_recipe(run.recipe, check=False).recipe
    store = CheckpointStore(run.checkpoints, recipe.checkpoint.keep_last, recipe.checkpoint.keep_best)
    evaluations = {int(row["step"]): row for row in read_metrics(run.evals)}
    chosen = _chosen(store.steps(), best_step(evaluations), step, best, run.path)
    if out is not None and out.exists():
        raise UserError(f"--out {out}: is there already, and nothing is overwritten; choose another")
    place = model_place(recipe.model.path)
    check_model(place, recipe.model)
    with memory("load", recipe):
        model = load_model(place, recipe.model, torch.device("cpu"))
        if recipe.model.lora is not None:
            model = add_lora(model, recipe.model.lora, recipe.run.seed)
        state = store.read(chosen, lambda folder: load_weights(folder, trainable(model)))
    summary = summarize(run.path.name, state, evaluations)
    card = model_card(recipe.model.path, run.recipe.read_text(encoding="utf-8"), summary)
    with memory("export", recipe):
        target = out or run.path / f"model-step-{chosen:06d}"
        return export(model, load_tokenizer(place, recipe.model), target, card)


def _chosen(steps: list[int], best: int | None, step: int | None, wants_best: bool, run: Path) -> int:
    """The step whose checkpoint is meant; ``best`` is the one of the best evaluation."""
    if not steps:
        raise UserError(f"{run}: there is no checkpoint to export")
    there = f"checkpoints are there of step {', '.join(map(str, steps))}"
    if step is not None and wants_best:
        raise UserError("--step and --best both say which checkpoint: keep one")
    if step is not None and step not in steps:
        raise UserError(f"--step {step}: {there}")
    if wants_best and best is None:
        raise UserError(f"--best: no step of {run} was evaluated; {there}")
    if wants_best and best not in steps:
        raise UserError(f"--best: step {best} was best and is not kept (checkpoint.keep_best keeps it); {there}")
    if step is not None:
        return step
    return best if best in steps else steps[-1]
