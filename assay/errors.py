"""Errors a person can act on, and the exit status each one ends the command with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AssayError(Exception):
    """A run failed for a reason that is not the user's to mend in the recipe (exit status 1)."""

    exit_code = 1


class UserError(AssayError):
    """Something the user can mend: recipe, data, paths, a missing extra (exit status 2).

    The message is one line that says what is wrong, where (file and line, row, or key), and the mend.
    """

    exit_code = 2


class MissingExtra(UserError):
    """A feature needs a package of an optional extra that is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package {package!r}, which is not installed: pip install 'assay[{extra}]'"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the known name closest to ``name``, or an empty string.

    >>> nearest("clip_hgih", ["clip_low", "clip_high"])
    " (did you mean 'clip_high'?)"
    >>> nearest("zebra", ["clip_low"])
    ''
    """
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""
