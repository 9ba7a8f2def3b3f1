"""Combinations that cannot work, refused with the reason when the recipe is read.

Each check is a small function from the recipe to its refusals. To add one, write it in the file of its section and list
it in that file's ``CHECKS``. What is set and never read is refused by the table in :mod:`assay.recipe.ignored`.
"""

from __future__ import annotations

from assay.errors import UserError
from assay.recipe.checks import engine, inputs, objective, regime, reward, sampling
from assay.recipe.checks.refusal import Check, Refusal
from assay.recipe.schema import Recipe

__all__ = ["CHECKS", "Check", "Refusal", "refusals", "refuse_training"]

CHECKS: tuple[Check, ...] = tuple(
    check for file in (inputs, sampling, reward, objective, regime, engine) for check in file.CHECKS
)
"""All checks."""


def refusals(recipe: Recipe) -> list[Refusal]:
    """Everything about the recipe that cannot work."""
    return [refusal for check in CHECKS for refusal in check(recipe)]


def refuse_training(recipe: Recipe) -> None:
    """Raise UserError for a recipe that can be evaluated with, and not trained."""
    for check in engine.CHECKS_OF_TRAINING:
        for refusal in check(recipe):
            raise UserError(f"{refusal.key}: {refusal.reason}")
