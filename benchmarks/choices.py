"""What single choices gain, each beside its alternative: the numbers behind the reasons in docs/benchmarks.md.

Decoding (tokens/s): transformers' forward, fused products, those with weights arranged for MKL or oneDNN, with all
else compiled for the processor, the same from a second thread, and 8-bit products. The update (seconds): padded rows,
layers compiled by torch, torch's own derivatives of norms, linear maps and feed-forward parts, torch's own kernels
throughout, many tokens at once, memory in pages of 2 MiB instead of 4 KiB, memory kept for the next step instead of
given back. And the price of narrow decoding: how far the engine's log-probs are from the trainer's.
Every side is a process of its own; they take turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
from choice import NETWORKS, UPDATES
from workers import Worker

from assay.data.demo_model import resolve_model_path
from assay.hardware import fast_precision

PROGRAM = Path(__file__).resolve().parent / "choice.py"
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"


def main() -> None:
    """Measure all sides, and print what the choices for decoding gain together."""
    parser = harness.arguments(__doc__ or "")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8, help="answers to each prompt")
    parser.add_argument("--tokens", type=int, default=32, help="length of every answer")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default=fast_precision("cpu"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gaps = {}
        for precision in ("float32", "bfloat16", "int8"):
            with start(chosen, Path(folder), kind="gap", way=precision, precision=precision) as worker:
                gaps[precision] = worker.about
        decoded = turns(chosen, Path(folder), "decode", {way: {} for way in NETWORKS}, "tokens/s")
        ways = {way: {HUGE_PAGES: "1" if way == "2 MiB pages" else "0"} for way in UPDATES}
        ways["memory kept"] |= harness.KEEP_MEMORY
        updated = turns(chosen, Path(folder), "update", ways, "s")
    ratio = decoded["decode kernels"].median / decoded["decode general"].median
    harness.finish("choices", ratio, decoded | updated, harness.settings(chosen), chosen.save, details=gaps)


def turns(
    chosen: argparse.Namespace, folder: Path, kind: str, ways: dict[str, dict[str, str]], unit: str
) -> dict[str, harness.Measured]:
    """Measure each way in turn, each time in a new process: several updates at once would not fit in memory."""

    def side(way: str, environment: dict[str, str]) -> Callable[[int], float]:
        def once(seed: int) -> float:
            with start(chosen, folder, environment, kind=kind, way=way, precision=chosen.dtype) as worker:
                return worker.ask("round", seed=seed)["figure"]

        return once

    sides = {f"{kind} {way}": side(way, environment) for way, environment in ways.items()}
    return harness.alternate(sides, chosen.rounds, unit)


def start(chosen: argparse.Namespace, folder: Path, environment: dict[str, str] | None = None, **said: Any) -> Worker:
    """The program of a side, warm."""
    sizes = {"prompts": chosen.prompts, "samples": chosen.samples, "tokens": chosen.tokens}
    name = f"{said['kind']} {said['way']}"
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"model": resolve_model_path(chosen.model), **sizes, **said}), encoding="utf-8")
    return Worker(name, [sys.executable, str(PROGRAM), str(file)], folder / f"{name}.log", environment or {})


if __name__ == "__main__":
    main()
