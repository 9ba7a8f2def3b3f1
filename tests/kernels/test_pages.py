"""Memory in large pages."""

from __future__ import annotations

import gc
import mmap
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from assay.kernels.pages import BLOCK, LINE, Pages


def test_tensors_lie_behind_each_other_zero_and_apart() -> None:
    pages = Pages()
    first, second = pages.empty(3, 5, dtype=torch.bfloat16), pages.empty(7, dtype=torch.float32)
    assert (first.shape, second.shape) == ((3, 5), (7,))
    assert second.data_ptr() - first.data_ptr() == LINE
    assert not first.any()
    assert not second.any()
    first.fill_(1)
    assert not second.any()


def test_what_does_not_fit_begins_a_block_and_what_is_too_large_has_its_own() -> None:
    pages = Pages()
    quarter = BLOCK // 4
    places = [pages.empty(quarter, dtype=torch.uint8) for _ in range(5)]
    gaps = [after.data_ptr() - before.data_ptr() for before, after in pairwise(places)]
    assert gaps[:3] == [quarter] * 3
    assert gaps[3] != quarter
    assert pages.empty(2 * BLOCK, dtype=torch.uint8).numel() == 2 * BLOCK


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages to ask for")
def test_a_block_is_private_and_large_pages_are_asked_for_it() -> None:
    """Shared memory, Python's default, would not get them: most systems have no large pages for it."""
    place = Pages().empty(10, dtype=torch.uint8)
    where = place.data_ptr()
    areas = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(encoding="utf-8"), flags=re.M)
    bounds = [(tuple(int(end, 16) for end in area.split()[0].split("-")), area) for area in areas if area]
    (area,) = [area for (begin, end), area in bounds if begin <= where < end]
    flags = area.split("VmFlags:")[1].split()
    assert "hg" in flags
    assert "sh" not in flags


def test_a_block_is_given_back_with_the_last_tensor_in_it() -> None:
    pages = Pages()
    kept, dropped = pages.empty(10, dtype=torch.uint8), pages.empty(10, dtype=torch.uint8)
    del dropped
    gc.collect()
    assert isinstance(pages._block(), mmap.mmap)
    del kept
    gc.collect()
    assert pages._block() is None
