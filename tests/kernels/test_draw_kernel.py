"""Drawing by the kernel against definition and against torch's operations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.kernels.draw import DrawKernel
from assay.rollout.sampling import Sampling, draw_kernel, sample

KERNEL = draw_kernel(torch.float32)


@given(
    seed=st.integers(0, 99),
    rows=st.integers(1, 9),
    vocabulary=st.sampled_from([1, 2, 40, 127, 128, 129, 1000]),
    scale=st.sampled_from([0.1, 3.0, 60.0]),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(deadline=None)
def test_tokens_are_those_of_the_cumulative_distribution(
    seed: int, rows: int, vocabulary: int, scale: float, temperature: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, vocabulary, generator=generator) * scale).to(dtype)
    uniforms = torch.rand(rows, generator=generator, dtype=torch.float64)
    tokens, logprobs, _ = DrawKernel(dtype, 128)(logits, torch.full((rows,), 1 / temperature), uniforms)
    exact = (logits.double() / temperature).log_softmax(-1)
    at = exact.gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs.double(), at, rtol=2e-6, atol=2e-6)
    above = exact.exp().cumsum(-1).gather(1, tokens[:, None])[:, 0]
    below = above - at.exp()
    assert (uniforms <= above + 1e-6).all()
    assert (uniforms >= below - 1e-6).all()


def test_what_is_impossible_is_never_drawn() -> None:
    logits = torch.full((3, 300), -math.inf)
    logits[:, [0, 129, 299]] = 0.0
    for uniform in (0.0, 0.5, 1 - 2**-53):
        drawn = sample(logits, torch.full((3,), uniform, dtype=torch.float64), [Sampling()] * 3, KERNEL)
        assert set(drawn.tokens.tolist()) <= {0, 129, 299}
        assert drawn.full_logprobs.tolist() == pytest.approx([-math.log(3)] * 3)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_diverged_logits_are_refused(broken: float) -> None:
    logits = torch.zeros(4, 300)
    logits[2, 77] = broken
    with pytest.raises(AssayError, match=r"in 1 of 4 rows \(first: row 2\)"):
        sample(logits, torch.full((4,), 0.5, dtype=torch.float64), [Sampling()] * 4, KERNEL)


def test_it_draws_what_torch_draws_greedy_and_cut_rows_among_them() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(400, 1000, generator=generator) * 2
    uniforms = torch.from_numpy(np.random.default_rng(1).random(400))
    kinds = [Sampling(), Sampling(greedy=True), Sampling(temperature=0.5, top_p=0.8), Sampling(top_k=7, min_p=0.1)]
    settings_ = [kinds[row % 4] for row in range(400)]
    plain, compiled = (sample(logits, uniforms, settings_, kernel) for kernel in (None, KERNEL))
    assert plain.kept_logprobs is not None
    assert compiled.kept_logprobs is not None
    assert (plain.tokens == compiled.tokens).float().mean() > 0.995, "but for uniform numbers on an edge"
    same = plain.tokens == compiled.tokens
    for name in ("full_logprobs", "kept_logprobs"):
        mine, theirs = getattr(compiled, name)[same], getattr(plain, name)[same]
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
