"""Decoding attention without copies: query heads that share a KV head are the rows of one attention call.

transformers' own path repeats keys and values once per query head at every layer and step; here (B, KV, G, D)
queries meet (B, KV, L, D) keys where they lie.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "assay_folded"
"""What ``config._attn_implementation`` is set to."""


def folded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend with query (B, H, T, D) to key and value (B, KV, L, D); returns ((B, T, H, D), None).

    For T = 1 and a mask (B, 1, 1, L), heads are folded into rows; everything else is transformers' SDPA path.
    """
    batch, heads, length, _ = query.shape
    kv_heads = key.shape[1]
    if length != 1 or heads == kv_heads or attention_mask is None or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    folded = query.reshape(batch, kv_heads, heads // kv_heads, -1)
    mixed = scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    return mixed.reshape(batch, 1, heads, -1), None


AttentionInterface.register(NAME, folded_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
