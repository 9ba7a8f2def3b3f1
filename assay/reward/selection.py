"""Which parts judge a row: all that name no rows, and for each name in the row's column the first part that has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from assay.data.conventions import column_at
from assay.errors import UserError, nearest
from assay.recipe.schema import RewardRecipe
from assay.records import Prompt


def parts_for(reward: RewardRecipe, columns: Mapping[str, Any]) -> tuple[int, ...]:
    """Places of the parts that judge a row, in the order of the recipe.

    Raises :class:`UserError` for a row that names nothing, or something that no part has among its ``rows``.

    >>> from assay.recipe.schema import RewardPart
    >>> parts = [RewardPart(verifier="math", rows=["math"]), RewardPart(verifier="format")]
    >>> parts_for(RewardRecipe(parts=parts, verifier_column="kind"), {"kind": "math"})
    (0, 1)
    """
    if reward.verifier_column is None:
        return tuple(range(len(reward.parts)))
    chosen = {place for place, part in enumerate(reward.parts) if not part.rows}
    for name in _names(column_at(columns, reward.verifier_column), reward.verifier_column):
        place = next((place for place, part in enumerate(reward.parts) if name in part.rows), None)
        if place is None:
            known = [value for part in reward.parts for value in part.rows]
            hint = nearest(name, known)
            raise UserError(f"no reward part has {name!r} among its rows{hint}; known: {', '.join(known)}")
        chosen.add(place)
    return tuple(sorted(chosen))


def _names(value: Any, column: str) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"the column {column!r} must name a part or a list of parts, not {value!r}")
    return list(names)


def check_rows(reward: RewardRecipe, prompts: Iterable[Prompt]) -> None:
    """Refuse data with a row that no part judges; the :class:`UserError` says which row."""
    for prompt in prompts:
        try:
            parts_for(reward, prompt.columns)
        except UserError as error:
            raise UserError(f"{prompt.source}: {error} (reward.verifier_column)") from None
