"""Measuring two sides in one run: alternating rounds, medians and ranges, and what machine it was.

Single absolute times are noisy on shared machines, so every benchmark runs its sides A B A B ... in one process and
reports the ratio of their medians, with each side's range beside it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

RESULTS = Path(os.environ.get("ASSAY_RESULTS") or Path(__file__).parent / "results")
"""Where results go and where the page finds them; tests name another folder."""


KEEP_MEMORY = {
    "MALLOC_TOP_PAD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
}
"""Has glibc keep freed memory for the next step, on both sides: a tenth of TRL's processor time went into giving it
back and having it zeroed, and what Assay gives back is another's by its next turn."""


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


def arguments(description: str, rounds: int = 3, also: str | None = None) -> argparse.ArgumentParser:
    """The options that every benchmark has; ``also``: another name of ``--rounds``."""
    parser = argparse.ArgumentParser(description=description)
    names = ["--rounds"] if also is None else ["--rounds", also]
    parser.add_argument(*names, type=int, default=rounds, help="rounds of each side, alternating")
    parser.add_argument("--model", default="demo", help="model folder, hub name, or demo")
    parser.add_argument("--save", action="store_true", help="write the result into benchmarks/results/")
    return parser


def keep_freed_memory() -> None:
    """What `KEEP_MEMORY` does, for a process that runs already."""
    if platform.libc_ver()[0] == "glibc":
        no_mappings, no_trimming, growth = (-4, 0), (-1, -1), (-2, 64 << 20)  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
        for parameter, value in (no_mappings, no_trimming, growth):
            ctypes.CDLL(None).mallopt(parameter, value)


def device_option(parser: argparse.ArgumentParser) -> None:
    """The option of those benchmarks that also run on other devices."""
    parser.add_argument("--device", default="auto", help="auto (cuda, else mps, else cpu) or a torch device")


def settings(chosen: argparse.Namespace, **found: Any) -> dict[str, Any]:
    """The settings that a result is saved with: the command line's, and what came of those left to the machine."""
    return {k: v for k, v in vars(chosen).items() if k not in ("save", "device")} | found


def alternate(sides: Mapping[str, Callable[[int], float]], rounds: int, unit: str) -> dict[str, Measured]:
    """Run each side once a round, in turn; a side is called with the round's number and returns its figure."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in sides.items():
            found[name].append(side(number))
            print(f"round {number + 1}/{rounds}  {name:<16} {found[name][-1]:,.1f} {unit}", file=sys.stderr, flush=True)
    return {name: Measured(tuple(values), unit) for name, values in found.items()}


def finish(
    name: str,
    ratio: float,
    sides: Mapping[str, Measured],
    settings: Mapping[str, Any],
    save: bool,
    details: Mapping[str, Mapping[str, Any]] | None = None,
    mark: str = "",
    device: str = "cpu",
) -> None:
    """Print both sides and, last, ``name=ratio``; write the result with the machine's description if asked.

    ``details``: further figures by side. ``mark``: what a reader of the ratio must know, such as that it is a bound.
    A result from another ``device`` than the processor gets a file of its own, and so does one in float32, in which
    machines without instructions for bfloat16 are measured.
    """
    show(sides, details)
    if save:
        result = {
            "benchmark": name,
            "ratio": ratio,
            "mark": mark,
            "sides": {side: asdict(m) | {"median": m.median} for side, m in sides.items()},
            "details": details or {},
            "settings": dict(settings),
            "device": device,
            "machine": machine(device),
            "date": time.strftime("%Y-%m-%d"),
        }
        RESULTS.mkdir(parents=True, exist_ok=True)
        file = name if device == "cpu" else f"{name}_{device}"
        if precision(settings) == "float32":
            file += "_float32"
        (RESULTS / f"{file}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if mark:
        print(f"the ratio is {mark}")
    print(f"{name}={ratio:.2f}")


def precision(settings: Mapping[str, Any]) -> str | None:
    """The precision of the products that a result's settings tell of; ``None`` where there are none."""
    return settings.get("dtype") or settings.get("precision")


def show(sides: Mapping[str, Measured], details: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Print the sides, and further figures of each."""
    for side, measured in sides.items():
        print(f"{side:<16} {measured}")
        for key, value in (details or {}).get(side, {}).items():
            print(f"  {key:<14} {figure(value)}")


def figure(value: Any) -> str:
    """A figure as it is shown: two decimals below ten, one above."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def machine(device: str = "cpu") -> dict[str, Any]:
    """What the numbers were measured on; the rates of products are those of ``device``."""
    import torch
    import transformers

    from assay.hardware import bfloat16_instructions, product_rate

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "bfloat16": bfloat16_instructions(),
        "gemm_gflops": {name: round(product_rate(device, name) / 1e9) for name in ("float32", "bfloat16")},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    } | ({"gpu": _gpu()} if device == "cuda" else {})


def timed(work: Callable[[], T], device: str = "cpu") -> tuple[T, float]:
    """What ``work`` returns, and the seconds until it was done; other devices work on while Python goes on."""
    import torch

    wait = getattr(torch, device).synchronize
    wait()
    start = time.perf_counter()
    result = work()
    wait()
    return result, time.perf_counter() - start


def median_ratio(side: Measured, other: Measured) -> float:
    """The median over the rounds of what one side had in a round over what the other one had in it.

    >>> median_ratio(Measured((2.0, 30.0, 4.0), "s"), Measured((1.0, 10.0, 1.0), "s"))
    3.0
    """
    return statistics.median(ours / theirs for ours, theirs in zip(side.rounds, other.rounds, strict=True))


def _gpu() -> dict[str, Any]:
    """Name, memory, CUDA of the first device; the driver's version from its own tool, where that is there."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    tool = shutil.which(ask[0])
    driver = subprocess.run(ask, capture_output=True, text=True).stdout.strip() if tool else ""
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": driver or "unknown",
        "cuda": torch.version.cuda,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
