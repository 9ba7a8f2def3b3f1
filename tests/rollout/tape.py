"""A recorder of operations with the terms of a CUDA graph, on the CPU.

What is recorded is which operations ran on which memory. Python does not run again, numbers that it computed stay what
they were, memory that was exchanged since is not seen, and asking for a value breaks the recording.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from assay.rollout.graphs import Step

ASKING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.equal.default}


class Tape(TorchDispatchMode):
    """The operations of one step, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.played: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ASKING:
            raise RuntimeError(f"{func} asks for a value while it is recorded")
        out = func(*args, **(kwargs or {}))
        self.played.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """Run the operations again, each writing its results where they lay."""
        for func, args, kwargs, out in self.played:
            fresh = tree_flatten(func(*args, **kwargs))[0]
            for old, new in zip(tree_flatten(out)[0], fresh, strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def taped(step: Step) -> Step:
    """A `Record`."""
    tape = Tape()
    with tape:
        result = step()

    def replay() -> Tensor:
        tape.replay()
        return result

    return replay
