"""Does a token cost the same in a large step as in a small one? Goal: at most 1.15 times the small case's.

Two rows of sizes: the number of rollouts (64 to 512, answers of 16 tokens) and the length of the answers (32 to 512, 16
rollouts). Every size is a whole step's generation and update in a fresh process, with as many answers generated at once
and as large a token budget of the update at every size. Reported are microseconds per generated token, relative to the
smallest size of its row, and peak memory, which a larger batch must not raise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import decoding
import harness
from scaling_step import Size
from workers import Worker

from assay.data.demo_model import resolve_model_path
from assay.policy.model import pick_device

PHASES = ("generate", "update")
PROGRAM = Path(__file__).resolve().parent / "scaling_step.py"


def main() -> None:
    """Measure all sizes and print the worst cost of a token relative to the smallest size of its row."""
    chosen = arguments().parse_args()
    device = pick_device(chosen.device).type
    rows = sizes(chosen, resolve_model_path(chosen.model), device)
    every = [size for row in rows for size in row]
    costs: dict[str, list[float]] = {side(size, phase): [] for phase in PHASES for size in every}
    peaks: dict[str, float] = {}
    for number in range(chosen.rounds):
        for size in every:
            found = one_step(size, number)
            peak = side(size, "update")  # the phase that reaches it
            peaks[peak] = max(peaks.get(peak, 0.0), found["peak_mb"])
            for phase in PHASES:
                costs[side(size, phase)].append(1e6 * found[phase] / found["tokens"])
            told = ", ".join(f"{phase} {costs[side(size, phase)][-1]:,.0f} us/token" for phase in PHASES)
            print(f"round {number + 1}/{chosen.rounds}  {name(size):<10} {told}", file=sys.stderr, flush=True)
    sides = {key: harness.Measured(tuple(values), "us/token") for key, values in costs.items()}
    relative = relative_costs(rows, costs)
    details = {"of the smallest": relative, "peak MB": peaks}
    for title, figures in details.items():
        print(title)
        for key, value in figures.items():
            print(f"  {key:<24} {harness.figure(value)}")
    kept = harness.settings(chosen, dtype=decoding.precision(chosen, device))
    harness.finish("scaling", max(relative.values()), sides, kept, chosen.save, details=details, device=device)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = harness.arguments(__doc__ or "")
    harness.device_option(parser)
    parser.add_argument("--rollouts", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--tokens", type=int, default=16, help="length of their answers")
    parser.add_argument("--caps", type=int, nargs="+", default=[32, 128, 512], help="lengths of answers")
    parser.add_argument("--few", type=int, default=16, help="rollouts that have those lengths")
    parser.add_argument("--samples", type=int, default=8, help="rollouts of each prompt")
    parser.add_argument("--budget", type=int, default=1024, help="tokens forwarded at once in the update")
    parser.add_argument("--dtype", choices=decoding.FLOATS, default="auto")
    return parser


def sizes(chosen: argparse.Namespace, model: str, device: str) -> tuple[list[Size], list[Size]]:
    """Both rows of sizes, smallest first."""

    def size(rollouts: int, cap: int, running: int) -> Size:
        prompts = rollouts // chosen.samples
        return Size(model, device, precision, prompts, chosen.samples, cap, running, chosen.budget)

    precision = decoding.precision(chosen, device)
    wide = [size(rollouts, chosen.tokens, min(chosen.rollouts)) for rollouts in sorted(chosen.rollouts)]
    return wide, [size(chosen.few, cap, chosen.few) for cap in sorted(chosen.caps)]


def one_step(size: Size, seed: int) -> dict[str, float]:
    """A step of that size in a fresh process: seconds of both phases, tokens, peak memory in MB."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "size.json"
        file.write_text(json.dumps(asdict(size)), encoding="utf-8")
        with Worker(name(size), [sys.executable, str(PROGRAM), str(file)], Path(folder) / "log", {}) as worker:
            found = worker.ask("step", seed=seed)
            return found | {"peak_mb": found["device_mb"] or worker.peak_mb()}


def relative_costs(rows: Sequence[Sequence[Size]], costs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """By side, the median cost of a token over that of the smallest size of its row."""
    return {
        side(size, phase): statistics.median(costs[side(size, phase)]) / statistics.median(costs[side(row[0], phase)])
        for phase in PHASES
        for row in rows
        for size in row
    }


def name(size: Size) -> str:
    """A size as it is shown."""
    return f"{size.rollouts} x {size.cap}"


def side(size: Size, phase: str) -> str:
    """A phase of a size as it is shown."""
    return f"{phase} {name(size)}"


if __name__ == "__main__":
    main()
