"""One source of values (a file, a mapping, a preset, an override) and where in it each value stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from assay.errors import UserError, nearest
from assay.recipe.keys import ancestors, join

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser that OmegaConf uses too, so that both accept the same files."""


@dataclass(frozen=True)
class Layer:
    """Values, as a nested mapping, from one source."""

    name: str
    """``recipe PATH``, ``recipe`` (a mapping in memory), ``preset NAME`` or ``override``."""
    values: dict[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    """1-based line of each key, where the source has lines."""

    def origin(self, key: str) -> str:
        """Where ``key`` was set: the name, with the line where there is one."""
        return f"{self.name}:{self.lines[key]}" if key in self.lines else self.name

    def place(self, key: str) -> str:
        """The start of a message about ``key``: ``FILE:LINE``, its own line or its section's; or the name."""
        name = self.name.removeprefix("recipe ")
        line = next((self.lines[a] for a in ancestors(key) if a in self.lines), None)
        return f"{name}:{line}" if line is not None else name


def read_file(path: Path) -> Layer:
    """Read a YAML recipe. Raises UserError for a missing or unreadable file, broken YAML, duplicate keys."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = [file.name for file in path.parent.glob("*.y*ml")]
        raise UserError(f"{path}: there is no such recipe file{nearest(path.name, beside)}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; give the recipe file in it") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a text file in UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        node = yaml.compose(text, Loader=_LOADER)
        lines = dict(_lines(node, path)) if node is not None else {}
        values = OmegaConf.to_container(OmegaConf.create(text), resolve=False) if lines else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UserError(f"{where}: broken YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: broken YAML: {' '.join(str(error).split())}") from None
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {first_line(error)}") from None
    assert isinstance(values, dict)  # a mapping node holds keys; _lines has refused any other
    return Layer(f"recipe {path}", {str(k): v for k, v in values.items()}, lines)


def read_mapping(values: Mapping[str, Any]) -> Layer:
    """A recipe given as a mapping in memory. Raises UserError for values that no recipe can hold."""
    try:
        plain = OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=False)
    except OmegaConfBaseException as error:
        raise UserError(f"recipe: {first_line(error)}") from None
    assert isinstance(plain, dict)
    return Layer("recipe", {str(k): v for k, v in plain.items()})


def first_line(error: BaseException) -> str:
    """The first line of a message: OmegaConf adds where its objects lie, which says nothing to a user."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _lines(node: yaml.Node, path: Path) -> Iterator[tuple[str, int]]:
    """Each key's path and line. Raises UserError for a root that is no mapping and keys written twice."""
    if not isinstance(node, yaml.MappingNode):
        held = {yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value"}[type(node)]
        raise UserError(f"{path}:{node.start_mark.line + 1}: a recipe is a mapping of keys, not {held}")
    yield from _walk(node, "", path, ())


def _walk(node: yaml.Node, at: str, path: Path, above: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    if id(node) in above:
        raise UserError(f"{path}:{node.start_mark.line + 1}: {at or 'the recipe'} contains itself")
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for i, entry in enumerate(node.value):
            yield join(at, i), entry.start_mark.line + 1
            yield from _walk(entry, join(at, i), path, above)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                yield from _walk(value, at, path, above)
                continue
            name = str(key.value)
            if name in seen:
                raise UserError(f"{path}:{line}: {join(at, name)} is written twice, first on line {seen[name]}")
            seen[name] = line
            yield join(at, name), line
            yield from _walk(value, join(at, name), path, above)
