"""Weights in the order in which a library's products read them: arranged once a version, not once a product.

At the sizes of decoding a plain product spends much of its time on arranging them (benchmarks/choices.py). Two
libraries can be told to: MKL, in float32, and oneDNN, also in bfloat16. MKL keeps its fastest code to Intel's own
processors; on another one with AVX-512 oneDNN's float32 products are the faster ones. Where the processor multiplies
bfloat16 and there is a compiler, the products are our own (kernels/product.c): with a hundred rows oneDNN's wait for
weights from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from assay.hardware import intel
from assay.kernels.build import Unavailable
from assay.kernels.product import ProductKernel, ProductWeights
from assay.rollout.projection import biases, present, stacked

ROWS = 128
"""The rows of x that a library is told of; the arranged weights serve any number, which `library_for` has seen."""


@dataclass(frozen=True)
class Library:
    """Products with arranged weights."""

    name: str
    arranged: Callable[[Tensor, Tensor | None], Tensor]
    """The weight (N, K), arranged; where a library can, in the place of an earlier one, which may be given."""
    product: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
    """x (R, K), an arranged weight, a tensor of the plain one's shape and a bias (N,) or None to (R, N)."""
    compiled: bool = False
    """Are weights arranged as `assay.kernels.product` has them?"""


MKL = Library(
    "MKL",
    lambda weight, _: torch.ops.mkl._mkl_reorder_linear_weight(weight, ROWS),
    lambda x, arranged, shape, bias: torch.ops.mkl._mkl_linear(x, arranged, shape, bias, len(x)),
)
ONEDNN = Library(
    "oneDNN",
    lambda weight, _: torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS),
    lambda x, arranged, _, bias: torch.ops.mkldnn._linear_pointwise(x, arranged, bias, "none", [], ""),
)


@cache
def compiled_products() -> Library | None:
    """Our own products, of bfloat16; ``None`` where they cannot be compiled."""
    try:
        kernel = ProductKernel()
    except Unavailable:
        return None
    return Library(
        "compiled products",
        kernel.arranged,
        lambda x, arranged, shape, bias: kernel(x.contiguous(), arranged, len(shape), bias),
        compiled=True,
    )


@cache
def library_for(dtype: torch.dtype, *, compiled: bool = True) -> Library | None:
    """The library for weights of a precision; ``None`` where there is none that works.

    It must agree with plain products for one row, a few and many. Not chosen by time, so that runs are alike.
    ``compiled``: also one that is compiled here.
    """
    choices = {
        torch.float32: (MKL, ONEDNN) if intel() else (ONEDNN, MKL),
        torch.bfloat16: (compiled_products() if compiled else None, ONEDNN),
    }
    return next((it for it in choices.get(dtype, ()) if it is not None and _works(it, dtype)), None)


def _works(library: Library, dtype: torch.dtype) -> bool:
    with torch.random.fork_rng(devices=[]):  # torch's own random numbers stay as they are
        torch.manual_seed(0)
        plain = nn.Linear(48, 80)
        inputs = [torch.randn(rows, 48) for rows in (1, 7, ROWS, 3 * ROWS + 5)]
    gap = 1e-4 if dtype == torch.float32 else 0.02
    try:
        packed = Packed([plain], dtype, library)
        return all(torch.allclose(packed(x.to(dtype)).float(), plain(x), rtol=gap, atol=gap) for x in inputs)
    except (AttributeError, RuntimeError, ValueError):  # this torch, processor or precision has no such products
        return False


class Packed:
    """A `Projection` whose weights are a library's."""

    def __init__(self, sources: Sequence[nn.Module], dtype: torch.dtype, library: Library) -> None:
        self._sources, self._dtype, self._library = sources, dtype, library
        self._arranged: Tensor | None = None
        self.refresh()

    def __call__(self, x: Tensor) -> Tensor:
        """See `Projection`."""
        rows = x.reshape(-1, x.shape[-1])
        return self._library.product(rows, self._held, self._shape, self.bias).view(*x.shape[:-1], -1)

    @torch.no_grad()
    def refresh(self) -> None:
        """See `Projection`."""
        weight = stacked(self._sources).to(self._dtype)
        self._arranged = self._library.arranged(weight, self._arranged)
        self._shape = weight.new_empty(1).expand(weight.shape)  # of the plain weight only its shape is read
        self.bias = biases(self._sources, self._dtype)

    def tensors(self) -> Iterator[Tensor]:
        """See `Projection`."""
        return present(self._arranged, self.bias)

    def release(self) -> None:
        """See `Projection`."""
        self._arranged = None

    def compiled(self) -> ProductWeights | None:
        """What a kernel for a whole step reads; ``None`` where the library is another's."""
        width, depth = self._shape.shape
        return ProductWeights(self._held, self.bias, depth, width) if self._library.compiled else None

    @property
    def _held(self) -> Tensor:
        if self._arranged is None:
            raise RuntimeError("the weights were released: refresh them first")
        return self._arranged
