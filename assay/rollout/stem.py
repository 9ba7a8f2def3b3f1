"""What several prompts begin with, such as a system message: computed once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from torch import Tensor

STEM = 16
"""Prompts that begin alike share so many tokens at least, or none."""


def stem_length(prompts: Sequence[Sequence[int]]) -> int:
    """With how many same tokens the prompts begin, the last of each left out; 0 below `STEM`, or for a single one.

    >>> stem_length([range(20), range(30)]), stem_length([range(20), range(20)]), stem_length([range(20)])
    (19, 19, 0)
    """
    alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
    length = min(sum(1 for _ in alike), min(map(len, prompts)) - 1)
    return length if length >= STEM and len(prompts) > 1 else 0


class Stem:
    """Keeps keys and values of a stem's C tokens, outside the slots: per layer (1, H, C, D). A cache view."""

    def __init__(self, length: int) -> None:
        self.length = length
        """C."""
        self.layers: list[tuple[Tensor, Tensor]] = []

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Keep one layer's, and return them to attend to."""
        self.layers.append((key, value))
        return key, value

    shared = None
    rows = None
    """It attends to what it is given."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens cached before this call: none."""
        return 0
