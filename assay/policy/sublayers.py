"""Embeddings, norms, linear maps and gated feed-forward parts, each as one function with a backward pass of its own.

Automatic differentiation keeps every step of them: of a layer of SmolLM2's shape 19 numbers for each hidden one, where
12 are enough (`test_less_is_kept_for_the_backward_pass`). Here a norm keeps its input and one number a row, a
feed-forward part its input and its two first products; the rest is computed again, which costs no more than writing and
reading it::

    n = x r,  r = (mean(x^2) + eps)^-1/2         y = n w
    dx = r (w dy - n mean(w dy n))               dw = sum(dy n)

    g = x W_g^T    u = x W_u^T    h = silu(g) u  y = h W_d^T
    dh = dy W_d    du = dh silu(g)               dg = dh u silu'(g)    dx = dg W_g + du W_u

Norms compute in float32; what they give is what the products after them take, in the precision of those. A product's
weight is cast once for all micro-batches (`NarrowWeights`), and its gradient lies as the weight does: torch's own
derivative of a cast product gives it transposed, and adding that up took as long as the product. An embedding adds what
it has to say to the rows that were read.

A function takes the place of a module's own forward only where both agree, in result and gradients, on a probe.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, linear, silu

from assay.kernels.sublayers import SublayerKernels, sublayer_kernels
from assay.policy.narrow import NarrowWeights

MAPS = ("gate_proj", "up_proj", "down_proj")
Kind = Callable[[Any, Tensor, NarrowWeights, bool], Tensor]
"""A way to compute what a module does: the module, its input, the weights, whether compiled, to its output."""


def fuse_sublayers(trunk: nn.Module, weights: NarrowWeights, compiled: bool = True) -> int:
    """Give what has float32 weights in ``trunk`` these forwards, where they compute the same.

    Products are in the precision of ``weights``; where that is narrower than float32, under autocast alone: elsewhere a
    module stays what it was. ``compiled``: what is beside the products by `assay.kernels`, where they are. The weights
    stay where they are. Returns how many modules were given a forward; biased
    feed-forward parts and otherwise different modules keep their own.
    """
    agreed: dict[tuple[type, type | None], bool] = {}
    fused = 0
    for module in trunk.modules():
        kind = _kind(module)
        if kind is None:
            continue
        key = type(module), type(getattr(module, "act_fn", None))
        if key not in agreed:
            agreed[key] = _agree(module, _forward(kind, module, NarrowWeights(torch.float32), compiled))
        if agreed[key]:
            module.forward = _forward(kind, module, weights, compiled)
            fused += 1
    return fused


def restore_sublayers(trunk: nn.Module) -> None:
    """Give the modules back their own forwards."""
    for module in trunk.modules():
        forward = vars(module).get("forward")
        if str(getattr(forward, "__module__", None)).startswith("assay.policy."):
            del module.forward


def _forward(kind: Kind, module: nn.Module, weights: NarrowWeights, compiled: bool) -> MethodType:
    """The module's new forward; bound, so that a copy of the module calls its own."""

    def forward(self: Any, x: Tensor) -> Tensor:
        device = x.device.type
        served = weights.dtype == torch.float32 or torch.is_autocast_enabled(device)
        if not served or next(self.parameters()).dtype != torch.float32:  # a copy of the module may be narrow
            return type(self).forward(self, x)
        with torch.autocast(device, enabled=False):
            return kind(self, x, weights, compiled and device == "cpu")

    return MethodType(forward, module)


def _norm(self: Any, x: Tensor, weights: NarrowWeights, compiled: bool) -> Tensor:
    return RmsNorm.apply(x, self.weight, self.variance_epsilon, weights.dtype, compiled)


def _embedding(self: Any, ids: Tensor, weights: NarrowWeights, compiled: bool) -> Tensor:
    return Embedding.apply(ids, self.weight, self.padding_idx)


