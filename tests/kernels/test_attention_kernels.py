"""Attention of packed trees by compiled loops, and its gradients, against automatic differentiation in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.kernels.attention import AttentionKernels, Spans, Turn
from assay.kernels.build import Unavailable

GAPS = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
"""Relative to the largest number: rounding of what is stored, and of what it is made of."""


@dataclass(frozen=True)
class Case:
    """Trees with prompts and answers of these lengths behind a stem; ``turned``: positions are left to the kernel.

    ``pieces``: parts that are asked for.
    """

    trees: tuple[tuple[int, tuple[int, ...]], ...]
    stem: int
    kv_heads: int
    group: int
    width: int
    turned: bool
    dtype: torch.dtype
    pieces: int = 1

    def spans(self) -> tuple[Spans, Tensor]:
        """The spans, and which token sees which, (N, N)."""
        prompts = [prompt for prompt, _ in self.trees]
        count = self.stem + sum(prompts) + sum(sum(answers) for _, answers in self.trees)
        causal = torch.ones(count, count).tril() > 0
        seen = torch.zeros(count, count, dtype=torch.bool)
        seen[:, : self.stem] = causal[:, : self.stem]
        at, behind = self.stem, self.stem + sum(prompts)
        bounds: list[tuple[int, int]] = []
        answered: list[list[tuple[int, int]]] = []
        for prompt, answers in self.trees:
            mine = slice(at, at + prompt)
            seen[mine, mine] = causal[mine, mine]
            bounds.append((at, at + prompt))
            answered.append([])
            for length in answers:
                own = slice(behind, behind + length)
                seen[own, mine] = True
                seen[own, own] = causal[own, own]
                answered[-1].append((behind, behind + length))
                behind += length
            at += prompt
        return Spans.of(bounds, answered, self.stem, self.pieces), seen

    def run(self, seed: int) -> tuple[list[Tensor], list[Tensor]]:
        """Result, logsumexps and the three gradients: the kernel's, and those of plain products in float64."""
        spans, seen = self.spans()
        generator = torch.Generator().manual_seed(seed)

        def normal(heads: int) -> Tensor:
            return torch.randn(len(seen), heads, self.width, generator=generator).to(self.dtype)

        heads = self.group * self.kv_heads
        query, key, value, grad = normal(heads), normal(self.kv_heads), normal(self.kv_heads), normal(heads)
        angles = torch.rand(len(seen), self.width // 2, generator=generator) * 6
        cosine, sine = (part.repeat(1, 2) for part in (angles.cos(), angles.sin()))
        turn = Turn(cosine, sine) if self.turned else None
        kernels = AttentionKernels(self.dtype, self.width, self.group)
        mixed, normaliser = kernels.forward(query, key, value, spans, 0.3, turn)
        found = kernels.backward(grad, query, key, value, mixed, normaliser, spans, 0.3, turn)

        exact = [part.double().requires_grad_() for part in (query, key, value)]
        q, k = exact[:2]
        if self.turned:
            first, second = sine.double()[:, None].chunk(2, -1)
            signed = torch.cat([-first, second], -1)
            q, k = (x * cosine.double()[:, None] + x.roll(self.width // 2, -1) * signed for x in (q, k))
        scores = torch.einsum("ihd,jhd->hij", q, k.repeat_interleave(self.group, 1)) * 0.3
        scores = scores.masked_fill(~seen, -torch.inf)
        out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), exact[2].repeat_interleave(self.group, 1))
        wanted = torch.autograd.grad(out, exact, grad.double())
        return [mixed, normaliser, *found], [out.detach(), scores.logsumexp(-1).t().detach(), *wanted]


tree = st.tuples(st.integers(1, 40), st.lists(st.integers(1, 70), min_size=1, max_size=4).map(tuple))
cases = st.builds(
    Case,
    trees=st.lists(tree, min_size=1, max_size=3).map(tuple),
    stem=st.sampled_from([0, 0, 16, 37]),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 3, 4]),
    width=st.sampled_from([16, 64, 80]),
    turned=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    pieces=st.sampled_from([1, 2, 5, 40]),
)


@given(cases, st.integers(0, 9))
@settings(deadline=None)
def test_results_and_gradients_are_those_of_plain_products(case: Case, seed: int) -> None:
    for mine, exact in zip(*case.run(seed), strict=True):
        gap = GAPS[case.dtype] * float(exact.abs().max())
        torch.testing.assert_close(mine.double(), exact, rtol=GAPS[case.dtype], atol=gap)


def test_the_same_bits_on_any_number_of_threads() -> None:
    case = Case(((9, (33, 5)), (3, (70,)), (20, (1, 2, 3))), 16, 2, 3, 64, True, torch.float32)
    threads = torch.get_num_threads()
    found = []
    try:
        for n in (1, 2, 5):
            torch.set_num_threads(n)
            found.append(case.run(0)[0])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_a_tree_becomes_as_many_parts_as_there_is_work_for() -> None:
    prompts, answers = [(4, 6), (6, 9)], [[(9, 10), (10, 12), (12, 13)], [(13, 14)]]
    whole = [[0, 4, 0, 0], [4, 6, 0, 3], [6, 9, 3, 4]]
    assert Spans.of(prompts, answers, 4).parts.tolist() == whole
    assert Spans.of(prompts, answers, 4, pieces=2).parts.tolist() == whole
    halves = [[0, 4, 0, 0], [4, 6, 0, 2], [4, 6, 2, 3], [6, 9, 3, 4]]
    assert Spans.of(prompts, answers, 4, pieces=4).parts.tolist() == halves
    each = [[0, 4, 0, 0], [4, 6, 0, 1], [4, 6, 1, 2], [4, 6, 2, 3], [6, 9, 3, 4]]
    assert Spans.of(prompts, answers, 4, pieces=99).parts.tolist() == each
    assert Spans.of(prompts, answers, 4).longest == 7


def test_what_is_not_for_kernels_says_so() -> None:
    with pytest.raises(Unavailable, match="heads of 24"):
        AttentionKernels(torch.float32, 24, 1)
    with pytest.raises(Unavailable, match="float64"):
        AttentionKernels(torch.float64, 64, 1)
