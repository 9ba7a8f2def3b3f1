"""What a check says of a recipe that cannot work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from assay.recipe.schema import Recipe


class Refusal(NamedTuple):
    """Why a recipe cannot work."""

    key: str
    """The key to change."""
    reason: str
    """Reads on after the key: why, and the mend."""


Check = Callable[[Recipe], Iterator[Refusal]]
"""From a recipe to its refusals."""

CHECKS: list[Check] = []
"""All checks, in the order in which their files are imported."""


def check(function: Check) -> Check:
    """File a check: what it finds is refused when a recipe is read."""
    CHECKS.append(function)
    return function
