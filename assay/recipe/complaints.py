"""What is wrong with a value, in plain words: pydantic's errors as one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from assay.errors import nearest
from assay.recipe.keys import join, schema_keys

_KINDS: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of reasonable size",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping of keys",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
}
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def complaints(error: ValidationError) -> list[tuple[str, str]]:
    """For each faulty key, in the schema's order: its path and a sentence, "must be a number, not 'x'"."""
    faults: dict[str, list[Any]] = {}
    for fault in error.errors(include_url=False):
        faults.setdefault(_path(fault["loc"]), []).append(fault)
    return [(path, _sentence(path, found)) for path, found in faults.items()]


def shown(value: Any) -> str:
    """A value as it stands in YAML: ``null``, ``true``, quoted text, shortened where it is long."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    short = f"{value:g}" if isinstance(value, float) else ""
    text = short if short and float(short) == value else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _path(loc: Sequence[str | int]) -> str:
    """The key path of a pydantic location, without the tags that it adds for the branches of a union."""
    path, general = "", ""
    for step in loc:
        longer = join(general, step) if isinstance(step, str) else general + "[]"
        inside = any(k == longer or k.startswith(longer + ".") for k in schema_keys())
        if isinstance(step, str) and not inside:
            break
        path, general = join(path, step), longer
    return path


def _sentence(path: str, faults: Sequence[Any]) -> str:
    """One sentence for all faults of one key: several only where the key takes several types."""
    wanted = [_wanted(fault) for fault in faults]
    if len(wanted) > 1:
        kinds = " or ".join(dict.fromkeys(w.removeprefix("must be ") for w in wanted))
        return f"must be {kinds}, not {shown(faults[0]['input'])}"
    fault, text = faults[0], wanted[0]
    if fault["type"] == "missing":
        return "is missing"
    sentence = f"{text}, not {shown(fault['input'])}"
    if fault["type"] == "string_type" and not isinstance(fault["input"], (list, dict, type(None))):
        sentence += ": put it in quotes"
    if fault["type"] == "list_type" and isinstance(fault["input"], str):
        sentence += f": write [{fault['input']}]"
    if fault["type"] == "literal_error":
        sentence += nearest(str(fault["input"]), _choices(fault))
    return sentence


def _choices(fault: Any) -> list[str]:
    """The values that a choice allows."""
    return [c.strip("'") for c in fault["ctx"]["expected"].replace(" or ", ", ").split(", ")]


def _wanted(fault: Any) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}"
    if kind in _BOUNDS:
        word, bound = _BOUNDS[kind]
        return f"must be {word} {context[bound]:g}"
    if kind == "literal_error":
        return "must be one of " + ", ".join(_choices(fault))
    if kind == "too_short":
        return f"must have at least {context['min_length']} entry"
    return "is wrong: " + fault["msg"][:1].lower() + fault["msg"][1:]
