"""Reading a recipe: default < preset < recipe file < overrides, and where each value came from.

The file is YAML, overrides are ``key=value`` with YAML values, both merged by OmegaConf, so that
``${rollout.max_tokens}`` refers to another key. A list that is written replaces the one below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from assay.errors import UserError
from assay.recipe.checks import refusals
from assay.recipe.complaints import complaints
from assay.recipe.ignored import ignored_keys
from assay.recipe.keys import ancestors, beneath, flatten, meant, section_in, unknown_keys
from assay.recipe.layer import Layer, first_line, read_file, read_mapping
from assay.recipe.override import Override, read_override
from assay.recipe.presets import overlay
from assay.recipe.provenance import DEFAULT, OVERRIDE, origins, place, set_in_python, written
from assay.recipe.save import check_resume, difference, escaped, may_change, save_recipe
from assay.recipe.schema import Recipe, Section

__all__ = [
    "Resolved",
    "check_recipe",
    "check_resume",
    "difference",
    "load_recipe",
    "may_change",
    "save_resolved",
]


@dataclass(frozen=True)
class Resolved:
    """A recipe and where each of its values came from."""

    recipe: Recipe
    origins: Mapping[str, str]
    """By key path: ``default``, ``preset NAME``, ``recipe FILE:LINE`` (mapping: ``recipe``), ``override``."""
    path: Path | None = None
    """The recipe file, where there is one."""
    command: tuple[str, ...] = ()
    """The words of the command that runs it, where one does."""

    @property
    def explicit(self) -> frozenset[str]:
        """The keys that the recipe or an override wrote."""
        return frozenset(k for k, o in self.origins.items() if o == OVERRIDE or o.split()[0] == "recipe")


def load_recipe(
    source: str | Path | Mapping[str, Any] | None, overrides: Sequence[str] = (), *, check: bool = True
) -> Resolved:
    """Read a recipe from a file, a mapping, or the defaults alone, and put ``key=value`` overrides over it.

    ``check=False`` lets combinations pass that cannot work (see :mod:`assay.recipe.checks`), but no unknown
    key and no wrong type.

    Raises:
        UserError: what is wrong, with file and line, and the mend; one line for each fault.

    >>> found = load_recipe({"preset": "dapo"}, ["objective.clip_low=0.1"], check=False)
    >>> [found.origins[f"objective.{key}"] for key in ("clip_low", "clip_high", "gamma")]
    ['override', 'preset dapo', 'default']
    """
    path = Path(source) if isinstance(source, (str, Path)) else None
    base = read_file(path) if path is not None else read_mapping(cast("Mapping[str, Any]", source or {}))
    base = Layer(base.name, _without_empty_sections(base.values, Recipe), base.lines)
    _refuse_unknown(base)
    given = [read_override(text) for text in overrides]
    _refuse_unfilled(base, given)
    name = _preset_name(base, given)
    layers = [base] if name is None else [Layer(f"preset {name}", overlay(name)), base]
    recipe = _build(layers, given)
    resolved = Resolved(recipe, MappingProxyType(origins(recipe, layers, given)), path)
    if check:
        _refuse(resolved)
    return resolved


def check_recipe(recipe: Recipe) -> None:
    """Hold a recipe built in Python to the rules that a recipe file is held to. Raises UserError."""
    given = frozenset(set_in_python(recipe))
    _refuse(Resolved(recipe, {k: "recipe" if k in given else DEFAULT for k in flatten(recipe)}))


def save_resolved(resolved: Resolved | Recipe, folder: str | Path) -> Path:
    """Write the complete ``recipe.yaml`` into ``folder``; see :func:`assay.recipe.save.save_recipe`."""
    return save_recipe(resolved.recipe if isinstance(resolved, Resolved) else resolved, folder)


def _without_empty_sections(values: Mapping[str, Any], section: type[Section]) -> dict[str, Any]:
    """Drop sections that hold nothing (``rollout:`` with its keys commented out); a null ``lora`` stays."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        field = section.model_fields.get(name)
        opened = section_in(field.annotation) if field else None
        if opened is not None and value is None and field is not None and field.default is not None:
            continue
        kept[name] = _without_empty_sections(value, opened) if opened and isinstance(value, Mapping) else value
    return kept


def _refuse_unknown(layer: Layer) -> None:
    faults = list(unknown_keys(layer.values))
    if faults:
        raise UserError("\n".join(f"{layer.place(key)}: unknown key {key!r}{meant(key)}" for key in faults))


def _refuse_unfilled(base: Layer, overrides: Sequence[Override]) -> None:
    """``???`` in a recipe asks for an override."""
    filled = {o.key for o in overrides}
    for path, value in written(base.values):
        if value == "???" and filled.isdisjoint(ancestors(path)):
            raise UserError(f"{base.place(path)}: {path} is left open (???): give it as {path}=VALUE")


def _preset_name(base: Layer, overrides: Iterable[Override]) -> str | None:
    """The preset that the recipe or the last override names. Raises UserError for an unknown one."""
    name, where = base.values.get("preset"), base.place("preset")
    for override in overrides:
        if override.key == "preset":
            name, where = override.value, OVERRIDE
    if name is None:
        return None
    if not isinstance(name, str):
        raise UserError(f"{where}: preset must be text, not {name!r}")
    try:
        overlay(name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return name


def _build(layers: Sequence[Layer], overrides: Sequence[Override]) -> Recipe:
    """Merge, resolve interpolations, validate."""
    try:
        defaults = OmegaConf.create(escaped(Recipe().model_dump()))
        merged = cast("DictConfig", OmegaConf.merge(defaults, *(layer.values for layer in layers)))
        for override in overrides:
            _apply(merged, override)
        values = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "recipe"
        raise UserError(f"{place(key, layers, overrides)}: {key}: {first_line(error)}") from None
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        lines = [f"{place(key, layers, overrides)}: {key} {text}" for key, text in complaints(error)]
        raise UserError("\n".join(lines)) from None


def _apply(merged: DictConfig, override: Override) -> None:
    """Put one override over the merged values."""
    try:
        OmegaConf.update(merged, override.key, override.value, merge=True)
    except IndexError:
        lists = (a for a in ancestors(override.key) if OmegaConf.is_list(OmegaConf.select(merged, a)))
        above = next(lists)
        held = len(OmegaConf.select(merged, above))
        reason = f"{above} has {held} {'entry' if held == 1 else 'entries'}, counted from 0"
        raise UserError(f"override {override.key}: there is no such entry: {reason}") from None


def _refuse(resolved: Resolved) -> None:
    """Raise UserError with one line for each combination that cannot work."""
    lines = []
    for key, reason in (*refusals(resolved.recipe), *ignored_keys(resolved.recipe, resolved.explicit)):
        inside = (o for k, o in resolved.origins.items() if k == key or beneath(k, key))
        origin = next((o for o in inside if o != DEFAULT), DEFAULT)
        source = str(resolved.path) if resolved.path else "recipe"
        lines.append(f"{source if origin == DEFAULT else origin.removeprefix('recipe ')}: {key} {reason}")
    if lines:
        raise UserError("\n".join(lines))
