"""Running out of memory: one line that says in which phase, and which keys help, in place of a traceback."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from assay.errors import AssayError
from assay.recipe.complaints import shown
from assay.recipe.keys import flatten
from assay.recipe.schema import Recipe

_SAMPLING = {"rollout.max_running": "a lower {}", "rollout.max_tokens": "a lower {}"}
_UPDATE = {
    "update.tokens_per_microbatch": "a lower {}",
    "model.gradient_checkpointing": "{}=true",
    "update.head_chunk": "a lower {}",
}

HELP: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "load": ("loading the model", {"model.dtype": "{}=bfloat16", "model.device": "another {}"}),
    "generate": ("generation", _SAMPLING),
    "evaluate": ("evaluation", _SAMPLING),
    "update": ("the update", _UPDATE),
    "publish": ("publishing the weights", {"rollout.max_running": "a lower {}"}),
    "export": ("writing the model", {"model.dtype": "{}=bfloat16"}),
}
"""By phase: its name, and the keys that make it smaller, each in the words that say how."""

_WORDS = re.compile(r"can't allocate memory|out of memory|ALLOC_FAILED")
"""What torch says in a plain RuntimeError: its CPU allocator, Apple's GPUs, CUDA's libraries."""


@contextmanager
def memory(phase: str, recipe: Recipe) -> Iterator[None]:
    """Turn an allocation that fails within, whatever was made of it on its way here, into an AssayError.

    The tensors of the calls that failed are let go, so that there is room to keep the steps done.
    """
    try:
        yield
    except Exception as error:
        failed = failed_allocation(error)
        if failed is None:
            raise
        traceback.clear_frames(error.__traceback__)
        traceback.clear_frames(failed.__traceback__)
        name, keys = HELP[phase]
        values = {key: shown(value).strip("'") for key, value in flatten(recipe).items()}
        mends = ", ".join(f"{how.format(key)} (now {values[key]})" for key, how in keys.items())
        raise AssayError(f"{name} ran out of memory{_size(failed)}; what helps: {mends}") from error


def failed_allocation(error: BaseException | None) -> BaseException | None:
    """The failed allocation that ``error`` is, or was raised from; ``None`` where it is anything else.

    >>> failed_allocation(RuntimeError("CUDA error: out of memory"))
    RuntimeError('CUDA error: out of memory')
    >>> failed_allocation(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    """
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return error
        if isinstance(error, RuntimeError) and _WORDS.search(str(error)):
            return error
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return error
        error = error.__cause__
    return None


def _size(error: BaseException) -> str:
    """How much was asked for, where the allocator says it."""
    found = re.search(r"tried to allocate ([\d.]+ \w+)", str(error), re.IGNORECASE)
    return f" (it asked for {found[1]} more)" if found else ""
