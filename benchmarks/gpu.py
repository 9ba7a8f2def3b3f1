"""The benchmarks that need no peer, on a CUDA device, at its size; without such a device it says so and exits with 2.

Results go to benchmarks/results/NAME_cuda.json with the device's description, tables to docs/benchmarks.md. Besides the
work that the processor gets, which a large device is too fast for, each runs at a batch that fills it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import page
import torch

FOLDER = Path(__file__).resolve().parent
ROWS_PER_GIB = 32
"""Answers at once for each GiB of the device: a few hundred MB for weights and states, some MB of cache an answer."""


def rows_of(memory_gib: float) -> int:
    """Answers generated at once: a power of two, 128 at least, 2048 at most.

    >>> rows_of(4), rows_of(24), rows_of(139)
    (128, 512, 2048)
    """
    rows = 128
    while rows < 2048 and rows * 2 <= memory_gib * ROWS_PER_GIB:
        rows *= 2
    return rows


def commands(memory_gib: float, passed: Sequence[str] = ()) -> list[list[str]]:
    """The benchmarks to run, with the options that suit a device of that memory; ``passed`` to each of them."""
    rows = rows_of(memory_gib)
    prompts = min(rows // 8, 128)
    batch = ["--prompts", str(prompts), "--samples", str(rows // prompts)]
    wide = ["--rollouts", *(str(rows // 2 * k) for k in (1, 2, 4, 8)), "--samples", str(rows // 32)]
    sizes = [*wide, "--few", str(rows // 8), "--budget", "8192"]
    work = {"decode_vs_transformers": batch, "limit": batch, "scaling": sizes}
    return [
        [sys.executable, str(FOLDER / f"{name}.py"), "--device", "cuda", "--save", *options, *passed]
        for name, options in work.items()
    ]


def main() -> int:
    """Run each in a process of its own; the exit status says whether all ran."""
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure; `make bench` runs the benchmarks on the processor")
        return 2
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    codes = [subprocess.run(command).returncode for command in commands(memory, sys.argv[1:])]
    page.main()
    return int(any(codes))


if __name__ == "__main__":
    raise SystemExit(main())
