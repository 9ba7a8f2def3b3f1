"""The matrices of a fused network: one or several of the model's linear maps side by side, made anew at each publish.

A map may be wrapped by an adapter (peft's LoRA): the product of its low-rank matrices is then merged into the copy, so
that a decoding step costs what it costs without adapters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from assay.errors import AssayError


class Unfusable(AssayError):
    """The model has a part that the fused network does not know; the general path serves it."""


class Projection(Protocol):
    """x (..., K) to x W^T + b (..., N), W being the weights of the sources below each other."""

    def __call__(self, x: Tensor) -> Tensor:
        """The product."""
        ...

    def refresh(self) -> None:
        """Take the present weights of the sources."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """What a product reads beyond its argument."""
        ...

    def release(self) -> None:
        """Free a copy of them until the next `refresh`."""
        ...


class Dense:
    """Weights in a floating precision: the source's own tensor where one source has it in that precision."""

    def __init__(self, sources: Sequence[nn.Module], dtype: torch.dtype, *, copied: bool = False) -> None:
        """``copied``: keep apart from the sources even where their tensor would serve."""
        self._sources = sources
        self._shared = len(sources) == 1 and not copied and not _adapted(sources[0]) and _own(sources[0]).dtype == dtype
        self._dtype = dtype
        self.weight = _own(sources[0])
        if not self._shared:
            self.weight = torch.cat([matrix(s).to(dtype) for s in sources])
        self.bias = biases(sources, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Projection`."""
        return linear(x, self.weight, self.bias)

    @torch.no_grad()
    def refresh(self) -> None:
        """See `Projection`."""
        if self._shared:
            self.weight = _own(self._sources[0])
        else:
            rows = [_own(s).shape[0] for s in self._sources]
            for part, source in zip(self.weight.split(rows), self._sources, strict=True):
                part.copy_(matrix(source))
        fresh = biases(self._sources, self._dtype)
        if self.bias is not None and fresh is not None:
            self.bias.copy_(fresh)

    def tensors(self) -> Iterator[Tensor]:
        """See `Projection`."""
        return present(self.weight, self.bias)

    def release(self) -> None:
        """See `Projection`: the copy is written to in place, so it stays."""


class Int8:
    """Weights and inputs in 8 bits, products summed in 32: y = (q(x) Q^T) s_x s_W.

    Symmetric rounding to [-127, 127] with one scale for each output channel of W (its largest magnitude / 127) and one
    for each row of x, taken as it comes. A row's result does not depend on the other rows.
    """

    def __init__(self, sources: Sequence[nn.Module]) -> None:
        self._sources = sources
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """See `Projection`."""
        weight = stacked(self._sources).float()
        scale = _scale(weight)
        self.weight = (weight / scale).round_().to(torch.int8).t().contiguous()
        """(K, N)"""
        self.scale = scale[:, 0]
        self.bias = biases(self._sources, torch.float32)

    def tensors(self) -> Iterator[Tensor]:
        """See `Projection`."""
        return present(self.weight, self.scale, self.bias)

    def release(self) -> None:
        """See `Projection`."""
        del self.weight

    def __call__(self, x: Tensor) -> Tensor:
        """See `Projection`."""
        rows = x.reshape(-1, x.shape[-1])
        scale = _scale(rows)
        sums = torch.ops.aten._int_mm((rows / scale).round_().to(torch.int8), self.weight)
        out = sums.float().mul_(scale).mul_(self.scale)
        if self.bias is not None:
            out += self.bias
        return out.to(x.dtype).view(*x.shape[:-1], -1)


def matrix(source: nn.Module) -> Tensor:
    """The weight (N, K) of a linear map, the adapters that are active merged into it."""
    if not _adapted(source):
        return _own(source)
    adapter: Any = source
    return _own(source) + sum(adapter.get_delta_weight(name) for name in adapter.active_adapters)


def stacked(sources: Sequence[nn.Module]) -> Tensor:
    """The weights of some maps below each other; of one map its own tensor, not a copy."""
    return matrix(sources[0]) if len(sources) == 1 else torch.cat([matrix(s) for s in sources])


def check_linear(module: nn.Module) -> nn.Module:
    """Return a module that `matrix` can read. Raises Unfusable for anything else."""
    if _adapted(module):
        adapter: Any = module
        if any(adapter.use_dora.get(name, False) for name in adapter.active_adapters) or adapter.merged:
            raise Unfusable(f"{type(module).__name__} is not a plain low-rank adapter")
        module_type = type(adapter.get_base_layer())
    else:
        module_type = type(module)
    if module_type is not nn.Linear:
        raise Unfusable(f"{module_type.__name__} is not a linear map")
    return module


def _adapted(source: nn.Module) -> bool:
    return hasattr(source, "get_delta_weight") and hasattr(source, "get_base_layer")


def _base(source: Any) -> Any:
    return source.get_base_layer() if _adapted(source) else source


def _own(source: nn.Module) -> Tensor:
    return _base(source).weight.detach()


def biases(sources: Sequence[nn.Module], dtype: torch.dtype) -> Tensor | None:
    """The biases of some maps one after the other, zeros where one has none; ``None`` where none has any."""
    biases = [getattr(_base(s), "bias", None) for s in sources]
    if all(b is None for b in biases):
        return None
    filled = [
        torch.zeros(_own(s).shape[0], device=_own(s).device) if b is None else b.detach()
        for b, s in zip(biases, sources, strict=True)
    ]
    return torch.cat([b.to(dtype) for b in filled])


def present(*tensors: Tensor | None) -> Iterator[Tensor]:
    """Those that are there."""
    return (tensor for tensor in tensors if tensor is not None)


def _scale(rows: Tensor) -> Tensor:
    """(R, 1): the step of a symmetric 8-bit grid that reaches each row's largest magnitude."""
    return rows.abs().amax(-1, keepdim=True).clamp_(min=1e-30).div_(127)
