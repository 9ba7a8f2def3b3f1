"""The normalisations of a fused network, in its precision, made anew at each publish."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from assay.kernels.decode import DecodeKernels
from assay.rollout.weights import GenerationWeights


class Norm(Protocol):
    """A normalisation over the last axis."""

    def __call__(self, x: Tensor) -> Tensor:
        """The normalised x."""
        ...

    def joined(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """x + y, which may overwrite x, and its normalisation."""
        ...

    def refresh(self) -> None:
        """Take the source's present weight."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """What it reads beyond its argument."""
        ...


class RmsNorm:
    """x / sqrt(mean(x^2) + eps) * (weight + offset); the offset is 1 in Gemma, else 0."""

    def __init__(
        self, source: Any, eps: float, offset: float, dtype: torch.dtype, kernels: DecodeKernels | None
    ) -> None:
        self._source, self._offset, self._kernels = source, offset, kernels
        self.eps = eps
        self.weight = torch.empty_like(source.weight, dtype=dtype, requires_grad=False)
        self.refresh()

    def __call__(self, x: Tensor) -> Tensor:
        """See `Norm`: over as many of the last values as there are weights."""
        if self._kernels:
            return self._kernels.normalise(x.contiguous(), self.weight, self.eps)
        size = self.weight.shape
        return rms_norm(x.reshape(-1, *size), size, self.weight, self.eps).view(x.shape)

    def joined(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """See `Norm`."""
        if self._kernels:
            return x, self._kernels.normalise(x, self.weight, self.eps, added=y)
        x = x + y
        return x, self(x)

    def refresh(self) -> None:
        """See `Norm`: written in place."""
        self.weight.copy_(self._source.weight.detach() + self._offset)

    def tensors(self) -> Iterator[Tensor]:
        """See `Norm`."""
        yield self.weight


class OtherNorm:
    """The model's own module, whatever it computes."""

    def __init__(self, source: nn.Module, dtype: torch.dtype, snapshot: bool) -> None:
        self._weights = GenerationWeights(source, dtype, snapshot=snapshot)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Norm`."""
        return self._weights.module(x)

    def joined(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """See `Norm`."""
        x = x + y
        return x, self(x)

    def refresh(self) -> None:
        """See `Norm`."""
        self._weights.refresh()

    def tensors(self) -> Iterator[Tensor]:
        """See `Norm`."""
        return self._weights.tensors()


def norm_of(source: Any, dtype: torch.dtype, snapshot: bool, kernels: DecodeKernels | None) -> Norm:
    """An `RmsNorm` where the model's module computes one (seen on a probe), else the module itself."""
    eps = getattr(source, "variance_epsilon", getattr(source, "eps", None))
    if isinstance(eps, float) and [name for name, _ in source.named_parameters()] == ["weight"]:
        weight = source.weight.detach().float()
        probe = torch.linspace(-1, 2, len(weight), device=weight.device)
        theirs = source(probe).float()
        for offset in (0.0, 1.0):
            ours = rms_norm(probe, weight.shape, weight + offset, eps)
            if torch.allclose(theirs, ours, rtol=0.02, atol=1e-3):
                return RmsNorm(source, eps, offset, dtype, kernels)
    return OtherNorm(source, dtype, snapshot)
