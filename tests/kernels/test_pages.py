"""Memory in blocks."""

from __future__ import annotations

import gc
import mmap
from itertools import pairwise

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


def test_a_block_is_given_back_with_the_last_tensor_in_it() -> None:
    pages = Pages()
    kept, dropped = pages.empty(10, dtype=torch.uint8), pages.empty(10, dtype=torch.uint8)
    del dropped
    gc.collect()
    assert isinstance(pages._block(), mmap.mmap)
    del kept
    gc.collect()
    assert pages._block() is None
