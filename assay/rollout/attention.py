"""Decoding attention without copies: query heads that share a KV head are the rows of one attention call.

transformers' own path repeats keys and values once per query head at every layer and step; here (B, KV, G, D)
queries meet (B, KV, L, D) keys where they lie.
"""

from __future__ import annotations

from typing import Any

import torch
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
    heads, length = query.shape[1:3]
    if length != 1 or heads == key.shape[1] or attention_mask is None or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    return attend(query, key, value, attention_mask, scaling).unflatten(-1, (heads, -1)), None


def attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float | None, softcap: float | None = None
) -> Tensor:
    """Queries (B, H, T, D) on keys and values (B, KV, L, D) under an additive mask; returns (B, T, H * D).

    Scores are multiplied by ``scaling``, absent 1 / sqrt(D). ``softcap`` c: then scores s become c tanh(s / c) ahead of
    the mask (Gemma 2).
    """
    batch, heads, length, _ = query.shape
    kv_heads = keys.shape[1]
    folded = query.reshape(batch, kv_heads, heads // kv_heads * length, -1)  # rows: heads of a KV head, each T long
    if mask.shape[2] > 1:
        mask = mask.repeat(1, 1, heads // kv_heads, 1)
    if softcap is None:
        mixed = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
    else:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = softcap * torch.tanh(folded @ keys.transpose(2, 3) * (scale / softcap)) + mask
        mixed = scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values
    return mixed.view(batch, heads, length, -1).transpose(1, 2).reshape(batch, length, -1)


AttentionInterface.register(NAME, folded_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
