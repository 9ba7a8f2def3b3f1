"""Where each value of a recipe came from, and which source is to blame for a faulty one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from assay.recipe.keys import ancestors, beneath, flatten, generalised, item_section, join, schema_keys
from assay.recipe.layer import Layer
from assay.recipe.override import Override
from assay.recipe.schema import Recipe

DEFAULT = "default"
"""The origin of a value that nothing set."""
OVERRIDE = "override"
"""The origin of a value that an override set."""


def origins(recipe: Recipe, layers: Sequence[Layer], overrides: Sequence[Override]) -> dict[str, str]:
    """The origin of every value of ``recipe``, by key path; later layers win, overrides last."""
    marks: dict[str, str] = {}

    def mark(path: str, origin: str) -> None:
        for hidden in [m for m in marks if beneath(m, path)]:  # a list or null replaces what was beneath it
            del marks[hidden]
        marks[path] = origin

    for layer in layers:
        for path, _ in written(layer.values):
            mark(path, layer.origin(path))
    for override in overrides:
        for path, _ in written(override.value, override.key):
            mark(path, OVERRIDE)
    return {key: _origin_of(key, marks) for key in flatten(recipe)}


def place(key: str, layers: Sequence[Layer], overrides: Sequence[Override]) -> str:
    """The start of a message about ``key``: the last source that set it, what holds it, or part of it."""
    for override in reversed(overrides):
        if _touches(override.key, key):
            return OVERRIDE
    for layer in reversed(layers):
        if any(_touches(path, key) for path, _ in written(layer.values)):
            return layer.place(key)
    return layers[-1].place(key)


def written(values: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of all that is no mapping, and of empty mappings; a list, then its entries."""
    if isinstance(values, Mapping) and values:
        for name, value in values.items():
            yield from written(value, join(at, str(name)))
        return
    yield at, values
    for i, entry in enumerate(values if isinstance(values, list) else ()):
        yield from written(entry, join(at, i))


def _touches(path: str, key: str) -> bool:
    return path == key or beneath(path, key) or beneath(key, path)


def _origin_of(key: str, marks: Mapping[str, str]) -> str:
    """Its own mark; else one inside it (an entry of a list); else one above it, for a whole section."""
    if key in marks:
        return marks[key]
    inside = [origin for path, origin in marks.items() if beneath(path, key)]
    if inside:
        return inside[-1]
    above = (a for a in ancestors(key) if a in marks and not _holds_sections(a))
    return next((marks[a] for a in above), DEFAULT)


def _holds_sections(path: str) -> bool:
    """Is it a list of sections? Its entries have marks of their own; what they leave out is the default."""
    key = schema_keys().get(generalised(path))
    return key is not None and item_section(key.field.annotation) is not None


def set_in_python(section: Any, at: str = "") -> Iterable[str]:
    """The keys that were given when a section was built in Python rather than read."""
    for name in section.model_fields_set:
        value, path = getattr(section, name), join(at, name)
        entries = value if isinstance(value, list) else []
        if hasattr(value, "model_fields_set"):
            yield from set_in_python(value, path)
        elif entries and all(hasattr(v, "model_fields_set") for v in entries):
            for i, entry in enumerate(entries):
                yield from set_in_python(entry, join(path, i))
        else:
            yield path