def _linear(self: Any, x: Tensor, weights: NarrowWeights, compiled: bool) -> Tensor:
    return Linear.apply(x, self.weight, self.bias, weights)


def _mlp(self: Any, x: Tensor, weights: NarrowWeights, compiled: bool) -> Tensor:
    return GatedMlp.apply(x, *(getattr(self, name).weight for name in MAPS), weights, compiled)


class RmsNorm(torch.autograd.Function):
    """x (..., H), weight (H,), eps, a precision to (..., H) in that: see the module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype, compiled: bool) -> Tensor:
        """y (..., H)."""
        x = x.to(weight.dtype).contiguous()
        ctx.kernels = kernels = sublayer_kernels(dtype) if compiled else None
        if kernels:
            y, r = kernels.normalise(x, weight.detach(), eps)
            ctx.save_for_backward(x, weight, r)
            return y
        r = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_().unsqueeze(-1)
        ctx.save_for_backward(x, weight, r)
        return (x * r).mul_(weight).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dx and, where it is wanted, dw."""
        x, weight, r = ctx.saved_tensors
        if ctx.kernels:
            dx, dw = ctx.kernels.pull_norm(x, weight.detach(), r, gradients[0].contiguous())
            return dx, dw if ctx.needs_input_grad[1] else None, None, None, None
        dy = gradients[0].to(weight.dtype)
        n = x * r
        dw = (dy * n).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        dn = dy * weight
        mean = torch.linalg.vecdot(dn, n).div_(x.shape[-1]).unsqueeze(-1)
        return dn.addcmul_(n, mean, value=-1).mul_(r), dw, None, None, None


class Embedding(torch.autograd.Function):
    """ids (...), weight (V, H), the id whose row has no gradient (or None) to (..., H)."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int | None) -> Tensor:
        """y (..., H)."""
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding = weight, padding
        return embedding(ids, weight.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dW, where there is no gradient yet to add it to."""
        (ids,) = ctx.saved_tensors
        grad = torch.zeros_like(ctx.weight) if ctx.weight.grad is None else ctx.weight.grad
        if ctx.padding is None:
            grad.index_add_(0, ids.flatten(), gradients[0].flatten(0, -2))
        else:
            read = ids != ctx.padding
            grad.index_add_(0, ids[read], gradients[0][read])
        return None, grad if ctx.weight.grad is None else None, None


class Linear(torch.autograd.Function):
    """x (..., K), weight (N, K), bias (N,) or None to x W^T + b (..., N)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weights: NarrowWeights) -> Tensor:
        """y (..., N)."""
        rows, narrow = x.reshape(-1, x.shape[-1]).to(weights.dtype), weights(weight)
        ctx.save_for_backward(rows, narrow)
        return linear(rows, narrow, None if bias is None else weights(bias)).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dx and, where they are wanted, dW and db."""
        x, weight = ctx.saved_tensors
        _, wants_weight, wants_bias, _ = ctx.needs_input_grad
        dy = gradients[0].reshape(len(x), -1).to(x.dtype)
        dx = (dy @ weight).view(*gradients[0].shape[:-1], -1)
        return dx, dy.t() @ x if wants_weight else None, dy.sum(0) if wants_bias else None, None


class GatedMlp(torch.autograd.Function):
    """x (..., H), gate and up (F, H), down (H, F) to (..., H): see the module."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, weights: NarrowWeights, compiled: bool
    ) -> Tensor:
        """y (..., H)."""
        rows = x.reshape(-1, x.shape[-1]).to(weights.dtype)
        gate, up, down = weights(gate), weights(up), weights(down)
        g, u = linear(rows, gate), linear(rows, up)
        ctx.save_for_backward(rows, g, u, gate, up, down)
        ctx.kernels = kernels = sublayer_kernels(g.dtype) if compiled else None
        return linear(kernels.gate(g, u) if kernels else silu(g).mul_(u), down).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dx and, where they are wanted, the gradients of the three weights."""
        x, g, u, gate, up, down = ctx.saved_tensors
        dy = gradients[0].reshape(x.shape).to(x.dtype)
        _, wants_gate, wants_up, wants_down, *_ = ctx.needs_input_grad
        h, dg, du = _pull_gate(g, u, dy @ down, ctx.kernels)
        d_down = dy.t() @ h if wants_down else None
        dx = (du @ up).addmm_(dg, gate)
        d_gate, d_up = dg.t() @ x if wants_gate else None, du.t() @ x if wants_up else None
        return dx.view(gradients[0].shape), d_gate, d_up, d_down, None, None


