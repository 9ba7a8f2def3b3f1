"""One token per row from logits, by inverting the cumulative distribution at one uniform number per row.

One random number a row instead of one a logit, and the vocabulary is read a fixed few times: softmax once,
sums of blocks of 128, then only the block that holds the token. Sorting happens only for rows whose settings
cut the distribution. Cumulative sums are float64, so that rounding never reaches a token of probability zero.
"""

from __future__ import annotations

import collections.abc
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from assay.errors import AssayError, UserError
from assay.kernels.build import Unavailable
from assay.kernels.draw import DrawKernel

BLOCK = 128


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn. Cuts apply in the order top-k, top-p, min-p, each to what the last one left."""

    temperature: float = 1.0
    """Logits are divided by it; also in greedy rows, whose log-probs are those at this temperature."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose share of the mass reaches this; ties by token id."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all; ties by token id."""
    min_p: float = 0.0
    """Keep tokens at least this share as likely as the likeliest."""
    max_tokens: int = 256
    """Longest answer, end-of-sequence token included."""
    greedy: bool = False
    """Take the likeliest token; the cuts are idle."""

    def __post_init__(self) -> None:
        ranges = (
            ("temperature", self.temperature, 0 < self.temperature < math.inf, "above 0"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k, self.top_k >= 0, "0 or more"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "in [0, 1]"),
            ("max_tokens", self.max_tokens, self.max_tokens >= 1, "1 or more"),
        )
        for name, value, good, wanted in ranges:
            if not good:
                raise UserError(f"sampling: {name} must be {wanted}, not {value!r}")

    @property
    def cuts(self) -> bool:
        """Is the distribution sampled from another than the full softmax?"""
        return not self.greedy and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


class Draw(NamedTuple):
    """What :func:`sample` returns, on the CPU."""

    tokens: Tensor
    """(B,) int64."""
    full_logprobs: Tensor
    """(B,) float32: log softmax(logits / temperature) at the token."""
    kept_logprobs: Tensor | None
    """(B,) float32: the same renormalised over the kept set; ``None`` when no row cuts."""


def sample(
    logits: Tensor,
    uniforms: Tensor,
    sampling: collections.abc.Sequence[Sampling],
    kernel: DrawKernel | None = None,
) -> Draw:
    """Draw one token per row.

    ``logits`` (B, V) of any float dtype, ``uniforms`` (B,) float64 in [0, 1), ``sampling`` one per row. A
    token of probability zero is never returned. ``kernel``: draws from what is not cut, where the logits are of its
    precision. Raises AssayError when a row's logits hold NaN or +inf.
    """
    if kernel is None or kernel.dtype != logits.dtype:
        drawn = _draw(logits, uniforms, sampling)
    else:
        drawn = _compiled(kernel, logits, uniforms, sampling)
    cutting = [row for row, s in enumerate(sampling) if s.cuts]
    if not cutting:
        return drawn
    of_cut = [sampling[row] for row in cutting]
    mass = _softmax(logits[cutting], of_cut)
    kept = drawn.full_logprobs.clone()
    found, totals = _invert(_cut(mass, of_cut), uniforms[cutting])
    chosen = mass.gather(-1, found.to(mass.device)[:, None])[:, 0].cpu().double().log()
    drawn.tokens[cutting] = found
    drawn.full_logprobs[cutting] = (chosen - mass.sum(-1).cpu().double().log()).float()
    kept[cutting] = (chosen - totals.log()).float()
    return drawn._replace(kept_logprobs=kept)


def draw_kernel(dtype: torch.dtype) -> DrawKernel | None:
    """What draws from logits of a precision on the CPU; ``None`` where nothing can be compiled that does it right."""
    try:
        kernel = DrawKernel(dtype, BLOCK)
    except Unavailable:
        return None
    logits = torch.cos(torch.arange(7 * 300) * 0.7).view(7, 300).mul(5).to(dtype)
    uniforms = torch.arange(7, dtype=torch.float64) / 7 + 0.05
    wanted = _draw(logits, uniforms, [Sampling(temperature=0.8)] * 7)
    found = _compiled(kernel, logits, uniforms, [Sampling(temperature=0.8)] * 7)
    close = torch.allclose(found.full_logprobs, wanted.full_logprobs, rtol=1e-3, atol=1e-3)
    return kernel if close and torch.equal(found.tokens, wanted.tokens) else None


def _compiled(
    kernel: DrawKernel, logits: Tensor, uniforms: Tensor, sampling: collections.abc.Sequence[Sampling]
) -> Draw:
    # Lists: a dozen operations on a few numbers each would take longer than the draw.
    targets = [-1.0 if s.greedy else u for s, u in zip(sampling, uniforms.tolist(), strict=True)]
    over = torch.tensor([1 / s.temperature for s in sampling], dtype=torch.float32)
    tokens, logprobs, totals = kernel(logits, over, torch.tensor(targets, dtype=torch.float64))
    _check(totals)
    return Draw(tokens, logprobs, None)


def _draw(logits: Tensor, uniforms: Tensor, sampling: collections.abc.Sequence[Sampling]) -> Draw:
    probabilities = _softmax(logits, sampling)
    tokens, totals = _invert(probabilities, uniforms)
    greedy = [row for row, s in enumerate(sampling) if s.greedy]
    if greedy:
        tokens[greedy] = logits[greedy].argmax(-1).cpu()
    chosen = probabilities.gather(-1, tokens.to(logits.device)[:, None])[:, 0].cpu().double().log()
    return Draw(tokens, (chosen - totals.log()).float(), None)


def _softmax(logits: Tensor, sampling: collections.abc.Sequence[Sampling]) -> Tensor:
    """float32 softmax(logits / temperature), (B, V), padded with zeros to a multiple of BLOCK."""
    if any(s.temperature != 1 for s in sampling):
        logits = logits / torch.tensor([s.temperature for s in sampling], device=logits.device)[:, None]
    mass = torch.softmax(logits, -1, dtype=torch.float32)
    return pad(mass, (0, -mass.shape[1] % BLOCK))


def _invert(mass: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Invert the cumulative sum of ``mass`` (B, W) at shares ``uniforms`` (B,): index (B,), total (B,)."""
    blocks = mass.view(len(mass), -1, BLOCK)
    cumulative = blocks.sum(-1).cpu().double().cumsum(-1)
    totals = cumulative[:, -1]
    _check(totals)
    target = (uniforms.to("cpu", torch.float64) * totals)[:, None]
    block = _first_above(cumulative, target)
    before = cumulative.gather(1, (block - 1).clamp(min=0)) * (block > 0)
    rows = torch.arange(len(mass), device=mass.device)
    inside = blocks[rows, block[:, 0].to(mass.device)].cpu().double().cumsum(-1)
    place = _first_above(inside, target - before)
    return (block * BLOCK + place)[:, 0], totals


