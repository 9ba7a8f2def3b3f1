"""Costs that a user writes down: a YAML file with the keys of `Costs` and, if wanted, of the workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from assay.errors import UserError, nearest
from assay.plan.basis import Basis, Note
from assay.plan.costs import Costs
from assay.plan.workload import DrawnWork, SeenWork, Workload
from assay.recipe.complaints import shown
from assay.recipe.keys import join
from assay.recipe.layer import Layer, read_file
from assay.recipe.schema import Section

TAGS = frozenset({"drawn", "seen", "constant", "exponential", "lognormal", "observed"})
"""Values of ``kind``: pydantic puts them into the path of a faulty key, where no file has them."""


class CostsFile(Section):
    """What the file holds."""

    costs: Costs
    """Seconds of everything."""
    work: Annotated[DrawnWork | SeenWork, Field(discriminator="kind")] | None = None
    """Lengths of prompts and answers; absent: those of ``--from``, else a guess from the recipe."""


def read_costs(path: Path) -> CostsFile:
    """Read a costs file. Raises UserError with file and line for what is missing, unknown or impossible."""
    if not path.is_file():
        raise UserError(f"--costs: there is no file {path}; docs/plan.md shows one")
    layer = read_file(path)
    try:
        return CostsFile.model_validate(layer.values)
    except ValidationError as error:
        raise UserError("\n".join(_sentence(layer, fault) for fault in error.errors(include_url=False))) from None


def with_work(file: CostsFile, path: Path, work: Workload, notes: Sequence[Note]) -> Basis:
    """The file's costs, with another workload where it has none of its own."""
    if file.work is not None:
        return Basis(file.costs, file.work, (Note("costs and lengths", "as written", "given", str(path)),))
    return Basis(file.costs, work, (Note("costs", "as written", "given", str(path)), *notes))


def _sentence(layer: Layer, fault: Any) -> str:
    path = ""
    for step in fault["loc"]:
        if step not in TAGS:
            path = join(path, step)
    return f"{layer.place(path)}: {path} {_wrong(fault)}"


def _wrong(fault: Any) -> str:
    kind = fault["type"]
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        known = {*Costs.model_fields, *DrawnWork.model_fields, *CostsFile.model_fields}
        return f"is no key here{nearest(str(fault['loc'][-1]), known)}"
    if kind == "value_error":
        return "is wrong: " + str(fault["msg"]).removeprefix("Value error, ")
    return f"is wrong: {fault['msg'][:1].lower()}{fault['msg'][1:]}, not {shown(fault['input'])}"
