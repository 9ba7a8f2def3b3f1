"""docs/benchmarks.md from benchmarks/results/*.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import harness

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

NOTES = {
    "decode_vs_transformers": (
        "The goal is 3. On a processor without bfloat16 instructions both sides run in float32; a profile of the "
        "engine had three fifths of a step in matrix products, the rest in what fused projections and attention would "
        "save. The lead so far: no repeated keys and values, a prompt prefilled once for its group, one random number "
        "a row."
    ),
    "step_vs_trl": "The goal is 5. Seconds of a whole step; judging overlaps sampling on Assay's side.",
    "memory_vs_trl": "The goal is at most 0.7. Peak resident memory, verifier processes included.",
    "time_to_accuracy_vs_trl": "The goal is 5. Seconds of training; evaluation is outside the clock.",
}
"""What a ratio means, by benchmark."""


def section(result: dict[str, Any]) -> list[str]:
    """One benchmark: both sides, the ratio, the machine."""
    machine, settings = result["machine"], result["settings"]
    mark = f", {result['mark']}" if result.get("mark") else ""
    lines = [
        f"## {result['benchmark']}",
        "",
        f"Ratio of medians: **{result['ratio']:.2f}**{mark}. {NOTES.get(result['benchmark'], '')}".strip(),
        "",
        "| side | median | range | rounds |",
        "| --- | --- | --- | --- |",
    ]
    for name, side in result["sides"].items():
        low, high = min(side["rounds"]), max(side["rounds"])
        lines.append(
            f"| {name} | {side['median']:,.1f} {side['unit']} | {low:,.1f} to {high:,.1f} | {len(side['rounds'])} |"
        )
    lines += further(result.get("details", {}))
    gemm = ", ".join(f"{rate} GFLOP/s in {name}" for name, rate in machine["gemm_gflops"].items())
    return [
        *lines,
        "",
        "Settings: " + ", ".join(f"{k} {v}" for k, v in settings.items()) + ".",
        "",
        f"Machine: {machine['processor']}, {machine['cores']} cores, {gemm}; torch {machine['torch']}, transformers "
        f"{machine['transformers']}; {result['date']}.",
        "",
    ]


def further(details: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The table of the figures that a benchmark has beside its ratio: a row for each, a column for each side."""
    if not details:
        return []
    names = dict.fromkeys(name for figures in details.values() for name in figures)
    rows = [[name, *(harness.figure(figures.get(name, "")) for figures in details.values())] for name in names]
    table = [["", *details], ["---"] * (len(details) + 1), *rows]
    return ["", *(f"| {' | '.join(row)} |" for row in table)]


def main() -> None:
    """Write the page."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(harness.RESULTS.glob("*.json"))]
    intro = [
        "# Benchmarks",
        "",
        "Made by `make bench` (`benchmarks/page.py`) from `benchmarks/results/`. Both sides run in turn.",
        "",
    ]
    PAGE.write_text("\n".join([*intro, *(line for r in results for line in section(r))]), encoding="utf-8")


if __name__ == "__main__":
    main()
