"""What the machine is good at, where a decision of the recipe is left to it."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path

from assay.recipe.schema import Precision, Recipe, RolloutPrecision, RunRecipe

PRODUCT_SIZES: Mapping[str, int] = {"cpu": 1024, "cuda": 8192}
"""Sides of the matrices whose product is timed, by device; 4096 elsewhere: large enough to keep all of it busy."""


PRIMITIVES: Mapping[str, str] = {"LRU_CACHE_CAPACITY": "128", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
"""How many products oneDNN and torch's layer over it may keep ready, each for one shape and of some 100 kB or more.

Their own default is 1,024. A step's shapes hardly ever return, for answers differ in number and length, so a run grew
with each of its first steps. Within a step those of a micro-batch recur: some sixteen at a time.
"""


def give_back_memory() -> None:
    """Have the C library give the system what is free within its heap, where that library is glibc.

    Not where the user has set any of its ``MALLOC_`` variables, as to keep memory for the next step: those stand.

    Generation and update each take gigabytes that the other one has just freed, in pieces of other sizes: without this
    the heap keeps the holes, and a run comes to hold the memory of both (`benchmarks/memory_vs_trl.py`).
    """
    told = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if platform.libc_ver()[0] == "glibc" and not told:
        ctypes.CDLL(None).malloc_trim(0)


def bfloat16_instructions() -> list[str]:
    """The processor's instructions for bfloat16 products, as far as the system tells."""
    flags = set(re.findall(r"\b(?:avx512_bf16|amx_bf16|bf16|sve_bf16)\b", _processors()))
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        flags.add("arm64")
    return sorted(flags)


def intel() -> bool:
    """Is the processor one of Intel's, as far as the system tells?"""
    return "GenuineIntel" in _processors() or (platform.system() == "Darwin" and platform.machine() == "x86_64")


def _processors() -> str:
    """What Linux says of the processors; nothing elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def fast_precision(device: str) -> Precision:
    """The precision in which matrix products are fastest on ``device`` (``cuda``, ``mps`` or ``cpu``).

    bfloat16 where there are instructions for it; a processor without them emulates it, several times slower than
    float32.
    """
    import torch

    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if device == "cpu" and bfloat16_instructions() else "float32"


def product_rate(device: str, precision: RolloutPrecision, seconds: float = 0.2) -> float:
    """FLOP per second of the best of a few products of two square matrices: the limit of all arithmetic here.

    With torch's present number of threads, for about ``seconds`` and at least three products. Torch's own random
    numbers stay as they are. Raises RuntimeError or TypeError where the device has no such product.
    """
    import torch

    size = PRODUCT_SIZES.get(torch.device(device).type, 4096)
    source = torch.Generator(device).manual_seed(0)  # not zeros: some devices multiply those faster
    dtype = getattr(torch, precision)
    product = torch.ops.aten._int_mm if dtype == torch.int8 else torch.mm
    spread = 40 if dtype == torch.int8 else 1  # numbers that fill 8 bits
    left, right = ((torch.randn(size, size, generator=source, device=device) * spread).to(dtype) for _ in range(2))

    def timed() -> float:
        start = time.perf_counter()
        float(product(left, right)[0, 0])  # read a number of it: devices work while Python goes on
        return time.perf_counter() - start

    taken, end = [timed() for _ in range(3)], time.perf_counter() + seconds
    while time.perf_counter() < end:
        taken.append(timed())
    return 2 * size**3 / min(taken)


def prepare_torch(run: RunRecipe) -> None:
    """Threads, determinism, the seed and `PRIMITIVES`, before the first tensor. What the user has set stands."""
    import torch

    for name, capacity in PRIMITIVES.items():
        os.environ.setdefault(name, capacity)

    if run.threads is not None or run.deterministic:
        torch.set_num_threads(run.threads or 1)
    if run.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(run.deterministic)
    torch.manual_seed(run.seed)


def with_precision(recipe: Recipe, device: str) -> Recipe:
    """The recipe with ``model.compute_dtype: auto`` replaced by what it means on ``device``, so that it is on record.

    Deterministic runs get float32, and bfloat16 weights bfloat16 products: nothing else works with them.
    """
    if recipe.model.compute_dtype != "auto":
        return recipe
    chosen = fast_precision(device)
    if recipe.model.dtype == "bfloat16":
        chosen = "bfloat16"
    if recipe.run.deterministic:
        chosen = "float32"
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"compute_dtype": chosen})})
