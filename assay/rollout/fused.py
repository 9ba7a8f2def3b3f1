"""A decoder's forward with few, large matrix products: Llama, SmolLM, Mistral, Qwen2/2.5/3, Gemma, OLMo 2/3 and kin.

Each layer is read off the model's own modules: query, key and value are one product, gate and up another, and norms
stand where their names say (before a sub-layer, after it, or both). What is not understood raises `Unfusable`, and the
self-check compares the result with the model's plain forward, so a family that merely looks alike is not served wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from assay.kernels.build import Unavailable
from assay.kernels.decode import DecodeKernels
from assay.kernels.layers import StepKernel
from assay.rollout.block import Block
from assay.rollout.masks import LayerMasks
from assay.rollout.norms import Norm, norm_of
from assay.rollout.packed import Library, Packed, library_for
from assay.rollout.projection import Dense, Int8, Projection, Unfusable, check_linear
from assay.rollout.rotation import Rotations
from assay.rollout.shared import KERNEL
from assay.rollout.views import CacheView
from assay.rollout.weights import GenerationWeights, causal_lm_of, head_shape
from assay.rollout.whole import step_kernel

LOG = logging.getLogger("assay")

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_INPUT, _POST = "input_layernorm", "post_attention_layernorm"
_PRE_MLP, _POST_MLP = "pre_feedforward_layernorm", "post_feedforward_layernorm"
NORMS: Mapping[frozenset[str], tuple[str | None, ...]] = {
    frozenset({_INPUT, _POST}): (_INPUT, None, _POST, None),  # most; the second is named after what precedes it
    frozenset({_POST, _POST_MLP}): (None, _POST, None, _POST_MLP),  # OLMo 2 and 3
    frozenset({_INPUT, _POST, _PRE_MLP, _POST_MLP}): (_INPUT, _POST, _PRE_MLP, _POST_MLP),  # Gemma 2 and 3
}
"""The norms that a layer has -> those before and after attention, before and after the feed-forward part."""


@dataclass(frozen=True)
class Maker:
    """How the parts of the network are made from the model's."""

    dtype: torch.dtype
    """Of everything but 8-bit matrices."""
    int8: bool
    library: Library | None
    """Whose products with arranged matrices to use; ``None``: plain ones."""
    snapshot: bool
    """Copy even where the model's own tensor would serve."""
    kernels: DecodeKernels | None
    """Compiled for the processor; ``None``: torch's own operations."""

    def projection(self, *sources: nn.Module) -> Projection:
        """Linear maps side by side. Raises Unfusable."""
        checked = [check_linear(source) for source in sources]
        if self.int8:
            return Int8(checked)
        if self.library is not None:
            return Packed(checked, self.dtype, self.library)
        return Dense(checked, self.dtype, copied=self.snapshot)

    def norm(self, source: nn.Module) -> Norm:
        """A normalisation."""
        return norm_of(source, self.dtype, self.snapshot, self.kernels)

    def gate(self, activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """See `Block.gate`: by a kernel where there is one and the activation is SiLU (seen on a probe)."""
        probe = torch.linspace(-4, 4, 64)
        if self.kernels and torch.allclose(activation(probe), silu(probe)):
            return self.kernels.gate

        def gated(gate_up: Tensor) -> Tensor:
            gate, up = gate_up.chunk(2, dim=-1)
            return activation(gate).mul_(up)

        return gated

    def block(self, layer: Any, config: Any, kind: str) -> Block:
        """Read a layer. Raises Unfusable when it has parts beyond those that are known."""
        attention, mlp = layer.self_attn, layer.mlp
        places = NORMS.get(frozenset(name for name, _ in layer.named_children()) - {"self_attn", "mlp"})
        if places is None:
            raise Unfusable(f"{type(layer).__name__} has other norms")
        _expect(attention, ATTENTION)
        _expect(mlp, MLP)
        if getattr(config, "clip_qkv", None):
            raise Unfusable("its queries, keys and values are clipped")
        head_norms = [self.norm(getattr(attention, n)) for n in ("q_norm", "k_norm") if hasattr(attention, n)]
        before, after, before_mlp, after_mlp = [None if n is None else self.norm(getattr(layer, n)) for n in places]
        return Block(
            qkv=self.projection(attention.q_proj, attention.k_proj, attention.v_proj),
            out=self.projection(attention.o_proj),
            gate_up=self.projection(mlp.gate_proj, mlp.up_proj),
            down=self.projection(mlp.down_proj),
            gate=self.gate(mlp.act_fn),
            before=before,
            after=after,
            before_mlp=before_mlp,
            after_mlp=after_mlp,
            head_norms=tuple(head_norms),
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            scaling=float(attention.scaling),
            softcap=attention.attn_logit_softcapping if _caps(attention) else None,
            kind=kind,
            kernels=self.kernels,
        )

    def head(self, causal_lm: Any, embedding: nn.Module) -> Projection:
        """The output head; where it is tied to the embedding, on ``embedding``, what the network has of that."""
        if self.head_is_embedding(causal_lm):
            return Dense([embedding], self.dtype)
        return self.projection(causal_lm.get_output_embeddings())

    def head_is_embedding(self, causal_lm: Any) -> bool:
        """Are the head's products with the very tensor that is embedded from?"""
        tied = causal_lm.get_output_embeddings().weight is causal_lm.get_input_embeddings().weight
        return tied and not self.int8 and self.library is None


class FusedNetwork:
    """A `Network` of `Block`s."""

    path = "fused products"

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype | None = None,
        *,
        snapshot: bool = False,
        packed: bool = True,
        compiled: bool = True,
    ) -> None:
        """``dtype`` int8: 8-bit matrices, everything else in the model's own precision. Raises Unfusable.

        ``packed``: let matrices be arranged for the processor's products, where those work. ``compiled``: let what is
        beside them be compiled for it (`assay.kernels`), where there is a compiler.
        """
        causal_lm = causal_lm_of(model)
        trunk = causal_lm.base_model
        _expect(trunk, {"embed_tokens", "layers", "norm", "rotary_emb"})
        config = causal_lm.config.get_text_config()
        own = next(p.dtype for p in causal_lm.parameters() if p.is_floating_point())
        int8 = dtype == torch.int8
        self.dtype = own if dtype is None or int8 else dtype
        self.device = next(causal_lm.parameters()).device
        self.masks = LayerMasks.of(config)
        kinds = getattr(config, "layer_types", None) or [next(iter(self.masks.sizes))] * len(trunk.layers)
        library = library_for(self.dtype, compiled=compiled) if packed and self.device.type == "cpu" else None
        self.kernels = kernels_for(self.dtype, config) if compiled and self.device.type == "cpu" else None
        make = Maker(self.dtype, int8, library, snapshot, self.kernels)
        self._blocks = [make.block(layer, config, kind) for layer, kind in zip(trunk.layers, kinds, strict=True)]
        self._kinds = tuple(dict.fromkeys(kinds))
        self._rotations = Rotations(trunk.rotary_emb, self._kinds, self.dtype, self.device)
        copied = snapshot or make.head_is_embedding(causal_lm)  # else the trainer's own, rounded when they are read
        embeddings = causal_lm.get_input_embeddings()
        self._embed = GenerationWeights(embeddings, self.dtype if copied else None, snapshot=snapshot)
        self._norm = make.norm(trunk.norm)
        self._head = make.head(causal_lm, self._embed.module)
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        capped = any(block.softcap is not None for block in self._blocks)
        self.compiled = self.kernels is not None and not capped
        self._whole = self._whole_step()
        self.path = FusedNetwork.path + (", compiled kernels" if self.compiled else "")
        self.shares_prompts = self.device.type == "cpu" and KERNEL is not None and not capped

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor | dict[str, Tensor], view: CacheView) -> Tensor:
        """See `Network`."""
        x = self._embed.module(ids).to(self.dtype)
        rotations = self._rotations.at(positions, known=view.rows is not None)
        if view.rows and self._whole:
            turns = {kind: (cos.to(x.dtype), sin.to(x.dtype)) for kind, (cos, sin) in rotations.items()}
            firsts = {kind: mask if isinstance(mask, Tensor) else mask[kind] for kind in self._kinds}
            return self._capped(self._whole(x[:, 0], turns, firsts, view.rows))
        for layer, block in enumerate(self._blocks):
            x = block.forward(
                x, *rotations[block.kind], mask if isinstance(mask, Tensor) else mask[block.kind], view, layer
            )
        return self._capped(self._head(self._norm(x[:, -1])))

    @torch.no_grad()
    def refresh(self) -> None:
        """See `Network`."""
        self._whole = None  # it holds the weights as they were
        for part in self._parts:
            part.refresh()
        self._whole = self._whole_step()

    def tensors(self) -> Iterator[Tensor]:
        """See `Network`."""
        for part in self._parts:
            yield from part.tensors()

    def release(self) -> None:
        """See `Network`."""
        self._whole = None
        for product in (self._head, *(p for block in self._blocks for p in block.products)):
            product.release()

    @property
    def _parts(self) -> tuple[Projection | Norm | GenerationWeights, ...]:
        return (self._embed, *(part for block in self._blocks for part in block.parts), self._norm, self._head)

    def _whole_step(self) -> StepKernel | None:
        """A whole decoding step on the present weights, where all of it is compiled."""
        return step_kernel(self._blocks, self._norm, self._head, self.kernels.width) if self.kernels else None

    def _capped(self, logits: Tensor) -> Tensor:
        return logits if self._softcap is None else logits.div_(self._softcap).tanh_().mul_(self._softcap)


def kernels_for(dtype: torch.dtype, config: Any) -> DecodeKernels | None:
    """What is compiled for a model of this shape; ``None`` where nothing can be: the log says why."""
    try:
        return DecodeKernels(dtype, *head_shape(config))
    except Unavailable as reason:
        LOG.info("decoding without compiled kernels, which would be faster: %s", reason)
        return None


def _expect(module: nn.Module, known: set[str]) -> None:
    """Raise Unfusable when a module has children or parameters of its own beyond the known ones."""
    found = {name for name, _ in module.named_children()} | {name for name, _ in module.named_parameters(recurse=False)}
    if found - known:
        raise Unfusable(f"{type(module).__name__} has {', '.join(sorted(found - known))}")


def _caps(attention: Any) -> bool:
    """Does the model soft-cap its attention scores? transformers' SDPA leaves that out, its plain products do it."""
    return hasattr(attention, "attn_logit_softcapping") and attention.config._attn_implementation == "eager"
