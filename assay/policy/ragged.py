"""A trunk over tokens alone: padding exists inside attention only.

A micro-batch's rows are as long as its longest (see :mod:`assay.policy.packing`), and products with weights cost the
same for padding as for tokens. So the trunk is given the tokens of all rows one after the other, as one row of N, and
each layer's attention finds out from a `Places` who attends to whom.

`Rows` is the general one: it spreads queries, keys and values over the R rows of L places, attends there under their
mask, and gathers the result again. Both moves are exact in both directions: what one copies, the other copies back.
:mod:`assay.policy.forest` does without rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "assay_ragged"
"""What ``config._attn_implementation`` is set to. A forward without ``places`` is transformers' SDPA."""


class Places(Protocol):
    """Where the N tokens of a micro-batch stand to each other."""

    @property
    def order(self) -> Tensor:
        """(N,) long: each token's index into the micro-batch's flattened rows."""
        ...

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **settings: Any
    ) -> tuple[Tensor, None]:
        """Attend with queries (1, H, N, D) to keys and values (1, KV, N, D); returns (1, N, H, D)."""
        ...


@dataclass(frozen=True)
class Rows:
    """Where N tokens lie in R rows of L places; the places left over are padding."""

    order: Tensor
    """(N,) long, ascending: each token's index into the flattened (R * L)."""
    count: int
    """R."""
    length: int
    """L."""

    @cached_property
    def tokens(self) -> Tensor:
        """(R * L,) long: the token at each place; at padding the first, which the mask hides."""
        found = self.order.new_zeros(self.count * self.length)
        found[self.order] = torch.arange(len(self.order), device=self.order.device)
        return found

    def spread(self, flat: Tensor) -> Tensor:
        """(1, H, N, D) -> (R, H, L, D); padding repeats the first token."""
        spread: Any = _Move.apply(flat[0].transpose(0, 1), self.tokens, self.order)
        return spread.unflatten(0, (self.count, self.length)).transpose(1, 2)

    def gather(self, rows: Tensor) -> Tensor:
        """(R, L, H, D) -> (1, N, H, D)."""
        gathered: Any = _Move.apply(rows.flatten(0, 1), self.order, self.tokens)
        return gathered[None]

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **settings: Any
    ) -> tuple[Tensor, None]:
        """See `Places`: under the rows' mask (R, 1, L, L)."""
        query, key, value = (self.spread(part) for part in (query, key, value))
        mixed, _ = sdpa_attention_forward(module, query, key, value, mask, **settings)
        return self.gather(mixed), None


class _Move(torch.autograd.Function):
    """(A, H, D) -> (B, H, D): what stands ``there``; its gradient is what stands ``back``.

    Exact for tokens. What padding is given does not matter in either direction: it attends to padding only, and
    nothing else to it.
    """

    @staticmethod
    def forward(ctx: Any, source: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return source.index_select(0, there)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (back,) = ctx.saved_tensors
        return gradients[0].index_select(0, back), None, None


def ragged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    places: Places | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Attend as ``places`` say; without them as transformers' SDPA does."""
    if places is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    return places.attend(module, query, key, value, attention_mask, **settings)


AttentionInterface.register(NAME, ragged_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
