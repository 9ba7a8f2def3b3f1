"""``key=value`` overrides: the key is a path of the schema, the value YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from assay.errors import UserError
from assay.recipe.keys import (
    generalised,
    item_section,
    join,
    meant,
    schema_keys,
    section_in,
    split,
    unknown_keys,
)
from assay.recipe.layer import first_line
from assay.recipe.schema import Recipe, Section


@dataclass(frozen=True)
class Override:
    """One value for one key; it may reach into a list."""

    key: str
    """In its canonical spelling: ``reward.parts[0].weight``."""
    value: Any


def read_override(text: str) -> Override:
    """Read ``key=value``. Raises UserError for another form, a value that is no YAML, and an unknown key.

    >>> read_override("reward.parts.0.weight=2")
    Override(key='reward.parts[0].weight', value=2)
    >>> read_override("data.train=[a.jsonl]").value
    ['a.jsonl']
    """
    key, value = read_pair(text, "override", "update.learning_rate=1e-6")
    override = Override(_known_path(key), value)
    for fault in _unknown_inside(override):
        raise UserError(f"override: unknown key {fault!r}{meant(fault)}")
    return override


def read_pair(text: str, what: str, example: str) -> tuple[str, Any]:
    """Split ``key=value`` and read the value as YAML. Raises UserError, which says ``what`` it was for.

    >>> read_pair("tolerance=1e-3", "option", "tag=answer")
    ('tolerance', 0.001)
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"{what} {text!r}: write it as key=value, such as {example}")
    try:
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={value}"]), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        reason = getattr(error, "problem", None) or first_line(error)
        raise UserError(f"{what} {text!r}: the value is broken YAML: {reason}") from None
    return key.strip(), cast("dict[str, Any]", parsed)["value"]


def _known_path(written: str) -> str:
    """The path in its canonical spelling. Raises UserError when the schema does not lead there."""
    path, section = "", cast("type[Section] | None", Recipe)
    entry: type[Section] | None = None
    for step in split(written):
        if isinstance(step, int) and path:
            section, entry = entry, None
        elif section is not None:
            field = section.model_fields.get(str(step))
            if field is None:
                raise UserError(f"override: unknown key {written!r}{meant(join(path, step))}")
            section, entry = section_in(field.annotation), item_section(field.annotation)
        elif not (path + ".").count(".options."):  # beneath a verifier's options anything goes
            raise UserError(f"override: unknown key {written!r}: {path} holds a value, not keys")
        path = join(path, step)
    return path


def _unknown_inside(override: Override) -> list[str]:
    """Unknown keys within the value, where it stands for a section, a list of sections or an entry of one."""
    path, value = override.key, override.value
    key = schema_keys().get(generalised(path))
    if key is None:
        list_key = schema_keys().get(generalised(path).removesuffix("[]"))
        entry = item_section(list_key.field.annotation) if list_key else None
        return list(unknown_keys(value, entry, path)) if entry and isinstance(value, dict) else []
    if key.section is not None and isinstance(value, dict):
        return list(unknown_keys(value, key.section, path))
    entry = item_section(key.field.annotation)
    if entry is not None and isinstance(value, list):
        entries = [(join(path, i), v) for i, v in enumerate(value) if isinstance(v, dict)]
        return [fault for at, v in entries for fault in unknown_keys(v, entry, at)]
    return []