def _pull_gate(g: Tensor, u: Tensor, dh: Tensor, kernels: SublayerKernels | None) -> tuple[Tensor, Tensor, Tensor]:
    """h = silu(g) u, dg and du; the last may take the place of ``dh``."""
    if kernels:
        return kernels.pull_gate(g, u, dh)
    s = silu(g)
    h, du = s * u, s.mul_(dh)
    return h, torch.ops.aten.silu_backward(dh.mul_(u), g), du


def _kind(module: nn.Module) -> Kind | None:
    """Which of the functions a module might be."""
    if _like_norm(module):
        return _norm
    if type(module) is nn.Linear:
        return _linear if module.weight.dtype == torch.float32 else None
    if type(module) is nn.Embedding:
        return _embedding if _plain_embedding(module) else None
    return _mlp if _like_mlp(module) else None


def _like_norm(module: nn.Module) -> bool:
    """One weight in float32 and an epsilon: perhaps an RMS norm."""
    names = [name for name, _ in module.named_parameters()]
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    return names == ["weight"] and isinstance(eps, float) and weight is not None and weight.dtype == torch.float32


def _plain_embedding(module: nn.Embedding) -> bool:
    """One that reads rows of float32 weights, and nothing else."""
    return module.weight.dtype == torch.float32 and module.max_norm is None and not module.scale_grad_by_freq


def _like_mlp(module: nn.Module) -> bool:
    """Three plain linear maps in float32 and an activation: perhaps a gated feed-forward part with SiLU."""
    children = dict(module.named_children())
    if set(children) != {*MAPS, "act_fn"}:
        return False
    maps: list[Any] = [children[name] for name in MAPS]
    return all(type(m) is nn.Linear and m.bias is None and m.weight.dtype == torch.float32 for m in maps)


def _agree(module: Any, forward: MethodType) -> bool:
    """Does ``forward`` give what the module gives, and the same gradients? On three rows, in units of the largest."""
    some = next(module.parameters())
    width = some.shape[-1]
    wanted = [p for p in module.parameters() if p.requires_grad]
    x = torch.sin(torch.arange(3.0 * width, device=some.device)).view(1, 3, width).requires_grad_()
    if isinstance(module, nn.Embedding):
        x = torch.arange(3, device=some.device)
    found: list[list[Tensor]] = []
    before = [p.grad for p in wanted]
    for p in wanted:
        p.grad = None  # set aside: what is there may be added to
    with torch.enable_grad():
        for function in (module.forward, forward):
            y = function(x)
            leaves = [leaf for leaf in (x, *wanted) if leaf.requires_grad]
            upstream = torch.cos(3 * found[0][0] if found else 3 * y.detach())
            gradients = torch.autograd.grad(y, leaves, upstream) if leaves else ()
            found.append([y.detach(), *gradients])
    for p, gradient in zip(wanted, before, strict=True):
        p.grad = gradient
    return alike(found[0], found[1], 1e-5)


def alike(ones: list[Tensor], others: list[Tensor], gap: float) -> bool:
    """Does no pair differ by more than ``gap`` of the first one's largest number?"""
    pairs = zip(ones, others, strict=True)
    return all(float((one - other).abs().max()) <= gap * float(one.abs().max()) + 1e-12 for one, other in pairs)
