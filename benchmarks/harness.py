"""Measuring two sides in one run: alternating rounds, medians and ranges, and what machine it was.

Single absolute times are noisy on shared machines, so every benchmark runs its sides A B A B ... in one process and
reports the ratio of their medians, with each side's range beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Measured:
    """One side's rounds: a rate or a time per round."""

    rounds: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """The figure to quote."""
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        return f"{self.median:,.1f} {self.unit} ({min(self.rounds):,.1f} to {max(self.rounds):,.1f})"


def arguments(description: str, rounds: int = 3) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds of each side, alternating")
    parser.add_argument("--model", default="demo", help="model folder, hub name, or demo")
    parser.add_argument("--save", action="store_true", help="write the result into benchmarks/results/")
    return parser


def alternate(sides: Mapping[str, Callable[[int], float]], rounds: int, unit: str) -> dict[str, Measured]:
    """Run each side once a round, in turn; a side is called with the round's number and returns its figure."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in sides.items():
            found[name].append(side(number))
            print(f"round {number + 1}/{rounds}  {name:<16} {found[name][-1]:,.1f} {unit}", file=sys.stderr, flush=True)
    return {name: Measured(tuple(values), unit) for name, values in found.items()}


def finish(name: str, ratio: float, sides: Mapping[str, Measured], settings: Mapping[str, Any], save: bool) -> None:
    """Print both sides and, last, ``name=ratio``; write the result with the machine's description if asked."""
    for side, measured in sides.items():
        print(f"{side:<16} {measured}")
    if save:
        result = {
            "benchmark": name,
            "ratio": ratio,
            "sides": {side: asdict(m) | {"median": m.median} for side, m in sides.items()},
            "settings": dict(settings),
            "machine": machine(),
            "date": time.strftime("%Y-%m-%d"),
        }
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{name}={ratio:.2f}")


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch
    import transformers

    from assay.hardware import bfloat16_instructions

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "bfloat16": bfloat16_instructions(),
        "gemm_gflops": {name: round(gemm_gflops(name)) for name in ("float32", "bfloat16")},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }


def gemm_gflops(dtype: str, size: int = 2048, repeats: int = 3) -> float:
    """The best rate of a few (size, size) products, in GFLOP/s: what the machine's limit is taken to be."""
    import torch

    left, right = (torch.randn(size, size).to(getattr(torch, dtype)) for _ in range(2))
    left @ right
    best = min(_timed(lambda: left @ right) for _ in range(repeats))
    return 2 * size**3 / best / 1e9


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
