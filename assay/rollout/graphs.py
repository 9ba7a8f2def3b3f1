"""Decoding steps that are recorded once and replayed, as CUDA graphs.

A large device computes a small model's step faster than the host can launch it, kernel by kernel, some fifteen for each
layer. A graph is launched as a whole. What it reads and writes lies where it lay when it was recorded, so a graph is
made for a shape, rows and positions both rounded up, and holds until the cache or the weights move. A shape's first
step runs as it is, which also warms it up; its second is recorded; from then on it is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from assay.rollout.cache import SlotCache
from assay.rollout.network import Network, decode_step

Step = Callable[[], Tensor]
"""A computation without arguments: on the same memory each time, and its result too lies where it lay before."""

Record = Callable[[Step], Step]
"""Records a step's operations, which need not run meanwhile; what it returns runs them again."""

Recorder = Callable[[], Record]
"""Makes a `Record`. What one records shares its memory, and is dropped together."""

POSITIONS = 64
"""Widths are rounded up to a multiple of this."""
MOST = 256
"""Graphs to keep: the oldest goes."""


def recorder(device: torch.device) -> Recorder | None:
    """What records on the device; ``None`` where nothing does."""
    return partial(cuda_graphs, device) if device.type == "cuda" else None


def cuda_graphs(device: torch.device) -> Record:
    """Graphs with one pool of memory: they run one after another, and keep nothing but what they write to.

    A pool that has lost its last graph takes no new one.
    """
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)

    def record(step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.stream(stream):  # torch.cuda.graph() would empty the allocator's cache each time
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                result = step()
            finally:
                graph.capture_end()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    return record


def rounded(n: int, least: int = 1) -> int:
    """n, up to the next of four sizes an octave: a quarter more, or one less than ``least``, at most.

    >>> [rounded(n) for n in (1, 7, 9, 33, 128)], [rounded(n, 64) for n in (1, 65, 520, 1100)]
    ([1, 7, 10, 40, 128], [64, 128, 640, 1280])
    """
    step = max(least, 1 << max(0, n.bit_length() - 3))
    return -(-n // step) * step


class DecodeGraphs:
    """The decoding steps of a network on a cache."""

    def __init__(self, network: Network, cache: SlotCache, recorder: Recorder) -> None:
        self._network, self._cache, self._recorder = network, cache, recorder
        self.replayed = 0
        """Steps that were not launched kernel by kernel."""
        self.clear()

    def clear(self) -> None:
        """Drop all graphs, and with them their memory."""
        self._met: set[tuple[int, int]] = set()
        self._steps: dict[tuple[int, int], Step] = {}
        self._record = self._recorder()
        self._inputs: Tensor | None = None
        self._logits: Tensor | None = None
        self._memory = self._cache.made
        self._weights = self._addresses()

    def refreshed(self) -> None:
        """The network has followed the trainer's weights: what was recorded holds if it wrote over its own."""
        if self._weights != self._addresses():
            self.clear()

    def shape(self, rows: int, width: int) -> tuple[int, int]:
        """The rows and positions with which a step of so many is computed, for which the cache must have room."""
        return min(rounded(rows), self._cache.slots), min(rounded(width, POSITIONS), self._cache.capacity)

    def decode(self, ids: list[int], positions: list[int], width: int) -> Tensor:
        """Logits (A, V) after tokens ``ids`` at ``positions`` (A,) in slots 0 to A - 1; they are gone at the next step.

        Rows up to the rounded number feed token 0 at position 0 of slots that are empty or yet to be filled.
        """
        if self._memory != self._cache.made:
            self.clear()
        if self._inputs is None:
            self._inputs = torch.zeros(2, self._cache.slots, dtype=torch.long, device=self._network.device)
        inputs = self._inputs
        rows, wide = shape = self.shape(len(ids), width)
        spare = [0] * (rows - len(ids))
        inputs[:, :rows].copy_(torch.tensor([ids + spare, positions + spare]))
        step = partial(self._forward, inputs[:, :rows, None], wide)
        if shape in self._steps:
            step = self._steps[shape]
            self.replayed += 1
        elif shape in self._met:
            if len(self._steps) == MOST:
                del self._steps[next(iter(self._steps))]
            step = self._steps[shape] = self._record(step)
        self._met.add(shape)
        return step()[: len(ids)]

    def _addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self._network.tensors()]

    def _forward(self, inputs: Tensor, width: int) -> Tensor:
        """A step of ids and positions (2, R, 1); its logits go where those of every step go."""
        ids, positions = inputs
        logits = decode_step(self._network, self._cache, ids, positions, width)
        if self._logits is None:
            self._logits = logits.new_empty(self._cache.slots, logits.shape[1])
        return self._logits[: len(logits)].copy_(logits)
