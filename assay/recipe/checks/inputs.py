"""Data and model: prompts there must be, and weights that can be trained."""

from __future__ import annotations

from collections.abc import Iterator

from assay.recipe.checks.refusal import Refusal, check
from assay.recipe.derived import generation_dtype, has_held_out
from assay.recipe.schema import Recipe


@check
def some_data(recipe: Recipe) -> Iterator[Refusal]:
    """There must be prompts."""
    data = recipe.data
    if not data.train and not data.eval:
        yield Refusal("data.train", "is empty: name prompts to train on, such as [prompts.jsonl] (or data.eval)")


@check
def held_out(recipe: Recipe) -> Iterator[Refusal]:
    """Held-out problems come from one place, and evaluation during training needs them."""
    data = recipe.data
    if data.holdout and data.eval:
        yield Refusal("data.holdout", "and data.eval both name held-out prompts: keep one")
    if data.holdout and not data.train:
        yield Refusal("data.holdout", "splits problems off data.train, which is empty")
    if recipe.eval.every and not has_held_out(recipe):
        reason = f"{recipe.eval.every} has nothing to evaluate on: set data.holdout or data.eval, or use 0"
        yield Refusal("eval.every", reason)


@check
def demo_revision(recipe: Recipe) -> Iterator[Refusal]:
    """The demo model has one revision."""
    if recipe.model.path == "demo" and recipe.model.revision is not None:
        yield Refusal("model.revision", "belongs to a model of the hub, and model.path is 'demo'")


@check
def lora_targets(recipe: Recipe) -> Iterator[Refusal]:
    """Adapters must sit somewhere."""
    if recipe.model.lora is not None and not recipe.model.lora.targets:
        yield Refusal("model.lora.targets", "is empty: nothing would be trained; use all-linear")


@check
def bfloat16_masters(recipe: Recipe) -> Iterator[Refusal]:
    """Products of bfloat16 weights are bfloat16, whatever ``compute_dtype`` asks for."""
    if recipe.model.dtype == "bfloat16" and recipe.model.compute_dtype == "float32":
        reason = "float32 cannot be had from weights in bfloat16: use model.dtype=float32, or bfloat16 here too"
        yield Refusal("model.compute_dtype", reason)


@check
def deterministic_precision(recipe: Recipe) -> Iterator[Refusal]:
    """Bit-for-bit runs are made in float32."""
    if not recipe.run.deterministic:
        return
    found = {
        "model.dtype": recipe.model.dtype,
        "model.compute_dtype": recipe.model.compute_dtype,
        "rollout.dtype": generation_dtype(recipe),
    }
    for key, dtype in found.items():
        follows = key == "rollout.dtype" and recipe.rollout.dtype == "auto"
        if dtype not in ("float32", "auto") and not follows:
            yield Refusal(key, f"{dtype} does not go with run.deterministic: use float32")
