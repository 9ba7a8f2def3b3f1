"""Memory in large pages: a processor that reads through hundreds of megabytes looks up far fewer of them."""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from collections.abc import Callable

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


def _block(size: int) -> mmap.mmap:
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return mmap.mmap(-1, size)
    # Private: what Python maps by default is shared, which most systems never put into large pages.
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without large pages: small ones do as well, only slower
        block.madvise(advice)
    return block
