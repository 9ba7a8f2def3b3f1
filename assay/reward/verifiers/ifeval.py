"""``ifeval``: the completion keeps the instructions of its row (Zhou et al. 2023, arXiv:2311.07911), strictly.

Accepts: text after the thinking that keeps every instruction. Rejects: one that breaks any. Instructions are
read from a column, as ``[{"id": ..., "kwargs": {...}}]`` or as the two lists ``instruction_id_list`` and
``kwargs``; an unknown id, or arguments that are missing, unknown or wrong, make a ``verifier_error``: an
instruction that is not checked must not pay. Left out: nothing is loosened (no dropped first line, no
stripped markdown).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assay.data.conventions import column_at
from assay.errors import UserError
from assay.recipe.schema import Section
from assay.reward.constraints.constraint import Instruction, read_instruction
from assay.reward.extraction import after_thinking
from assay.reward.prose import visible
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error


class IfevalOptions(Section):
    """Options of ``ifeval``."""

    column: str = "constraints"
    """Column (or dotted path) with the list of instructions. Rows without it may have `instruction_id_list`
    and `kwargs`, or the list as their gold answer."""
    score: Literal["all", "share"] = "all"
    """1 only when `all` instructions are kept, or the `share` of those that are."""


@register("ifeval", IfevalOptions)
@dataclass(frozen=True)
class Ifeval:
    """Score 1 when the completion keeps every instruction of its row, else 0."""

    options: IfevalOptions

    def __call__(self, case: Case) -> Judgement:
        """Check each instruction; the message says which is broken, and how."""
        try:
            instructions = read_instructions(self._given(case))
        except UserError as error:
            return verifier_error(str(error))
        spoken = after_thinking(case)
        if spoken.text is None or not visible(spoken.text).strip():
            return no_answer(spoken.why or "the completion is empty")
        faults = [(one.constraint.name, fault) for one in instructions if (fault := one.fault(spoken.text))]
        message = "; ".join(f"{name}: {fault}" for name, fault in faults)
        share = 1 - len(faults) / len(instructions)
        return Judgement(share if self.options.score == "share" else float(not faults), message=message)

    def canary(self, gold: Any) -> str:
        """Any text: what is tried is whether a verdict comes."""
        return "canary"

    def _given(self, case: Case) -> Any:
        listed = column_at(case.columns, self.options.column)
        if listed is None and "instruction_id_list" in case.columns:
            return {"instruction_id": case.columns["instruction_id_list"], "kwargs": case.columns.get("kwargs")}
        return case.gold if listed is None else listed


def read_instructions(given: Any) -> list[Instruction]:
    """The instructions of a row in any of the spellings; UserError for none, unknown or incomplete ones.

    >>> [one.constraint.name for one in read_instructions([{"id": "punctuation:no_comma", "kwargs": {}}])]
    ['punctuation:no_comma']
    """
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise UserError("the row's instructions are not JSON") from None
    if isinstance(given, Mapping):
        given = [given]
    if not isinstance(given, Sequence) or not given:
        raise UserError("the row has no list of instructions")
    found = []
    for one in given:
        if not isinstance(one, Mapping):
            raise UserError(f"an instruction must be an object with id and kwargs, not {type(one).__name__}")
        names = one.get("id", one.get("instruction_id"))
        arguments = one.get("kwargs")
        if isinstance(names, str):
            found.append(_one(names, arguments))
        elif isinstance(names, Sequence) and names and isinstance(arguments, Sequence) and len(arguments) == len(names):
            found.extend(_one(name, each) for name, each in zip(names, arguments, strict=True))
        else:
            raise UserError("an instruction needs an id, and lists of ids need as many kwargs")
    return found


def _one(name: Any, arguments: Any) -> Instruction:
    if not isinstance(name, str) or not isinstance(arguments, (Mapping, type(None))):
        raise UserError("an instruction's id must be a text, and its kwargs an object")
    return read_instruction(name, arguments or {})
