"""Memory from the system itself."""

from __future__ import annotations

import gc
import mmap
import sys
from pathlib import Path

import pytest
import torch

from assay.kernels.memory import untouched


def test_tensors_are_zero_and_apart() -> None:
    first, second = untouched(3, 5, dtype=torch.bfloat16), untouched(7, dtype=torch.float32)
    assert (first.shape, second.shape) == ((3, 5), (7,))
    assert first.data_ptr() % mmap.PAGESIZE == second.data_ptr() % mmap.PAGESIZE == 0
    assert not first.any()
    assert not second.any()
    first.fill_(1)
    assert not second.any()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what is mapped")
def test_memory_is_given_back_with_the_last_tensor_in_it() -> None:
    whole = untouched(12_345_678, dtype=torch.uint8)
    place, part = whole.data_ptr(), whole[5:9]
    del whole
    gc.collect()
    assert is_mapped(place)
    del part
    gc.collect()
    assert not is_mapped(place)


def is_mapped(place: int) -> bool:
    """Does an address mean anything in this process?"""
    areas = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ends = ([int(end, 16) for end in area.split()[0].split("-")] for area in areas)
    return any(begin <= place < end for begin, end in ends)
