"""The page of all keys, docs/recipe.md, written from the schema: ``python -m assay.recipe.reference``.

Another path may be given: ``python -m assay.recipe.reference PATH``.
"""

from __future__ import annotations

import re
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic_core import PydanticUndefined

from assay.recipe.complaints import shown
from assay.recipe.keys import Key, item_section, schema_keys
from assay.recipe.load import load_recipe
from assay.recipe.presets import PRESETS
from assay.recipe.save import MACHINE, MAY_CHANGE
from assay.recipe.schema import Recipe, Section

PAGE = Path(__file__).parents[2] / "docs" / "recipe.md"
"""Where the page lies in the repository."""

INTRODUCTION = """# The recipe

One YAML file says everything that decides a run. Every key has a default, so a recipe is short:

```yaml
preset: dapo
model:
  path: HuggingFaceTB/SmolLM2-135M-Instruct
data:
  train: [problems.jsonl]
  holdout: 200
update:
  learning_rate: 2.0e-6
```

Values come from the defaults, then the preset, then the recipe, then `key=value` overrides on the command
line; the later wins. Overrides take YAML values and reach into lists:

```
assay train recipe.yaml update.learning_rate=1e-6 'data.train=[a.jsonl, b.jsonl]' 'reward.parts[0].weight=2'
```

`${rollout.max_tokens}` refers to another key, `${oc.env:NAME}` to an environment variable, and `???` leaves a
key open for an override. `assay explain recipe.yaml` prints the objective that comes out, and where each
number came from; `assay explain` alone compares the presets.

A key that is unknown, of the wrong type, or set without being read by anything is refused with file, line and
mend, and so is a combination that cannot work. The complete recipe of a run is saved in its folder as
`recipe.yaml`.

This page is written from the code by `python -m assay.recipe.reference`.
"""


def page() -> str:
    """The whole page, as Markdown."""
    parts = [INTRODUCTION, *_sections(), _presets(), _resume()]
    return "\n".join(parts)


def kind(annotation: Any, constraints: tuple[Any, ...] = ()) -> str:
    """The type of a key in plain words, with its bounds.

    >>> kind(Literal["a", "b"]), kind(int | None, (Ge(1),))
    ('`a`, `b`', 'whole number ≥ 1, or null')
    """
    if get_origin(annotation) is Annotated:
        inner, field = get_args(annotation)
        return kind(inner, tuple(field.metadata))
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        given = [kind(a, constraints) for a in get_args(annotation) if a is not type(None)]
        null = [", or null"] if type(None) in get_args(annotation) else []
        return " or ".join(given) + "".join(null)
    if get_origin(annotation) is list:
        return f"list of {kind(get_args(annotation)[0])}" + ("s" if item_section(annotation) else "")
    if get_origin(annotation) is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    name = {int: "whole number", float: "number", bool: "true or false", str: "text"}[annotation]
    return name + "".join(_bounds(constraints))


def _bounds(constraints: tuple[Any, ...]) -> Iterator[str]:
    for bound in constraints:
        for cls, sign in ((Ge, "≥"), (Gt, ">"), (Le, "≤"), (Lt, "<")):
            if isinstance(bound, cls):
                yield f" {sign} {getattr(bound, cls.__name__.lower()):g}"


def default(key: Key) -> str:
    """The default of a key as it would be written."""
    field = key.field
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or key.section is not None:
        return "`null`" if value is None else ""
    if item_section(field.annotation) is not None:
        return f"`[{{verifier: {value[0].verifier}}}]`" if value else "`[]`"
    return '`""`' if value == "" else f"`{value if isinstance(value, (str, list, dict)) else shown(value)}`"


def _sections() -> Iterator[str]:
    """A heading and a table for each section, the recipe's own keys first."""
    keys = schema_keys()
    opening = {"": Recipe.__doc__ or ""}
    for path, key in keys.items():
        opened = key.section or item_section(key.field.annotation)
        if opened is not None:
            opening[path + ("[]" if key.section is None else "")] = opened.__doc__ or ""
    for section, text in opening.items():
        rows = [k for p, k in keys.items() if p.rpartition(".")[0] == section]
        rows = [k for k in rows if k.section is None or type(None) in get_args(k.field.annotation)]
        if not rows:
            continue
        title = section or "`, `".join(k.path for k in rows)
        lines = [f"\n## `{title}`\n", f"{text}\n" if section else ""]
        lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [_row(k) for k in rows]
        yield "\n".join(line for line in lines if line)


def _row(key: Key) -> str:
    name = key.path.rpartition(".")[2]
    bounds = tuple(m for m in key.field.metadata if not isinstance(m, MinLen))
    what = kind(key.field.annotation, bounds)
    meaning = " ".join((key.field.description or "").split())
    return f"| `{name}` | {what} | {default(key)} | {_markdown(meaning)} |"


def _markdown(text: str) -> str:
    """Docstring marks as Markdown's, safe within a table."""
    return re.sub(r"``(.+?)``", r"`\1`", text).replace("|", "\\|")


def _presets() -> str:
    """What each preset sets, and what its source says."""
    lines = ["\n## Presets\n", "`preset: NAME` sets these keys; what the recipe writes wins over them.\n"]
    for name in PRESETS:
        make = PRESETS[name]
        lines.append(f"### `{name}`\n")
        lines.append(_markdown(re.sub(r"\n +", "\n", (make.__doc__ or "").strip())) + "\n")
        recipe = load_recipe({"preset": name}, check=False)
        set_here = {k: v for k, v in make().items() if recipe.origins[k] == f"preset {name}"}
        lines.append("```yaml")
        lines += [f"{key}: {shown(value).strip(chr(39))}" for key, value in set_here.items()]
        lines.append("```\n")
    return "\n".join(lines)


def _resume() -> str:
    """Which keys may change."""
    free, machine = (", ".join(f"`{key}`" for key in keys) for keys in (MAY_CHANGE, MACHINE))
    text = (
        f"A run resumes with the recipe it began with. These keys and sections may change: {free}; and, "
        f"unless the run is deterministic, those that fit it to a machine: {machine}. Any other change is "
        "refused, key by key."
    )
    wrapped = textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)
    return f"## Resuming with another recipe\n\n{wrapped}\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE).write_text(page(), encoding="utf-8")
