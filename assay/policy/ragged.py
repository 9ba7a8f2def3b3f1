"""A trunk over tokens alone: padding exists inside attention only.

A micro-batch's rows are as long as its longest (see :mod:`assay.policy.packing`), and products with weights cost the
same for padding as for tokens. So the trunk is given the tokens of all rows one after the other, as one row of N, and
each layer's attention spreads its queries, keys and values over the R rows of L places, attends there under the rows'
mask, and gathers the result again. Both moves are exact in both directions: what one copies, the other copies back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "assay_ragged"
"""What ``config._attn_implementation`` is set to. A forward without ``rows`` is transformers' SDPA."""


@dataclass(frozen=True)
class Rows:
    """Where N tokens lie in R rows of L places; the places left over are padding."""

    places: Tensor
    """(N,) long, ascending: each token's index into the flattened (R * L)."""
    count: int
    """R."""
    length: int
    """L."""

    @cached_property
    def tokens(self) -> Tensor:
        """(R * L,) long: the token at each place; at padding the first, which the mask hides."""
        found = self.places.new_zeros(self.count * self.length)
        found[self.places] = torch.arange(len(self.places), device=self.places.device)
        return found

    @cached_property
    def padding(self) -> Tensor:
        """(R * L - N,) long: the places that hold no token."""
        free = self.places.new_ones(self.count * self.length, dtype=torch.bool)
        free[self.places] = False
        return free.nonzero().squeeze(1)

    def spread(self, flat: Tensor) -> Tensor:
        """(1, H, N, D) -> (R, H, L, D); padding repeats the first token."""
        spread: Any = _Spread.apply(flat[0].transpose(0, 1), self)
        return spread.unflatten(0, (self.count, self.length)).transpose(1, 2)

    def gather(self, rows: Tensor) -> Tensor:
        """(R, L, H, D) -> (1, N, H, D)."""
        gathered: Any = _Gather.apply(rows.flatten(0, 1), self)
        return gathered[None]


class _Spread(torch.autograd.Function):
    """(N, H, D) -> (R * L, H, D). No gradient reaches padding: masked keys have weight 0, its queries are dropped."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return flat.index_select(0, rows.tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0].index_select(0, ctx.rows.places), None


class _Gather(torch.autograd.Function):
    """(R * L, H, D) -> (N, H, D); padding's gradient is 0."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return padded.index_select(0, rows.places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        spread = gradients[0].index_select(0, ctx.rows.tokens)
        return spread.index_fill_(0, ctx.rows.padding, 0.0), None


def ragged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    rows: Rows | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Attend with tokens (1, H, N, D) within their ``rows`` under the mask (R, 1, L, L); returns (1, N, H, D)."""
    if rows is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    query, key, value = (rows.spread(part) for part in (query, key, value))
    mixed, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    return rows.gather(mixed), None


AttentionInterface.register(NAME, ragged_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
