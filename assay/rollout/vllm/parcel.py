"""Weights on their way through files: a few safetensors files of bounded size, each with its size and checksum.

Each is written aside and renamed, so that a reader never sees half of one.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

BACKEND = "assay_file"
"""The name under which vLLM's weight transfer knows this way."""
PARCEL_BYTES = 1 << 30
"""Largest parcel, unless one tensor alone is larger: what is held twice while it is written."""


@dataclass(frozen=True)
class Parcel:
    """One file of weights."""

    path: str
    size: int
    """Bytes."""
    checksum: int | None
    """CRC-32 of the file, where it crosses a disk or a network; ``None`` in memory."""
    names: tuple[str, ...]
    """Its tensors, in the order in which to load them: layer by layer."""


def parcels(
    weights: Iterable[tuple[str, Tensor]],
    folder: Path,
    dtype: torch.dtype,
    *,
    checksums: bool,
    limit: int = PARCEL_BYTES,
) -> tuple[Parcel, ...]:
    """Write ``weights`` in ``dtype`` into a ``folder`` that is made for them: all of them, or none."""
    folder.mkdir(parents=True)
    written: list[Parcel] = []
    try:
        for number, tensors in enumerate(_portions(weights, dtype, limit)):
            path = folder / f"{number}.safetensors"
            aside = path.with_suffix(".partial")
            save_file(tensors, aside)
            os.replace(aside, path)
            checksum = _checksum(path) if checksums else None
            written.append(Parcel(str(path), path.stat().st_size, checksum, tuple(tensors)))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return tuple(written)


def verified(parcel: Parcel) -> Path:
    """The file of a parcel. Raises ValueError when it is not there, or not the one that was written."""
    path = Path(parcel.path)
    if not path.exists():
        raise ValueError(f"{path} is not there: do trainer and engine share that folder?")
    if path.stat().st_size != parcel.size:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, and {parcel.size} were written")
    if parcel.checksum is not None and _checksum(path) != parcel.checksum:
        raise ValueError(f"{path} is not what was written: its checksum differs")
    return path


def _portions(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, limit: int) -> Iterator[dict[str, Tensor]]:
    """Consecutive tensors of at most ``limit`` bytes together, on the CPU, contiguous, each with its own storage."""
    portion: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        wanted = dtype if tensor.is_floating_point() else tensor.dtype
        sent = tensor.detach().to("cpu", wanted).contiguous()
        if portion and size + sent.nbytes > limit:
            yield portion
            portion, size = {}, 0
        portion[name] = sent
        size += sent.nbytes
    if portion:
        yield portion


def _checksum(path: Path) -> int:
    total = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            total = zlib.crc32(block, total)
    return total
