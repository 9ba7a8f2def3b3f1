"""Assay: reinforcement learning of language models on rewards that a program can verify.

from assay import Recipe, train

outcome = train(Recipe.from_file("recipes/arithmetic-smollm2.yaml", "run.steps=5"))
print(outcome.folder, outcome.summary["after"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.errors import AssayError, UserError
from assay.recipe.schema import Recipe

if TYPE_CHECKING:
    from assay.loop.trainer import Outcome, train
    from assay.view.report import write_report

__version__ = "0.1.0"
__all__ = ["AssayError", "Outcome", "Recipe", "UserError", "train", "write_report"]

_LATER = {
    "train": "assay.loop.trainer",
    "Outcome": "assay.loop.trainer",
    "write_report": "assay.view.report",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
