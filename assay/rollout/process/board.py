"""The notice board: shared memory in which the trainer's weights are laid out for engines in other processes.

An engine copies what it samples from off the board, between two of its steps, and says so; only when all readers are
done does the trainer write again. So nobody ever reads weights that are half written, the trainer may change its own
tensors at any other time, and one board serves any number of engines, those started later included.

The memory has no name in any file system: it goes to a child as an open file, and is gone with the last process that
holds it, however they end.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import tempfile
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.rollout.weights import causal_lm_of, merged_weights

ALIGNMENT = 64
"""Bytes: each tensor begins at a multiple of it."""


@dataclass(frozen=True)
class Place:
    """Where a tensor lies."""

    offset: int
    """Bytes from the start."""
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Plan:
    """What lies where."""

    places: Mapping[str, Place]
    """By the tensor's name in the causal LM; tied ones have the same place."""
    size: int
    """Bytes of all."""


def tensors_of(model: Any) -> Iterator[tuple[str, Tensor]]:
    """All that a causal LM's forward reads: its checkpoint with adapters merged, and buffers that no checkpoint has."""
    seen = set()
    for name, tensor in merged_weights(model):
        seen.add(name)
        yield name, tensor
    for name, buffer in causal_lm_of(model).named_buffers():
        if name not in seen and ".lora_" not in f".{name}":
            yield name, buffer


def plan_of(model: Any) -> Plan:
    """The layout for a model's present structure."""
    lasting = {t.data_ptr() for t in causal_lm_of(model).state_dict().values()}  # not of a merged one, soon another's
    places: dict[str, Place] = {}
    tied: dict[tuple[int, torch.Size], Place] = {}
    end = 0
    for name, tensor in tensors_of(model):
        identity = tensor.data_ptr(), tensor.shape
        place = tied.get(identity) if tensor.data_ptr() in lasting and tensor.numel() else None
        if place is None:
            place = Place(end, tuple(tensor.shape), tensor.dtype)
            end = -(-(end + tensor.nbytes) // ALIGNMENT) * ALIGNMENT
            if tensor.data_ptr() in lasting:
                tied[identity] = place
        places[name] = place
    return Plan(places, max(end, ALIGNMENT))


def open_memory(size: int) -> int:
    """A descriptor of ``size`` bytes of memory without a name. Raises OSError where there is not so much."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("assay-weights")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)  # else a lack of memory shows as a bus error, when it is written
    return descriptor


def mapped(descriptor: int, plan: Plan) -> dict[str, Tensor]:
    """The tensors of ``plan`` in the memory of ``descriptor``, by name; those with one place are one tensor."""
    memory = torch.frombuffer(mmap.mmap(descriptor, plan.size), dtype=torch.uint8)
    made: dict[Place, Tensor] = {}
    for place in plan.places.values():
        if place not in made:
            count = torch.Size(place.shape).numel() * place.dtype.itemsize
            made[place] = memory[place.offset : place.offset + count].view(place.dtype).view(place.shape)
    return {name: made[place] for name, place in plan.places.items()}


class Board:
    """The writing side. One event loop; its readers are named by any object."""

    def __init__(self, model: Any) -> None:
        """Lay out and write ``model``'s present weights as version 0. Raises OSError without the memory for them."""
        self._model = model
        self.plan = plan_of(model)
        self.descriptor = open_memory(self.plan.size)
        weakref.finalize(self, os.close, self.descriptor)
        self._tensors = mapped(self.descriptor, self.plan)
        self._turn = asyncio.Lock()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._reading: set[int] = set()
        self._served: set[int] = set()
        self.version = 0
        self._write()

    def begin(self, reader: object) -> None:
        """``reader`` reads what is on the board now, until `end`: nothing is written."""
        self._reading.add(id(reader))
        self._served.add(id(reader))
        self._quiet.clear()

    def end(self, reader: object) -> None:
        """``reader`` is done, or dead."""
        self._reading.discard(id(reader))
        if not self._reading:
            self._quiet.set()

    @asynccontextmanager
    async def edition(self, reader: object, version: int) -> AsyncIterator[None]:
        """Within: the trainer's weights of ``version`` stand on the board, for ``reader`` to read.

        They are written once for all readers: where another has had them written and this one has not read them yet,
        they stand there already. The trainer must not be writing its own, then.
        """
        async with self._turn:
            if version != self.version or id(reader) in self._served:
                await self._quiet.wait()
                self._write()
                self.version = version
                self._served.clear()
            self.begin(reader)
        try:
            yield
        finally:
            self.end(reader)

    @torch.no_grad()
    def _write(self) -> None:
        written: set[int] = set()
        unwritten = set(self._tensors)
        for name, tensor in tensors_of(self._model):
            target = self._tensors.get(name)
            if target is None or target.shape != tensor.shape:
                raise AssayError(f"the model's tensor {name!r} was not there when its engine was started")
            unwritten.discard(name)
            if target.data_ptr() not in written:
                written.add(target.data_ptr())
                target.copy_(tensor)
        if unwritten:
            raise AssayError(f"the model has lost the tensor {min(unwritten)!r} since its engine was started")
