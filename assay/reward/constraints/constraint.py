"""One instruction with its arguments: how it is found by its id, read strictly, and checked.

A check gets the text and the arguments and returns why the text breaks the instruction, or ``""`` where it
keeps it. An unknown id, an argument that is missing, unknown or of a wrong kind is an error of the data: a
checker that guesses what was asked would pay at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ValidationError

from assay.errors import UserError, nearest
from assay.recipe.schema import Section
from assay.registry import Registry

Arguments = TypeVar("Arguments", bound=Section)
Check = Callable[[str, Any], str]

_RELATIONS = {
    "at least": "at least", ">=": "at least", "no less than": "at least", "no fewer than": "at least",
    "at most": "at most", "<=": "at most", "no more than": "at most",
    "less than": "less than", "<": "less than", "fewer than": "less than",
    "more than": "more than", ">": "more than", "greater than": "more than",
    "exactly": "exactly", "==": "exactly", "=": "exactly", "equal to": "exactly",
}  # fmt: skip


def _relation(value: Any) -> Any:
    return _RELATIONS.get(" ".join(str(value).replace("_", " ").lower().split()), value)


Relation = Annotated[Literal["at least", "at most", "less than", "more than", "exactly"], BeforeValidator(_relation)]
"""How a count is compared with the number asked for."""


class NoArguments(Section):
    """An instruction that needs nothing said."""


@dataclass(frozen=True)
class Constraint:
    """A kind of instruction."""

    name: str
    arguments: type[Section]
    check: Check


@dataclass(frozen=True)
class Instruction:
    """An instruction of a row, ready to be checked."""

    constraint: Constraint
    arguments: Section

    def fault(self, text: str) -> str:
        """Why the text breaks the instruction, or ``""``."""
        return self.constraint.check(text, self.arguments)


constraints: Registry[Constraint] = Registry("instruction", "assay.reward.constraints")
"""Kinds of instructions by id, complete once ``assay.reward.constraints`` is imported."""


def constraint(name: str, arguments: type[Section] = NoArguments) -> Callable[[Check], Check]:
    """Return a decorator that files a check under an instruction's id."""

    def file(check: Check) -> Check:
        constraints.register(name)(Constraint(name, arguments, check))
        return check

    return file


def read_instruction(name: str, arguments: Mapping[str, Any]) -> Instruction:
    """An instruction from its id and arguments; UserError says what is unknown, missing or wrong.

    Arguments that are ``None`` count as not given (data sets write every key); ``description`` is a remark.

    >>> read_instruction("punctuation:no_comma", {"keyword": None}).fault("a, b")
    '1 comma'
    """
    if name not in constraints:
        raise UserError(f"unknown instruction {name[:80]!r}{nearest(name, constraints)}")
    found = constraints[name]
    given = {key: value for key, value in arguments.items() if value is not None and key != "description"}
    known = found.arguments.model_fields
    if unknown := [key for key in given if key not in known]:
        raise UserError(f"instruction {name!r} has no argument {unknown[0]!r}{nearest(unknown[0], known)}")
    try:
        return Instruction(found, found.arguments.model_validate(given))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        what = "is missing" if first["type"] == "missing" else first["msg"].removeprefix("Value error, ")
        raise UserError(f"instruction {name!r}, argument {where!r}: {what}") from None


def compare(count: int | float, relation: str, number: int | float, noun: str) -> str:
    """``""`` where the count stands in the relation to the number, else what was found.

    >>> compare(3, "less than", 4, "words"), compare(3, "at least", 4, "words")
    ('', '3 words, not at least 4')
    """
    kept = {
        "at least": count >= number,
        "at most": count <= number,
        "less than": count < number,
        "more than": count > number,
        "exactly": count == number,
    }[relation]
    return "" if kept else f"{count:g} {noun}, not {relation} {number:g}"
