"""The loops of a decoding step against the same formulas in torch, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.kernels.build import Unavailable
from assay.kernels.decode import CachedRows, DecodeKernels

GAPS = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
"""Relative to the largest number: a few roundings of what is stored."""


@dataclass(frozen=True)
class Case:
    """Rows in random order, some of which share a prompt; slots beyond them, and room behind each."""

    seed: int
    groups: tuple[int, ...]
    prompt: int
    answer: int
    kv_heads: int
    group: int
    width: int
    window: int
    dtype: torch.dtype

    def make(self) -> tuple[Tensor, Tensor, Tensor, CachedRows, Tensor]:
        """Inputs of the kernel: qkv, cosine, sine, rows and the first position that each sees."""
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(self.dtype)

        count = sum(self.groups)
        owners = torch.tensor([g for g, n in enumerate(self.groups) for _ in range(n)])
        owners = owners[torch.randperm(count, generator=generator)]
        source = torch.tensor([int((owners == owner).nonzero()[0]) for owner in owners])
        shared = self.prompt + owners % 3
        answers = torch.randint(1, self.answer + 1, (count,), generator=generator)
        positions = shared + answers - 1
        longest = int(positions.max()) + 1
        memory = [normal(count + 1, self.kv_heads, longest + 3, self.width) for _ in range(2)]
        for part in memory:
            for row in range(count):
                part[row, :, : shared[row]] = part[source[row], :, : shared[row]]
        qkv = normal(count, (self.group + 2) * self.kv_heads * self.width)
        cosine, sine = (normal(count, self.width) for _ in range(2))
        order = torch.tensor(sorted(range(count), key=source.tolist().__getitem__))
        rows = CachedRows([memory[0]], [memory[1]], order, positions, source, shared, longest)
        first = (positions - self.window + 1).clamp(min=0) if self.window else torch.zeros_like(positions)
        return qkv, cosine, sine, rows, first

    def expected(
        self, qkv: Tensor, cosine: Tensor, sine: Tensor, rows: CachedRows, first: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attention (A, H * D), the keys and the values afterwards, one row and head at a time."""
        heads = qkv.double().unflatten(1, (-1, self.width))
        turned = heads * cosine.double()[:, None] + heads.roll(self.width // 2, -1) * sine.double()[:, None]
        turned = turned.to(self.dtype).double()
        keys, values = rows.keys[0].double().clone(), rows.values[0].double().clone()
        queries = self.group * self.kv_heads
        out = torch.empty(len(qkv), queries, self.width, dtype=torch.float64)
        for row, position in enumerate(rows.positions.tolist()):
            keys[row, :, position] = turned[row, queries : queries + self.kv_heads]
            values[row, :, position] = heads[row, queries + self.kv_heads :]
            seen = slice(int(first[row]), position + 1)
            for head in range(queries):
                kv = head // self.group
                weights = (keys[row, kv, seen] @ turned[row, head] / math.sqrt(self.width)).softmax(0)
                out[row, head] = weights @ values[row, kv, seen]
        return out.flatten(1), keys, values


cases = st.builds(
    Case,
    seed=st.integers(0, 9),
    groups=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    prompt=st.integers(1, 40),
    answer=st.integers(1, 40),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 3, 4]),
    width=st.sampled_from([16, 64]),
    window=st.sampled_from([0, 0, 1, 7, 33]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)


def attended(case: Case, inputs: tuple[Tensor, Tensor, Tensor, CachedRows, Tensor]) -> Tensor:
    qkv, cosine, sine, rows, first = inputs
    kernels = DecodeKernels(case.dtype, case.width, case.group)
    return kernels.attend(qkv, cosine, sine, rows, 0, first, 1 / math.sqrt(case.width))


