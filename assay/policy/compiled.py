"""Attention of packed trees by compiled loops: what :mod:`assay.policy.forest` does, on a CPU with a C compiler.

One call a layer instead of some ten of torch's kernel and as many copies around them, which pad answers to each other's
length. What is kept for the backward pass is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from assay.kernels.attention import AttentionKernels, Spans, Turn
from assay.kernels.build import Unavailable
from assay.policy.forest import STEMS, by_token, laid_out, scale_of
from assay.policy.packing import MicroBatch
from assay.policy.sublayers import alike
from assay.rollout.weights import head_shape

MAPS = {"q_proj", "k_proj", "v_proj", "o_proj"}
PIECES = 2
"""Parts of a micro-batch for each thread, if it has so many answers: all finish at about the same time."""
_kernels = cache(AttentionKernels)


def compilable(dtype: torch.dtype, config: Any) -> bool:
    """Are there kernels for a model of this shape, with queries, keys and values in ``dtype``?"""
    try:
        _kernels(dtype, *head_shape(config))
    except Unavailable:
        return False
    return True


@dataclass(frozen=True)
class CompiledForest:
    """The trees of a micro-batch: a :class:`~assay.policy.ragged.Places`, its tokens in the order of a `Forest`."""

    order: Tensor
    """(N,) long: each token's index into the micro-batch's flattened rows."""
    spans: Spans
    """Where the trees lie in that order."""

    @classmethod
    def of(cls, micro: MicroBatch) -> CompiledForest:
        """Read the trees off a micro-batch's arrays."""
        order, places = laid_out(micro)
        bounds = {name: (int(place[0]), int(place[-1]) + 1) for name, place in places.items() if name != STEMS}
        prompts = {name[:2]: bound for name, bound in bounds.items() if name[2] < 0}
        answers = [[bound for name, bound in bounds.items() if name[:2] == tree and name[2] >= 0] for tree in prompts]
        spans = Spans.of(list(prompts.values()), answers, micro.stem, PIECES * torch.get_num_threads())
        return cls(order, spans)

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **settings: Any
    ) -> tuple[Tensor, None]:
        """Attend with queries (1, H, N, D) to keys and values (1, KV, N, D); returns (1, N, H, D). No mask is read."""
        return self.mixed(*by_token(query, key, value), scale_of(query, settings))[None], None

    def mixed(self, query: Tensor, key: Tensor, value: Tensor, scale: float, turn: Turn | None = None) -> Tensor:
        """Attend with queries (N, H, D) to keys and values (N, KV, D); returns (N, H, D). ``turn`` them first."""
        parts = (part.contiguous() for part in (query, key, value))
        mixed: Any = _Attention.apply(*parts, self.spans, scale, turn)
        return mixed


class _Attention(torch.autograd.Function):
    """Queries (N, H, D), keys and values (N, KV, D) of a forest -> (N, H, D)."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, spans: Spans, scale: float, turn: Turn | None
    ) -> Tensor:
        kernels = _kernels(query.dtype, query.shape[2], query.shape[1] // key.shape[1])
        mixed, normaliser = kernels.forward(query, key, value, spans, scale, turn)
        ctx.save_for_backward(query, key, value, mixed, normaliser)
        ctx.kernels, ctx.how = kernels, (spans, scale, turn)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad = gradients[0].contiguous()
        return *ctx.kernels.backward(grad, *ctx.saved_tensors, *ctx.how), None, None, None


def fuse_attention(trunk: nn.Module) -> int:
    """Have attention modules leave the turning of queries and keys to the loops, where that is all that they do.

    Four linear maps, rotary positions over whole heads and attention: each compared on a probe, with its gradients,
    since layers of one class may differ in whether positions turn them. Returns how many do so now;
    `assay.policy.sublayers.restore_sublayers` gives them their own forwards back.
    """
    fused = 0
    for module in trunk.modules():
        maps = {name for name, _ in module.named_children()} == MAPS
        if maps and hasattr(module, "scaling") and _agree(module):
            module.forward = MethodType(_attention, module)
            fused += 1
    return fused


def _attention(self: Any, hidden_states: Tensor, **more: Any) -> Any:
    """What an attention module computes, in a compiled forest; elsewhere by its own forward."""
    places, positions = more.get("places"), more.get("position_embeddings")
    if not isinstance(places, CompiledForest) or positions is None or positions[0].shape[-1] != self.head_dim:
        return type(self).forward(self, hidden_states, **more)
    maps = (self.q_proj, self.k_proj, self.v_proj)
    query, key, value = (a_map(hidden_states)[0].unflatten(-1, (-1, self.head_dim)) for a_map in maps)
    turn = Turn(*(part[0].float().contiguous() for part in positions))
    mixed = places.mixed(query.to(value.dtype), key.to(value.dtype), value, float(self.scaling), turn)
    return self.o_proj(mixed.flatten(1)[None]), None


def _agree(module: Any) -> bool:
    """Does `_attention` give what the module does, and the same gradients, where two answers share a prompt?"""
    places = CompiledForest(torch.arange(7), Spans.of([(0, 2)], [[(2, 5), (5, 7)]], 0))
    some = module.q_proj.weight
    x = torch.sin(torch.arange(7.0 * some.shape[1], dtype=some.dtype)).view(1, 7, -1).requires_grad_()
    angles = torch.arange(7.0, dtype=some.dtype)[:, None] * torch.linspace(1, 0.1, module.head_dim // 2).to(some)
    turn = tuple(part.repeat(1, 2)[None] for part in (angles.cos(), angles.sin()))
    wanted, found = [x, *(p for p in module.parameters() if p.requires_grad)], []
    try:
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            for forward in (type(module).forward, _attention):
                y, _ = forward(module, x, position_embeddings=turn, attention_mask=None, places=places)
                upstream = torch.cos(3 * (found[0][0] if found else y.detach()))
                found.append([y.detach(), *torch.autograd.grad(y, wanted, upstream)])
    except (TypeError, ValueError, RuntimeError, AttributeError):  # it wants to be told other things
        return False
    return alike(found[0], found[1], 1e-4)