def _check(totals: Tensor) -> None:
    if math.isfinite(float(totals.sum())):  # asked for each token: one operation, not three
        return
    broken = (~torch.isfinite(totals)).nonzero().flatten().tolist()
    raise AssayError(
        f"the model's logits are NaN or infinite in {len(broken)} of {len(totals)} rows "
        f"(first: row {broken[0]}): its weights have diverged, or the precision is too narrow"
    )


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """First index whose cumulative sum exceeds the target (B, 1); else the last index that adds anything."""
    index = torch.searchsorted(cumulative, target, right=True)
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous(), right=False)
    return torch.minimum(index, last)


def _cut(mass: Tensor, sampling: collections.abc.Sequence[Sampling]) -> Tensor:
    """``mass`` (B, W) with everything outside each row's kept set set to zero."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)[:, None]

    ordered, index = mass.cpu().double().sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(mass.shape[1])[None]
    keep = ranks < column([s.top_k or mass.shape[1] for s in sampling])
    top_p = column([s.top_p for s in sampling])
    left = (ordered * keep).cumsum(-1)
    keep &= (top_p == 1) | (left - ordered < top_p * left[:, -1:])
    keep &= ordered >= column([s.min_p for s in sampling]) * ordered[:, :1]
    kept = torch.zeros_like(keep).scatter(-1, index, keep).to(mass.device)
    return mass * kept
