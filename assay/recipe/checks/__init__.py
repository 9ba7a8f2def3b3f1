"""Combinations that cannot work, refused with the reason when the recipe is read.

Each check is a small function from the recipe to its refusals, under ``@check`` in the file of its section. What is
set and never read is refused by the table in :mod:`assay.recipe.ignored`.
"""

from __future__ import annotations

from importlib import import_module

from assay.recipe.checks.refusal import CHECKS, Refusal
from assay.recipe.checks.training import refuse_training
from assay.recipe.schema import Recipe

__all__ = ["CHECKS", "Refusal", "refusals", "refuse_training"]

for _file in ("inputs", "sampling", "reward", "objective", "regime", "engine"):  # the order in which faults are told
    import_module(f"{__name__}.{_file}")


def refusals(recipe: Recipe) -> list[Refusal]:
    """Everything about the recipe that cannot work."""
    return [refusal for check in CHECKS for refusal in check(recipe)]
