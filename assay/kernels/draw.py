"""One token a row from logits, the vocabulary read twice: draw.c, called with tensors on the CPU."""

from __future__ import annotations

from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from assay.kernels.build import DTYPES, Unavailable, addresses, build


class DrawKernel:
    """Sampling from softmax(logits / temperature) by one uniform number a row."""

    def __init__(self, dtype: torch.dtype, block: int) -> None:
        """``block``: logits whose masses are summed together. Raises Unavailable."""
        if dtype not in DTYPES:
            raise Unavailable(f"no kernels for {dtype}")
        self.dtype = dtype
        """Of the logits that it takes."""
        self._block = block
        self._draw = build("draw", BFLOAT16=DTYPES[dtype], BLOCK=block).draw
        self._draw.argtypes, self._draw.restype = [c_void_p] * 7 + [c_int64] * 2, None

    def __call__(self, logits: Tensor, over: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (B,) int64, log-probs (B,) float32 and sums of e^(logit - largest) (B,) float64.

        ``logits`` (B, V); ``over`` (B,) float32: 1 / temperature; ``uniforms`` (B,) float64 in [0, 1), negative for the
        likeliest token.
        Where a sum is not finite the logits hold NaN or infinity, and the rest of that row means nothing.
        """
        rows, vocabulary = logits.shape
        logits = logits.contiguous()
        tokens, logprobs = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.float32)
        totals = torch.empty(rows, dtype=torch.float64)
        scratch = torch.empty(rows, -(-vocabulary // self._block), dtype=torch.float32)
        made = (scratch, tokens, logprobs, totals)
        self._draw(
            *addresses(self.dtype, logits), *addresses(torch.float32, over),
            *addresses(torch.float64, uniforms.contiguous()), *(tensor.data_ptr() for tensor in made), rows, vocabulary,
        )  # fmt: skip
        return tokens, logprobs, totals
