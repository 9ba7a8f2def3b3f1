"""Which positions attend to which: exact masks from positions, for full, sliding and chunked layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.errors import UserError

Rule = Callable[[Tensor, Tensor, int], Tensor]
"""(query positions (B, T, 1), key positions (B, 1, L), size) -> bool (B, T, L), beyond causality."""

_RULES: Mapping[str, tuple[str, Rule | None]] = {
    "full_attention": ("", None),
    "sliding_attention": ("sliding_window", lambda q, k, size: k > q - size),
    "chunked_attention": ("attention_chunk_size", lambda q, k, size: k // size == q // size),
}
_FIRST: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "sliding_attention": lambda q, size: (q - size + 1).clamp(min=0),
    "chunked_attention": lambda q, size: q // size * size,
}
"""The first key positions that those rules leave to query positions."""


@dataclass(frozen=True)
class LayerMasks:
    """The kinds of attention in a model and their sizes."""

    sizes: Mapping[str, int]
    """Layer type -> window or chunk (0: full attention)."""

    @classmethod
    def of(cls, config: Any) -> LayerMasks:
        """Read a Hugging Face text config. Raises UserError for kinds of layers that have no mask here."""
        kinds = getattr(config, "layer_types", None)
        if kinds is None:
            by_field = {"sliding_window": "sliding_attention", "attention_chunk_size": "chunked_attention"}
            kinds = [kind for name, kind in by_field.items() if getattr(config, name, None) is not None][:1]
            kinds = kinds or ["full_attention"]
        unknown = sorted(set(kinds) - set(_RULES))
        if unknown:
            raise UserError(f"model: Assay cannot serve {config.model_type!r}: layers of type {', '.join(unknown)}")
        return cls({k: int(getattr(config, _RULES[k][0], 0) or 0) for k in dict.fromkeys(kinds)})

    @property
    def largest_window(self) -> int:
        """The largest window or chunk; 0 where all layers see everything."""
        return max(self.sizes.values())

    def sees_all(self, length: int) -> bool:
        """Does every layer of a sequence so long see all that came before?"""
        return all(size == 0 or length <= size for size in self.sizes.values())

    def blank(self, dtype: torch.dtype, device: torch.device) -> Tensor | dict[str, Tensor]:
        """In the place of masks, where attention knows without them: transformers then makes none either."""
        masks = {kind: torch.zeros(1, 1, 1, 1, dtype=dtype, device=device) for kind in self.sizes}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def first(self, queries: Tensor) -> Tensor | dict[str, Tensor]:
        """The first positions that queries at positions (A,) see, (A,); as `build`, one or one per type."""
        seen = {
            kind: _FIRST[kind](queries, size) if size else torch.zeros_like(queries)
            for kind, size in self.sizes.items()
        }
        return seen if len(seen) > 1 else next(iter(seen.values()))

    def build(
        self, queries: Tensor, keys: Tensor, dtype: torch.dtype, within: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Additive masks (B, 1, T, L) for query and key positions (B, T), (B, L); negative ones are padding.

        A padding query attends to its own position only, so that its row of the softmax exists. ``within``
        (B, T, L) bool: the pairs that belong together at all, where several sequences share a row. One mask
        where all layers are of one type, else one per type by name.
        """
        q, k = queries[:, :, None], keys[:, None, :]
        causal = (k <= q) & (k >= 0)
        if queries.shape[1] > 1:
            causal = causal | ((q < 0) & (k == q))
        if within is not None:
            causal = causal & within
        masks = {}
        for kind, size in self.sizes.items():
            rule = _RULES[kind][1]
            allowed = causal & (rule(q, k, size) | (q < 0)) if rule and size else causal
            bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
            masks[kind] = bias.masked_fill_(~allowed, torch.finfo(dtype).min)[:, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))
