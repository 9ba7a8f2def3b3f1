"""Memory of the system's own: in blocks that are given back whole, or none before it is written to."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

BLOCK = 64 << 20
"""Bytes that are asked of the system at once, at least; what is not written to takes no memory."""
LINE = 64
"""Bytes at a multiple of which each tensor begins."""


class Pages:
    """Hands out tensors one behind another; a block is given back with the last tensor in it."""

    def __init__(self) -> None:
        self._block: Callable[[], mmap.mmap | None] = lambda: None
        self._used = 0

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A tensor of zeros, as the system gives them."""
        count = math.prod(shape)
        size = -(-count * dtype.itemsize // LINE) * LINE
        block = self._block()
        if block is None or self._used + size > len(block):
            block = _block(max(size, BLOCK))
            self._block, self._used = weakref.ref(block), 0
        taken = torch.frombuffer(block, dtype=dtype, count=count, offset=self._used).view(shape)
        self._used += size
        return taken


def on_demand() -> bool:
    """Does the system let more memory be mapped than it has, and take none before it is written to?"""
    if sys.platform != "linux":
        return False
    import resource  # there is none on Windows

    try:
        strict = Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip() == "2"
    except OSError:
        return False
    return not strict and resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def untouched(*shape: int, dtype: torch.dtype) -> Tensor:
    """A tensor of zeros, of which only what is written to takes memory, where `on_demand`.

    Not in large pages, also where the system would hand them out unasked.
    """
    count = math.prod(shape)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    block = mmap.mmap(-1, max(count * dtype.itemsize, 1), flags=flags)
    _advise(block, "MADV_NOHUGEPAGE")
    return torch.frombuffer(block, dtype=dtype, count=count).view(shape)


def _block(size: int) -> mmap.mmap:
    # Private, where a system knows the word, and not in large pages: having those made for each publish took it longer
    # than the products gained.
    private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    return mmap.mmap(-1, size, flags=private) if private else mmap.mmap(-1, size)


def _advise(block: mmap.mmap, advice: str) -> None:
    with contextlib.suppress(AttributeError, OSError):  # a kernel without large pages: there are only small ones
        block.madvise(getattr(mmap, advice))
