"""A name-to-thing table with a decorator: how estimators, losses, verifiers and engines are found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Generic, TypeVar

from assay.errors import UserError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one ``kind``, each registered once under a name.

    ``package``: where they are filed by being imported, which the first look-up sees to.

    >>> shapes: Registry[object] = Registry("shape")
    >>> @shapes.register("dot")
    ... class Dot: ...
    >>> shapes["dot"] is Dot, sorted(shapes)
    (True, ['dot'])
    >>> shapes["dott"]
    Traceback (most recent call last):
    assay.errors.UserError: unknown shape 'dott' (did you mean 'dot'?); known: dot
    """

    def __init__(self, kind: str, package: str | None = None) -> None:
        self.kind = kind
        self._package = package
        self._filed: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that files what it decorates under ``name``; a name is given once."""

        def file(thing: T) -> T:
            if name in self._filed:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._filed[name] = thing
            return thing

        return file

    @property
    def _things(self) -> dict[str, T]:
        if self._package is not None:
            import_module(self._package)
        return self._filed

    def __getitem__(self, name: str) -> T:
        try:
            return self._things[name]
        except KeyError:
            known = ", ".join(sorted(self._things))
            raise UserError(f"unknown {self.kind} {name!r}{nearest(name, self._things)}; known: {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)
