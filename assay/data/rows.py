"""A row of data before anything is known about what its columns mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One row of a source."""

    columns: Mapping[str, Any]
    """All columns, as the source has them."""
    source: str
    """Where it is, for messages: ``file:row``, counted from 1, or ``reasoning_gym:NAME[index]``."""
    kind: str
    """``file``, ``hub`` or ``reasoning_gym:NAME``: part of the prompt's id, which outlives a renamed file."""
