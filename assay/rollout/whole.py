"""A decoding step of the fused network as one call, where each of its parts is compiled."""

from __future__ import annotations

from collections.abc import Sequence

from assay.kernels.build import Unavailable
from assay.kernels.layers import LayerWeights, RmsWeights, StepKernel
from assay.kernels.product import ProductWeights
from assay.rollout.block import Block
from assay.rollout.norms import Norm, RmsNorm
from assay.rollout.packed import Packed
from assay.rollout.projection import Projection


def step_kernel(blocks: Sequence[Block], last: Norm, head: Projection, width: int) -> StepKernel | None:
    """The kernel on the present weights of the parts; ``None`` where one of them is not compiled.

    ``width``: numbers of a head.
    """
    first = blocks[0]
    try:
        layers = [_layer(block) for block in blocks]
        if len({(block.heads, block.kv_heads, block.scaling) for block in blocks}) > 1:
            raise Unavailable("layers differ in their attention")
        return StepKernel(
            layers, _norm(last), _map(head), width=width, group=first.heads // first.kv_heads, scaling=first.scaling
        )
    except Unavailable:
        return None


def _layer(block: Block) -> LayerWeights:
    if block.kernels is None or block.gate != block.kernels.gate or block.softcap is not None:
        raise Unavailable("its attention or its gate is not compiled")
    places = (block.before, block.after, block.before_mlp, block.after_mlp, *(block.head_norms or (None, None)))
    norms = [None if norm is None else _norm(norm) for norm in places]
    return LayerWeights(norms, [_map(product) for product in block.products], block.kind)


def _norm(norm: Norm) -> RmsWeights:
    if not isinstance(norm, RmsNorm):
        raise Unavailable("a norm of its own kind")
    return RmsWeights(norm.weight, norm.eps)


def _map(projection: Projection) -> ProductWeights:
    weights = projection.compiled() if isinstance(projection, Packed) else None
    if weights is None:
        raise Unavailable("a matrix that is not arranged for compiled products")
    return weights
