"""Files that are either whole or not there, however a run ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_aside(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a neighbouring file, then rename it: readers see the old or the new, whole.

    The neighbour's name begins with a dot and ends in ``.tmp``; one left by a killed run is overwritten.
    """
    aside = path.with_name(f".{path.name}.tmp")
    write(aside)
    with open(aside, "rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, path)
