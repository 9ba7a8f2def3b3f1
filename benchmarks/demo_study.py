"""The demo three times, and its control: runs what is not there yet, then writes docs/demo.md from what they recorded.

python benchmarks/demo_study.py            # about half an hour on two cores
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import harness

from assay.track.metrics import read_metrics
from assay.track.rollouts import logged_steps, read

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs"
DEMO, CONTROL = ROOT / "recipes/arithmetic-smollm2.yaml", ROOT / "recipes/format-control-smollm2.yaml"
SEEDS = (0, 1, 2)
EVERY = 10


def train(recipe: Path, name: str, *overrides: str) -> Path:
    """Run a recipe under a name, unless that run is finished; return its folder."""
    folder = RUNS / name
    if not (folder / "model" / "config.json").exists():
        words = [str(recipe), f"run.name={name}", f"run.folder={RUNS}", "checkpoint.every=0", *overrides]
        resume = ["--resume"] if folder.exists() else []
        subprocess.run([sys.executable, "-m", "assay.cli", "train", *words, "--console", "plain", *resume], check=True)
    return folder


def evaluated(model: Path, name: str) -> Mapping[str, Mapping[str, float]]:
    """The demo's held-out accuracy of a model that was trained on something else."""
    kept = RUNS / f"{name}.json"
    if not kept.exists():
        from assay.loop.assess import assess
        from assay.recipe.load import load_recipe
        from assay.track.console import SilentConsole

        found = assess(load_recipe(DEMO, [f"model.path={model}"]), SilentConsole())
        kept.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))


def cell(found: Mapping[str, float]) -> str:
    """An estimate as ``0.80 (0.70 to 0.87)``."""
    return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def mean_of(rows: Sequence[Mapping[str, float]], name: str) -> str:
    """The mean of a metric over some steps."""
    return f"{fmean(row[name] for row in rows):.2f}"


def row(*cells: object) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    return [row(*header), row(*("---" for _ in header)), *(row(*r) for r in rows), ""]


def seeds_section(summaries: Mapping[int, Any], evals: Mapping[int, Mapping[int, Any]]) -> list[str]:
    """Before and after, and the way between."""

    def cells(seed: int, s: Any) -> list[object]:
        found = [cell(s[when][name]) for name in ("greedy", "mean_at_8") for when in ("before", "after")]
        return [seed, *found, f"{sum(v for k, v in s['seconds'].items() if k != 'step'):.0f}"]

    steps = sorted(evals[SEEDS[0]])
    header = ("seed", "greedy before", "greedy after", "mean@8 before", "mean@8 after", "seconds")
    return [
        "## Three seeds",
        "",
        "Held-out accuracy with 95 % intervals: greedy, and the mean over 8 sampled answers.",
        "",
        *table(header, (cells(*item) for item in summaries.items())),
        f"Greedy accuracy every {EVERY} steps:",
        "",
        *table(
            ["seed", *(f"step {k}" for k in steps)],
            ([seed, *(f"{found[k]['eval/greedy']:.2f}" for k in steps)] for seed, found in evals.items()),
        ),
    ]


def form_section(first: Any, run: Path, control: Path, found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The control beside the demo."""
    demo, of_control = read_metrics(run / "metrics.jsonl"), read_metrics(control / "metrics.jsonl")
    sides = (
        ("before", first["before"], demo[:1]),
        ("control, after", found, of_control[-5:]),
        ("demo, after", first["after"], demo[-5:]),
    )
    header = ("", "greedy", "mean@8", "numbers per answer", "tokens per answer")
    return [
        "## How much of it is form?",
        "",
        "A model that says one number and stops is right more often than one that talks, knowing no more arithmetic.",
        "The control has the same model, prompts, steps and optimizer, and is rewarded for an answer with exactly one",
        "number, whichever (`recipes/format-control-smollm2.yaml`).",
        "",
        *table(
            header,
            (
                (
                    name,
                    cell(estimates["greedy"]),
                    cell(estimates["mean_at_8"]),
                    mean_of(part, "rollout/answers_mean"),
                    mean_of(part, "rollout/tokens_mean"),
                )
                for name, estimates, part in sides
            ),
        ),
        "Numbers and tokens per answer are of the training samples: the first step, and the mean of the last five.",
        "",
    ]


def sign_section(runs: Mapping[int, Path]) -> list[str]:
    """Accuracy of the training samples by the sign of the right answer."""

    def accuracy(run: Path, steps: range, negative: bool) -> str:
        rows = [r for k in steps for r in read(run, k) if (r.gold or "").startswith("-") == negative]
        return f"{fmean(r.right for r in rows):.2f} of {len(rows)}" if rows else "none"

    last = max(logged_steps(runs[SEEDS[0]]))
    spans = (range(1, 11), range(last - 9, last + 1))
    header = ["seed", *(f"{sign}, steps {s[0]} to {s[-1]}" for sign in ("zero and above", "below zero") for s in spans)]
    return [
        "## What is hard to learn",
        "",
        "Accuracy of the training samples by the right answer's sign. Reinforcement learning raises what is already",
        "said now and then; numbers below zero the model hardly ever says at first, so there is little to raise.",
        "",
        *table(
            header,
            (
                [seed, *(accuracy(run, s, negative) for negative in (False, True) for s in spans)]
                for seed, run in runs.items()
            ),
        ),
    ]


def page(runs: Mapping[int, Path], control: Path, found: Mapping[str, Mapping[str, float]]) -> str:
    """docs/demo.md."""
    summaries = {seed: json.loads((run / "summary.json").read_text(encoding="utf-8")) for seed, run in runs.items()}
    evals = {seed: {int(r["step"]): r for r in read_metrics(run / "evals.jsonl")} for seed, run in runs.items()}
    first, machine = summaries[SEEDS[0]], harness.machine()
    phases = [k for k in first["seconds"] if k != "step"]
    asked = first["before"]["greedy"]["n"]
    lines = [
        "# The demo",
        "",
        "Generated by `python benchmarks/demo_study.py` from the runs it made; no number here is typed by hand.",
        "",
        "`make demo` trains SmolLM2-135M-Instruct on sums and differences of two one-digit numbers",
        "(`recipes/arithmetic-smollm2.yaml`). There are 145 distinct problems in 200 wordings; 60 are held out",
        f"in every wording and operand order: {asked} held-out prompts that no run was",
        "trained on. The reward is 1 when the last number of the answer is right, else 0.",
        "",
        *seeds_section(summaries, evals),
        *form_section(first, runs[SEEDS[0]], control, found),
        *sign_section(runs),
        "## Where the time went",
        "",
        *table(
            ["seed", *phases],
            ([seed, *(f"{s['seconds'].get(k, 0):.0f} s" for k in phases)] for seed, s in summaries.items()),
        ),
        f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['threads']} threads, "
        f"{machine['gemm_gflops']['float32']} GFLOP/s in float32, torch {machine['torch']}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run and write."""
    runs = {seed: train(DEMO, f"demo-seed-{seed}", f"run.seed={seed}", f"eval.every={EVERY}") for seed in SEEDS}
    control = train(CONTROL, "demo-control")
    found = evaluated(control / "model", "demo-control")
    (ROOT / "docs" / "demo.md").write_text(page(runs, control, found), encoding="utf-8")


if __name__ == "__main__":
    main()
