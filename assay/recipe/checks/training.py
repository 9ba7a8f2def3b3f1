"""What can be evaluated with, and not trained."""

from __future__ import annotations

from assay.errors import UserError
from assay.recipe.schema import Recipe


def refuse_training(recipe: Recipe) -> None:
    """Raise UserError where answers would be those of a model that never changes: training on somebody else's."""
    if recipe.rollout.engine == "openai" and not recipe.rollout.allow_stale:
        raise UserError(
            "rollout.engine: openai cannot be given new weights, so every answer is that of the weights as they are "
            "there: use vllm_server or llama_server, or rollout.allow_stale=true if that is meant"
        )
