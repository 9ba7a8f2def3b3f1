"""An attack: a name, what must become of its completions, and the function that makes them of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from assay.registry import Registry
from assay.reward.audit.subject import Nature, Subject

Expect = Literal["accept", "reject"]
Make = Callable[[Subject], Iterable[str]]


@dataclass(frozen=True)
class Attack:
    """One way to try a verifier."""

    name: str
    expect: Expect
    """``accept``: its completions are right, in another form. ``reject``: they are wrong, and look right."""
    make: Make
    natures: tuple[Nature, ...]
    """The kinds of gold answers that it is for."""

    def completions(self, subject: Subject) -> list[str]:
        """The completions it makes of a row; none where it does not apply."""
        return list(dict.fromkeys(self.make(subject))) if subject.nature in self.natures else []


attacks: Registry[Attack] = Registry("attack", "assay.reward.audit")
"""Attacks by name, complete once ``assay.reward.audit`` is imported."""

EVERY: tuple[Nature, ...] = ("number", "choice", "json", "code", "text")


def attack(name: str, expect: Expect, natures: tuple[Nature, ...] = EVERY) -> Callable[[Make], Make]:
    """Return a decorator that files a function from a row to completions as an attack."""

    def file(make: Make) -> Make:
        attacks.register(name)(Attack(name, expect, make, natures))
        return make

    return file
