"""Writing a recipe down so that it reads back equal, and telling two recipes apart when a run is resumed."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from assay.errors import UserError
from assay.recipe.complaints import shown
from assay.recipe.keys import beneath, join
from assay.recipe.schema import Recipe

MAY_CHANGE: tuple[str, ...] = ("run.steps", "run.name", "run.folder", "track", "checkpoint", "eval", "profile")
"""Keys and sections that may differ when a run is resumed: how long it is, what is shown and kept."""

MACHINE: tuple[str, ...] = (
    "model.device",
    "model.gradient_checkpointing",
    "rollout.max_running",
    "reward.workers",
    "reward.timeout_s",
    "update.tokens_per_microbatch",
    "update.head_chunk",
    "run.threads",
)
"""Keys that fit a run to a machine: equal up to rounding, so they may differ unless ``run.deterministic``."""


def save_recipe(recipe: Recipe, folder: str | Path) -> Path:
    """Write ``recipe.yaml``, every key with its value, into ``folder``, and return its path.

    Reading it gives an equal recipe. Raises UserError when the folder cannot be written.
    """
    path = Path(folder) / "recipe.yaml"
    text = OmegaConf.to_yaml(OmegaConf.create(escaped(recipe.model_dump(mode="json"))))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.tmp")
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, path)  # a run killed meanwhile keeps a recipe to resume with
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another run.folder") from None
    return path


def difference(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """``(key, old value, new value)`` for every key that differs, in the order of the schema.

    >>> difference(Recipe(), Recipe(preset="dapo"))
    [('preset', None, 'dapo')]
    """
    return list(_differences(old.model_dump(), new.model_dump(), ""))


def may_change(key: str, deterministic: bool = False) -> bool:
    """May ``key`` differ when a run is resumed?

    >>> may_change("run.steps"), may_change("eval.every"), may_change("objective.clip_low")
    (True, True, False)
    """
    free = MAY_CHANGE if deterministic else MAY_CHANGE + MACHINE
    return any(key == allowed or beneath(key, allowed) for allowed in free)


def check_resume(old: Recipe, new: Recipe, decided: Collection[str] = ()) -> None:
    """Raise UserError, a line for each key at fault, when a run of ``old`` cannot be resumed with ``new``.

    ``decided``: the keys whose value in ``new`` the machine decided, and not the user.
    """
    lines, mend = [], ""
    for key, before, after in difference(old, new):
        if may_change(key, old.run.deterministic):
            continue
        lines.append(f"resume: {key} was {shown(before)} and is now {shown(after)}")
        if key in decided:
            lines[-1] += f", as this machine decides it: {key}={before} keeps what it was"
        else:
            mend = ": resume with the recipe of the run, or start a new run"
    if lines:
        raise UserError("\n".join(lines) + mend)


def escaped(value: Any) -> Any:
    """Escape ``${`` in all text, so that OmegaConf reads it as itself and not as an interpolation."""
    if isinstance(value, str):
        return _escape_text(value)
    if isinstance(value, Mapping):
        return {k: escaped(v) for k, v in value.items()}
    return [escaped(v) for v in value] if isinstance(value, list) else value


def _escape_text(text: str) -> str:
    """Double the backslashes right before each ``${`` and put one more there; nothing else is special."""
    *before, last = text.split("${")
    return "${".join([*(p + "\\" * (len(p) - len(p.rstrip("\\")) + 1) for p in before), last])


def _differences(old: Any, new: Any, at: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            yield from _differences(old.get(name), new.get(name), join(at, str(name)))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and _all_mappings(old + new):
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, join(at, i))
    elif old != new:
        yield at, old, new


def _all_mappings(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(v, Mapping) for v in values)
