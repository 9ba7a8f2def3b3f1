"""Products with arranged weights against float64, for any shape."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels.build import Unavailable
from assay.kernels.product import ProductKernel

try:
    KERNEL = ProductKernel()
except Unavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

DTYPE = torch.bfloat16


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DTYPE)


@given(
    seed=st.integers(0, 99),
    rows=st.integers(1, 40),
    depth=st.sampled_from([1, 2, 3, 15, 16, 17, 64, 129, 576]),
    width=st.sampled_from([1, 15, 16, 17, 47, 48, 49, 96, 100, 500]),
    biased=st.booleans(),
)
@settings(deadline=None)
def test_products_are_the_exact_ones_rounded(seed: int, rows: int, depth: int, width: int, biased: bool) -> None:
    x, weight, bias = drawn(seed, rows, depth), drawn(seed + 1, width, depth), drawn(seed + 2, width)
    found = KERNEL(x, KERNEL.arranged(weight), width, bias if biased else None)
    exact = x.double() @ weight.double().T + (bias.double() if biased else 0)
    sizes = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    assert found.shape == (rows, width)
    assert ((found.double() - exact).abs() <= exact.abs() / 256 + sizes * depth * 2**-24).all()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_a_row_depends_neither_on_its_neighbours_nor_on_threads(threads: int) -> None:
    x, panels = drawn(0, 37, 200), KERNEL.arranged(drawn(1, 130, 200))
    together, before = KERNEL(x, panels, 130, None), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(KERNEL(x, panels, 130, None), together)
        assert torch.equal(torch.cat([KERNEL(x[[i]], panels, 130, None) for i in range(37)]), together)
    finally:
        torch.set_num_threads(before)


def test_what_is_no_number_stays_in_its_row_and_its_output() -> None:
    x, weight = drawn(0, 5, 31), drawn(1, 50, 31)
    sound = KERNEL(x, KERNEL.arranged(weight), 50, None)
    x[2, 30], weight[49, 30] = math.nan, math.inf
    found = KERNEL(x, KERNEL.arranged(weight), 50, None)
    assert found[2].isnan().all()
    assert not found[[0, 1, 3, 4], 49].isfinite().any()
    assert torch.equal(found[[0, 1, 3, 4], :49], sound[[0, 1, 3, 4], :49])


@pytest.mark.parametrize(
    ("x", "width"),
    [
        (torch.zeros(2, 30, dtype=DTYPE), 50),
        (torch.zeros(2, 20, dtype=DTYPE), 100),
        (torch.zeros(2, 20), 50),
        (torch.zeros(20, 2, dtype=DTYPE).T, 50),
    ],
)
def test_what_does_not_fit_is_refused(x: torch.Tensor, width: int) -> None:
    panels = KERNEL.arranged(torch.zeros(50, 20, dtype=DTYPE))
    with pytest.raises(ValueError, match=r"arranged|takes contiguous"):
        KERNEL(x, panels, width, None)
