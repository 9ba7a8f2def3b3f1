"""Norms and gates of an update by compiled loops, and their gradients, against automatic differentiation in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from assay.kernels.build import Unavailable
from assay.kernels.sublayers import SublayerKernels, sublayer_kernels
from assay.policy.sublayers import RmsNorm

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
GAPS = {torch.float32: 3e-6, torch.bfloat16: 2**-8}


def close(found: Tensor, exact: Tensor, gap: float) -> None:
    torch.testing.assert_close(found.double(), exact.detach(), rtol=gap, atol=gap * float(exact.detach().abs().max()))


@given(st.integers(0, 9), st.sampled_from([1, 7, 100]), st.sampled_from([5, 64, 576]), DTYPES)
@settings(deadline=None)
def test_a_norm(seed: int, rows: int, size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(1, rows, size, generator=generator), torch.randn(size, generator=generator)
    dy = torch.randn(1, rows, size, generator=generator).to(dtype)
    kernels = SublayerKernels(dtype)
    y, r = kernels.normalise(x, weight, 1e-5)
    dx, dw = kernels.pull_norm(x, weight, r, dy)
    exact = x.double().requires_grad_(), weight.double().requires_grad_()
    out = rms_norm(exact[0], (size,), exact[1], 1e-5)
    wanted = torch.autograd.grad(out, exact, dy.double())
    close(y, out, GAPS[dtype])
    assert y.dtype == dtype
    for mine, theirs in zip((dx, dw), wanted, strict=True):
        close(mine, theirs, 3e-6)
        assert mine.dtype == torch.float32


@given(st.integers(0, 9), st.sampled_from([1, 33, 5000]), st.sampled_from([0.5, 30.0]), DTYPES)
@settings(deadline=None)
def test_a_gate(seed: int, count: int, scale: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    g, u, dh = ((torch.randn(1, count, generator=generator) * scale).to(dtype) for _ in range(3))
    kernels = SublayerKernels(dtype)
    exact = [part.double().requires_grad_() for part in (g, u)]
    out = silu(exact[0]) * exact[1]
    dg, du = torch.autograd.grad(out, exact, dh.double())
    close(kernels.gate(g, u), out, GAPS[dtype])
    for mine, theirs in zip(kernels.pull_gate(g, u, dh), (out, dg, du), strict=True):
        close(mine, theirs, GAPS[dtype])
        assert mine.dtype == dtype


def test_numbers_at_the_ends_and_nan() -> None:
    kernels = SublayerKernels(torch.float32)
    g = torch.tensor([[-1e30, -200.0, -88.0, 0.0, 88.0, 200.0, 1e30, math.nan]])
    ones = torch.ones_like(g)
    h, dg, du = kernels.pull_gate(g, ones, ones.clone())
    assert h[0, :7].tolist() == pytest.approx([0, 0, 0, 0, 88.0, 200.0, 1e30], rel=1e-6, abs=1e-30)
    assert dg[0, :7].tolist() == pytest.approx([0, 0, 0, 0.5, 1, 1, 1], rel=1e-6, abs=1e-30)
    assert all(part[0, 7].isnan() for part in (h, dg, du))


def test_other_precisions_have_none() -> None:
    assert sublayer_kernels(torch.float64) is None
    with pytest.raises(Unavailable):
        SublayerKernels(torch.float16)


def test_a_norm_of_what_does_not_lie_in_order() -> None:
    """Queries are normalised after they were transposed, in some families."""
    x = torch.randn(2, 3, 5, 16, generator=torch.Generator().manual_seed(0)).transpose(1, 2).requires_grad_()
    weight = torch.linspace(0.5, 2, 16, requires_grad=True)
    results = [RmsNorm.apply(x, weight, 1e-6, torch.float32, compiled) for compiled in (True, False)]
    gradients = [torch.autograd.grad(y, (x, weight), torch.cos(y.detach())) for y in results]
    for mine, theirs in zip((results[0], *gradients[0]), (results[1], *gradients[1]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
