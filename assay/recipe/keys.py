"""Key paths of the recipe, ``update.learning_rate`` or ``reward.parts[0].weight``: walks over the schema."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from assay.recipe.schema import Recipe, Section

_STEP = re.compile(r"([^.\[\]]+)|\[([^\[\]]*)\]")


def section_in(annotation: Any) -> type[Section] | None:
    """The section that a key of this type opens (``LoraRecipe`` of ``LoraRecipe | None``), or None."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        found = [s for s in map(section_in, get_args(annotation)) if s is not None]
        return found[0] if found else None
    return None


def item_section(annotation: Any) -> type[Section] | None:
    """The section that each entry of a list key is (``RewardPart`` of ``list[RewardPart]``), or None."""
    return section_in(get_args(annotation)[0]) if get_origin(annotation) is list else None


def join(path: str, key: str | int) -> str:
    """Append a key or a list index to a path.

    >>> join(join("reward.parts", 0), "weight")
    'reward.parts[0].weight'
    """
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def split(path: str) -> list[str | int]:
    """The steps of a path; indices are integers in both spellings.

    >>> split("reward.parts[0].weight") == split("reward.parts.0.weight") == ["reward", "parts", 0, "weight"]
    True
    """
    steps = (name or index for name, index in _STEP.findall(path))
    return [int(s) if s.lstrip("-").isdigit() else s for s in steps]


def ancestors(path: str) -> Iterator[str]:
    """The path itself, then each shorter path above it.

    >>> list(ancestors("reward.parts[0].weight"))
    ['reward.parts[0].weight', 'reward.parts[0]', 'reward.parts', 'reward']
    """
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind("["), 0)]


def beneath(path: str, above: str) -> bool:
    """Is ``path`` strictly inside ``above``?"""
    return path.startswith((above + ".", above + "["))


@dataclass(frozen=True)
class Key:
    """One documented key of the schema."""

    path: str
    """Entries of a list are written ``parts[]``."""
    field: FieldInfo
    section: type[Section] | None
    """The section it opens, or ``None`` where it holds a value."""


@cache
def schema_keys() -> Mapping[str, Key]:
    """Every key of the schema by its path, sections included, in the order in which the schema lists them."""
    found: dict[str, Key] = {}

    def walk(section: type[Section], path: str) -> None:
        for name, field in section.model_fields.items():
            at = join(path, name)
            opened = section_in(field.annotation)
            found[at] = Key(at, field, opened)
            item = item_section(field.annotation)
            if opened is not None:
                walk(opened, at)
            elif item is not None:
                walk(item, at + "[]")

    walk(Recipe, "")
    return types.MappingProxyType(found)


def flatten(recipe: Section) -> dict[str, Any]:
    """The recipe's values by path; a list of sections is entered, any other list or mapping is one value."""
    found: dict[str, Any] = {}

    def walk(section: Section, path: str) -> None:
        for name in type(section).model_fields:
            value, at = getattr(section, name), join(path, name)
            if isinstance(value, Section):
                walk(value, at)
            elif isinstance(value, list) and value and all(isinstance(v, Section) for v in value):
                for i, entry in enumerate(value):
                    walk(entry, join(at, i))
            else:
                found[at] = value

    walk(recipe, "")
    return found


def unknown_keys(values: Mapping[Any, Any], section: type[Section] = Recipe, path: str = "") -> Iterator[str]:
    """Paths in ``values`` that the schema lacks. Values of a wrong type are not entered: they fail later."""
    for name, value in values.items():
        at = join(path, str(name))
        field = section.model_fields.get(str(name))
        if field is None:
            yield at
            continue
        opened, item = section_in(field.annotation), item_section(field.annotation)
        if opened is not None and isinstance(value, Mapping):
            yield from unknown_keys(value, opened, at)
        elif item is not None and isinstance(value, list):
            for i, entry in enumerate(value):
                if isinstance(entry, Mapping):
                    yield from unknown_keys(entry, item, join(at, i))


def nearest_key(path: str) -> str | None:
    """The known key that was probably meant: the same name elsewhere (a section first), a similar sibling or path.

    >>> nearest_key("update.learning_rte"), nearest_key("learning_rate"), nearest_key("zzz")
    ('update.learning_rate', 'update.learning_rate', None)
    """
    general = re.sub(r"\[\d+\]", "[]", path)
    above, _, name = general.rpartition(".")
    known = list(schema_keys())
    last = {key: key.rpartition(".")[2] for key in known}
    siblings = [k for k in known if k.rpartition(".")[0] == above]
    namesakes = [k for k in known if last[k] == name]
    namesakes = [k for k in namesakes if schema_keys()[k].section is not None] or namesakes
    near = difflib.get_close_matches(name, [last[k] for k in siblings], n=1, cutoff=0.7)
    similar = difflib.get_close_matches(name, list(last.values()), n=1, cutoff=0.75)
    if namesakes:
        found = difflib.get_close_matches(general, namesakes, n=1, cutoff=0.0)[0]
    elif near:
        found = join(above, near[0])
    elif similar:
        found = next(k for k in known if last[k] == similar[0])
    else:
        close = difflib.get_close_matches(general, known, n=1, cutoff=0.6)
        found = close[0] if close else None
    return _with_indices(found, path) if found else None


def _with_indices(key: str, written: str) -> str:
    """Fill ``parts[]`` with the index that was written, or 0."""
    index = re.search(r"\[(\d+)\]", written)
    return key.replace("[]", f"[{index.group(1) if index else 0}]")


def meant(path: str) -> str:
    """Return ``" (did you mean 'x'?)"`` for an unknown path, or nothing."""
    found = nearest_key(path)
    return f" (did you mean {found!r}?)" if found else ""


def generalised(path: str) -> str:
    """The path as the schema spells it.

    >>> generalised("reward.parts[3].weight")
    'reward.parts[].weight'
    """
    return re.sub(r"\[-?\d+\]", "[]", path)