@given(cases)
@settings(deadline=None)
def test_attention_is_that_of_the_formula_and_stores_one_position_a_row(case: Case) -> None:
    inputs = case.make()
    expected, keys, values = case.expected(*inputs)
    found = attended(case, inputs)
    gap = GAPS[case.dtype] * float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=GAPS[case.dtype], atol=gap)
    rows = inputs[3]
    torch.testing.assert_close(rows.keys[0].double(), keys, rtol=GAPS[case.dtype], atol=GAPS[case.dtype])
    assert torch.equal(rows.values[0].double(), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_whoever_is_beside_it_and_on_any_number_of_threads(dtype: torch.dtype) -> None:
    case = Case(1, (5, 1, 6), 21, 30, 2, 3, 64, 0, dtype)
    qkv, cosine, sine, rows, first = inputs = case.make()
    together = attended(case, inputs)
    threads = torch.get_num_threads()
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            assert torch.equal(attended(case, inputs), together)
    finally:
        torch.set_num_threads(threads)
    for row in range(len(qkv)):
        one = slice(row, row + 1)
        alone = CachedRows(
            [rows.keys[0][one].clone()], [rows.values[0][one].clone()], torch.zeros(1, dtype=torch.long),
            rows.positions[one], torch.zeros(1, dtype=torch.long), rows.shared[one], int(rows.positions[row]) + 1,
        )  # fmt: skip
        mine = attended(case, (qkv[one], cosine[one], sine[one], alone, first[one]))
        assert torch.equal(mine[0], together[row])


def test_large_scores_do_not_overflow() -> None:
    case = Case(2, (2,), 9, 9, 1, 1, 16, 0, torch.float32)
    qkv, cosine, sine, rows, first = case.make()
    inputs = (qkv * 1e4, cosine, sine, rows, first)
    expected, *_ = case.expected(*inputs)
    torch.testing.assert_close(attended(case, inputs).double(), expected, rtol=1e-4, atol=1e-3)


@given(
    seed=st.integers(0, 9),
    rows=st.sampled_from([1, 5, 200]),
    size=st.sampled_from([16, 100, 576]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    joined=st.booleans(),
)
@settings(deadline=None)
def test_normalisation(seed: int, rows: int, size: int, dtype: torch.dtype, joined: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(1, rows, size, generator=generator).to(dtype) for _ in range(2))
    weight = torch.randn(size, generator=generator).to(dtype)
    summed = x + y if joined else x.clone()
    found = DecodeKernels(dtype, 64, 1).normalise(x, weight, 1e-5, added=y if joined else None)
    assert torch.equal(x, summed)
    expected = torch.nn.functional.rms_norm(summed.double(), (size,), weight.double(), 1e-5)
    gap = 2e-6 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(found.double(), expected, rtol=gap, atol=gap)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gate(dtype: torch.dtype) -> None:
    values = torch.cat([torch.linspace(-100, 100, 4001), torch.tensor([0.0, -0.0, 1e30, -1e30])]).to(dtype)
    up = torch.randn(len(values), generator=torch.Generator().manual_seed(0)).to(dtype)
    found = DecodeKernels(dtype, 64, 1).gate(torch.stack([values, up])[None].flatten(1))[0]
    expected = torch.nn.functional.silu(values.double()) * up.double()
    gap = 2e-6 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(found.double(), expected, rtol=gap, atol=1e-30)
    several = torch.randn(3, 7, 2 * 33, generator=torch.Generator().manual_seed(1)).to(dtype)
    gates, ups = several.double().chunk(2, -1)
    expected = torch.nn.functional.silu(gates) * ups
    torch.testing.assert_close(DecodeKernels(dtype, 64, 1).gate(several).double(), expected, rtol=gap, atol=gap)


def test_nan_stays_nan() -> None:
    x = torch.ones(4, 32)
    x[2, 5] = math.nan
    kernels = DecodeKernels(torch.float32, 64, 1)
    assert kernels.normalise(x, torch.ones(32), 1e-5).isnan().any(1).tolist() == [False, False, True, False]
    assert kernels.gate(x).isnan().nonzero().tolist() == [[2, 5]]


def test_what_is_not_for_kernels_says_so() -> None:
    with pytest.raises(Unavailable, match="heads of 24"):
        DecodeKernels(torch.float32, 24, 1)
    with pytest.raises(Unavailable, match="float16"):
        DecodeKernels(torch.float16, 64, 1)
