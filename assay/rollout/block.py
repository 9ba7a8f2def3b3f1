"""One decoder layer of the fused network, part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.kernels.decode import DecodeKernels
from assay.rollout.attention import attend
from assay.rollout.norms import Norm
from assay.rollout.projection import Projection
from assay.rollout.views import CacheView


@dataclass(frozen=True)
class Block:
    """One decoder layer."""

    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection
    gate: Callable[[Tensor], Tensor]
    """Gate and up side by side (..., 2 F) to activation(gate) * up (..., F)."""
    before: Norm | None
    """Ahead of attention."""
    after: Norm | None
    """Behind it."""
    before_mlp: Norm | None
    """Ahead of the feed-forward part."""
    after_mlp: Norm | None
    head_norms: tuple[Norm, ...]
    """Of queries and of keys, or none: each head by itself, or all together where the weight is that long."""
    heads: int
    kv_heads: int
    scaling: float
    softcap: float | None
    """c of scores c * tanh(s / c)."""
    kind: str
    """Key of its mask and rotation where layers differ."""
    kernels: DecodeKernels | None
    """What attends where the view says ``rows``."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, view: CacheView, layer: int) -> Tensor:
        """Hidden states (B, T, H) to hidden states. ``cos``, ``sin`` (B, T, 1, D), the latter signed for `_rotated`.

        ``mask``: see `Network.forward`.
        """
        y = self.qkv(x if self.before is None else self.before(x))
        heads = self._normed(y.view(*y.shape[:2], self.heads + 2 * self.kv_heads, -1))
        if self.kernels and view.rows:
            turn = cos.to(heads.dtype), sin.to(heads.dtype)
            mixed = self.kernels.attend(heads, *turn, view.rows, layer, mask, self.scaling).view(*x.shape[:2], -1)
        else:
            mixed = self._attended(heads, cos, sin, mask, view, layer)
        y = self.out(mixed)
        y = y if self.after is None else self.after(y)
        if self.before_mlp is None:
            x = y = x + y
        else:
            x, y = self.before_mlp.joined(x, y)
        y = self.down(self.gate(self.gate_up(y)))
        return x + (y if self.after_mlp is None else self.after_mlp(y))

    def _attended(self, heads: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, view: CacheView, layer: int) -> Tensor:
        """Attention (B, T, H * D) of queries, keys and values (B, T, heads, D), by torch's operations."""
        turned, value = heads.split((self.heads + self.kv_heads, self.kv_heads), dim=2)
        query, key = self._rotated(turned, cos, sin).split((self.heads, self.kv_heads), dim=2)
        keys, values = view.update(key.transpose(1, 2), value.transpose(1, 2), layer)
        query = query.transpose(1, 2)
        if view.shared is None:
            return attend(query, keys, values, mask, self.scaling, self.softcap)
        return view.shared.attend(query, keys, values, mask, layer, self.scaling)

    def _normed(self, heads: Tensor) -> Tensor:
        """Queries, keys and values, the first two normalised where the model does it."""
        if not self.head_norms:
            return heads
        query, key, value = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        return torch.cat([self.head_norms[0](query), self.head_norms[1](key), value], dim=2)

    def _rotated(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary positions on queries and keys at once: x cos + (x_2, x_1) sin, halves swapped, sin negative first."""
        return (heads * cos + heads.roll(heads.shape[-1] // 2, -1) * sin).to(heads.dtype)

    @property
    def products(self) -> tuple[Projection, ...]:
        """Its matrices."""
        return self.qkv, self.out, self.gate_up, self.down

    @property
    def parts(self) -> tuple[Projection | Norm, ...]:
        """All that has weights."""
        norms = (self.before, self.after, self.before_mlp, self.after_mlp, *self.head_norms)
        return (*self.products, *(norm for norm in norms if norm is not None))
