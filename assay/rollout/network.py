"""What the runner forwards through: transformers' own forward (here), or a fused one (`assay.rollout.fused`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from assay.kernels.decode import CachedRows
from assay.rollout import attention
from assay.rollout.cache import SlotCache
from assay.rollout.masks import LayerMasks
from assay.rollout.shared import SharedPrompts
from assay.rollout.views import CacheView, DecodeView
from assay.rollout.weights import GenerationWeights


class Network(Protocol):
    """A model as the engine sees it: tokens in, next-token logits out, keys and values through a cache view."""

    dtype: torch.dtype
    """Precision of hidden states, keys and values."""
    device: torch.device
    masks: LayerMasks
    path: str
    """Whose forward it is, in words."""
    shares_prompts: bool
    """Can its decoding attend through `assay.rollout.shared`?"""
    compiled: bool
    """Does its decoding have kernels (`assay.kernels`) that read the cache by themselves?"""

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor | dict[str, Tensor], view: CacheView) -> Tensor:
        """Logits (B, V) after the last of the tokens ``ids`` (B, T) at ``positions`` (B, T).

        ``mask``: additive, (B, 1, T, L), one or one for each kind of layer, over what ``view`` attends to. Where it has
        ``rows`` for a kernel: in the place of a mask the first position that each row sees, (B,).
        """
        ...

    def refresh(self) -> None:
        """Follow the trainer's present weights."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """What a forward reads beyond its arguments."""
        ...

    def release(self) -> None:
        """Free what the next `refresh` makes anew; no forward until then."""
        ...


def decode_step(
    network: Network,
    cache: SlotCache,
    ids: Tensor,
    positions: Tensor,
    width: int,
    shared: SharedPrompts | None = None,
) -> Tensor:
    """Logits (A, V) after tokens ``ids`` at ``positions``, both (A, 1), in slots 0 to A - 1, of at most ``width``."""
    view = DecodeView(cache, positions[:, 0], width, shared)
    keys = torch.arange(view.start, width, device=network.device)[None]
    own = None if shared is None else keys[:, None] >= shared.lengths[:, None, None]
    return network.forward(ids, positions, network.masks.build(positions, keys, network.dtype, own), view)


def compiled_step(network: Network, cache: SlotCache, ids: Tensor, rows: CachedRows) -> Tensor:
    """The same with kernels, on a network that has them: ``ids`` (A, 1) at the positions that ``rows`` tells."""
    view = DecodeView(cache, rows.positions, rows.longest, rows=rows)
    return network.forward(ids, rows.positions[:, None], network.masks.first(rows.positions), view)


class GeneralNetwork:
    """transformers' forward on the trainer's tensors, or on a copy in another precision (`GenerationWeights`)."""

    path = "transformers' own forward"
    shares_prompts = False
    compiled = False

    def __init__(self, model: nn.Module, dtype: torch.dtype | None = None, *, snapshot: bool = False) -> None:
        self._weights = GenerationWeights(model, dtype, snapshot=snapshot)
        self.model: Any = self._weights.causal_lm
        self.masks = LayerMasks.of(self.model.config.get_text_config())
        self.dtype: torch.dtype = next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        self.device: torch.device = next(self.model.parameters()).device
        if self.model.config._attn_implementation != "eager":
            self.model.config._attn_implementation = attention.NAME

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor | dict[str, Tensor], view: CacheView) -> Tensor:
        """See `Network`."""
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=view,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def refresh(self) -> None:
        """See `Network`. Raises AssayError when the trainer's structure has changed."""
        self._weights.refresh()

    def tensors(self) -> Iterator[Tensor]:
        """See `Network`."""
        return self._weights.tensors()

    def release(self) -> None:
        """See `Network`: a copy is written to in place, so it stays."""
