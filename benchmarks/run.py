"""All benchmarks, one after the other: results go to benchmarks/results/, tables to docs/benchmarks.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import page

BENCHMARKS = (
    "decode_vs_transformers",
    "decode_vs_vllm_cpu",
    "decode_vs_llama_cpp",
    "limit",
    "choices",
    "scaling",
    "sandbox",
    "plan_check",
    "step_vs_trl",
    "memory_vs_trl",
    "time_to_accuracy_vs_trl",
)


def main() -> int:
    """Run each benchmark in a process of its own; the exit status says whether all ran."""
    folder = Path(__file__).parent
    codes = []
    for name in BENCHMARKS:
        print(f"== {name}", flush=True)
        command = [sys.executable, str(folder / f"{name}.py"), "--save", *sys.argv[1:]]
        codes.append(subprocess.run(command).returncode)
    page.main()
    return int(any(codes))


if __name__ == "__main__":
    raise SystemExit(main())
