"""Memory from the system itself: none before it is written to, and given back whole, without holes in a heap."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from pathlib import Path

import torch
from torch import Tensor


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

    Not in large pages, also where the system would hand them out unasked: a large one is taken whole, and having them
    made for weights at each publish took it longer than products gained.
    """
    count = math.prod(shape)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    block = mmap.mmap(-1, max(count * dtype.itemsize, 1), flags=flags)
    with contextlib.suppress(AttributeError, OSError):  # a kernel without large pages: there are only small ones
        block.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(block, dtype=dtype, count=count).view(shape)
