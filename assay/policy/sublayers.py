"""Norms and gated feed-forward parts, each as one function with a backward pass of its own.

Automatic differentiation keeps every step of them: of a layer of SmolLM2's shape 19 numbers for each hidden one, where
12 are enough (`test_less_is_kept_for_the_backward_pass`). Here a norm keeps its input and one number a row, a
feed-forward part its input and its two first products; the rest is computed again, which costs no more than writing and
reading it::

    n = x r,  r = (mean(x^2) + eps)^-1/2         y = n w
    dx = r (w dy - n mean(w dy n))               dw = sum(dy n)

    g = x W_g^T    u = x W_u^T    h = silu(g) u  y = h W_d^T
    dh = dy W_d    du = dh silu(g)               dg = dh u silu'(g)    dx = dg W_g + du W_u

A function takes the place of a module's own forward only where both agree, in result and gradients, on a probe.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, silu


def fuse_sublayers(trunk: nn.Module) -> int:
    """Give the float32 norms and feed-forward parts in ``trunk`` these forwards, where they compute the same.

    Their weights stay where they are. Returns how many were given one. Adapted, biased or otherwise different modules
    keep their own.
    """
    agreed: dict[tuple[type, type | None], bool] = {}
    fused = 0
    for module in trunk.modules():
        forward = _norm if _like_norm(module) else _mlp if _like_mlp(module) else None
        if forward is None:
            continue
        kind = type(module), type(getattr(module, "act_fn", None))
        if kind not in agreed:
            agreed[kind] = _agree(module, MethodType(forward, module))
        if agreed[kind]:
            module.forward = MethodType(forward, module)  # bound, so that a copy of the module calls its own
            fused += 1
    return fused


def _norm(self: Any, x: Tensor) -> Tensor:
    return RmsNorm.apply(x, self.weight, self.variance_epsilon)


def _mlp(self: Any, x: Tensor) -> Tensor:
    return GatedMlp.apply(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)


class RmsNorm(torch.autograd.Function):
    """x (..., H), weight (H,), eps to (..., H): see the module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """y (..., H)."""
        r = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_().unsqueeze(-1)
        ctx.save_for_backward(x, weight, r)
        return (x * r).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dx and, where it is wanted, dw."""
        (dy,) = gradients
        x, weight, r = ctx.saved_tensors
        n = x * r
        dw = (dy * n).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        dn = dy * weight
        mean = torch.linalg.vecdot(dn, n).div_(x.shape[-1]).unsqueeze(-1)
        return dn.addcmul_(n, mean, value=-1).mul_(r), dw, None


class GatedMlp(torch.autograd.Function):
    """x (..., H), gate and up (F, H), down (H, F) to (..., H): see the module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """y (..., H)."""
        rows = x.reshape(-1, x.shape[-1])
        g, u = linear(rows, gate), linear(rows, up)
        ctx.save_for_backward(rows, g, u, gate, up, down)
        return linear(silu(g).mul_(u), down).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dx and, where they are wanted, the gradients of the three weights."""
        x, g, u, gate, up, down = ctx.saved_tensors
        dy = gradients[0].reshape(x.shape)
        _, wants_gate, wants_up, wants_down = ctx.needs_input_grad
        dh, s = dy @ down, silu(g)
        scratch = s * u
        d_down = dy.t() @ scratch if wants_down else None
        torch.mul(dh, u, out=scratch)
        du = s.mul_(dh)
        dg = torch.ops.aten.silu_backward.grad_input(scratch, g, grad_input=dh)
        dx = (du @ up).addmm_(dg, gate)
        d_gate, d_up = dg.t() @ x if wants_gate else None, du.t() @ x if wants_up else None
        return dx.view(gradients[0].shape), d_gate, d_up, d_down


def _like_norm(module: nn.Module) -> bool:
    """One weight in float32 and an epsilon: perhaps an RMS norm."""
    names = [name for name, _ in module.named_parameters()]
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    return names == ["weight"] and isinstance(eps, float) and weight is not None and weight.dtype == torch.float32


def _like_mlp(module: nn.Module) -> bool:
    """Three plain linear maps in float32 and an activation: perhaps a gated feed-forward part with SiLU."""
    children = dict(module.named_children())
    if set(children) != {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        return False
    maps: list[Any] = [children[name] for name in ("gate_proj", "up_proj", "down_proj")]
    return all(type(m) is nn.Linear and m.bias is None and m.weight.dtype == torch.float32 for m in maps)


def _agree(module: Any, forward: MethodType) -> bool:
    """Does ``forward`` give what the module gives, and the same gradients? On three rows, in units of the largest."""
    some = next(module.parameters())
    width = some.shape[-1]
    wanted = [p for p in module.parameters() if p.requires_grad]
    found = []
    with torch.enable_grad():
        for function in (module.forward, forward):
            x = torch.sin(torch.arange(3.0 * width, device=some.device)).view(1, 3, width).requires_grad_()
            y = function(x)
            found.append([y.detach(), *torch.autograd.grad(y, [x, *wanted], torch.cos(3 * y.detach()))])
    return all(float((a - b).abs().max()) <= 1e-5 * float(b.abs().max()) + 1e-12 for b, a in zip(*found, strict=True))
