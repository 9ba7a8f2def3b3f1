"""Our verifiers beside math-verify, TRL's accuracy_reward and verl's scorers -> docs/verifiers.md.

On the cases of tests/data and on 2,000 answers to tasks of reasoning-gym, right ones and ones with a number changed.
Each side runs in a process of its own; no verdict within the limit is a hang, and the process is started anew.
``python benchmarks/verifiers.py`` measures and writes the page; ``--page`` only writes the page.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verifier_sides import SIDES

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
RESULT = ROOT / "benchmarks" / "results" / "verifiers" / "verifiers.json"
PAGE = ROOT / "docs" / "verifiers.md"
WHEELS = {"trl": "trl==1.16.0", "verl": "verl==0.9.1"}
LIMIT_S = 3.0
EVERY = 4
"""Of our siblings of the math cases each fourth is measured: the others take ten times as long for one."""
TASKS = (
    "chain_sum", "basic_arithmetic", "decimal_chain_sum", "fraction_simplification", "gcd", "lcm", "simple_equations",
    "products", "polynomial_multiplication", "complex_arithmetic", "simple_integration", "leg_counting",
    "gsm_symbolic", "count_bits",
)  # fmt: skip
KINDS = {
    "math": ("assay", "math-verify", "trl", "verl math_reward", "verl math_dapo"),
    "gsm8k": ("assay", "math-verify", "trl", "verl gsm8k strict", "verl gsm8k flexible"),
    "choice": ("assay", "math-verify"),
}
_INTEGER = re.compile(r"(?<![\d.^*])\d+(?![\d.])")


@dataclass(frozen=True)
class Score:
    """What one side did on one set of cases."""

    side: str
    right: int
    wrong: int
    false_accepts: int
    false_rejects: int
    no_verdict: int
    """Right or wrong cases that got none: an exception, or a gold answer that could not be read."""
    hangs: int
    median_ms: float
    total_s: float
    examples: tuple[str, ...]


class Side:
    """A child process that judges, started anew after a hang."""

    def __init__(self, name: str, folder: Path) -> None:
        self._command = [
            sys.executable,
            "-W",
            "ignore",
            str(ROOT / "benchmarks" / "verifier_sides.py"),
            name,
            str(folder),
        ]
        self._start()

    def _start(self) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(self._child, self._lines), daemon=True).start()
        if not self._lines.get(timeout=120):
            raise SystemExit(f"{' '.join(self._command)} did not start")

    @staticmethod
    def _read(child: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put("")

    def judge(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The verdict, or ``None`` for a hang or a dead process."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(row) + "\n")
            self._child.stdin.flush()
            line = self._lines.get(timeout=LIMIT_S)
        except (queue.Empty, BrokenPipeError):
            line = ""
        if line:
            return json.loads(line)
        self.close()
        self._start()
        return None

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.wait()


def score(name: str, rows: Sequence[Mapping[str, Any]], folder: Path) -> Score:
    """Judge all rows with one side; a row's ``expect`` is 1 or 0."""
    side, seconds, wrong = Side(name, folder), [], {"accept": [], "reject": []}
    none = hangs = 0
    began = time.perf_counter()
    for row in rows:
        verdict = side.judge(row)
        if verdict is None:
            hangs += 1
            continue
        seconds.append(verdict["seconds"])
        if verdict["reward"] is None:
            none += 1
        elif (verdict["reward"] > 0.5) != bool(row["expect"]):
            wrong["reject" if row["expect"] else "accept"].append(row["id"])
    side.close()
    right = sum(bool(row["expect"]) for row in rows)
    return Score(
        name, right, len(rows) - right, len(wrong["accept"]), len(wrong["reject"]), none, hangs,
        1000 * statistics.median(seconds or [0.0]), time.perf_counter() - began,
        tuple([*wrong["accept"], *wrong["reject"]][:12]),
    )  # fmt: skip


def cases(kind: str, file: str) -> list[Mapping[str, Any]]:
    """The cases of a kind whose reward is 1 or 0 beyond doubt: no other one is acceptable."""
    rows = [json.loads(line) for line in (DATA / file).read_text(encoding="utf-8").splitlines()]
    sure = [row for row in rows if row["kind"] == kind and row["expect"] != "excluded" and not _doubtful(row)]
    return [{**row, "expect": row["expect"] if row["expect"] == 1 else 0} for row in sure]


def _doubtful(row: Mapping[str, Any]) -> bool:
    other = (row["tests"] or {}).get("also_ok", [])
    return row["expect"] in (0, 1) and any(outcome != "no_answer" for outcome in other)


def gym_answers(count: int) -> list[Mapping[str, Any]]:
    """Half of them the task's answer, half the same with a number changed that the task itself then rejects."""
    import reasoning_gym

    draw, rows = random.Random(0), []
    each = count // 2 // len(TASKS) + 1
    for task in TASKS:
        data = reasoning_gym.create_dataset(task, size=each, seed=7)
        for index, entry in enumerate(data):
            answer = str(entry["answer"])
            changed = perturbed(answer, draw)
            if changed is None or data.score_answer(changed, entry) > 0.9:
                continue
            for text, expect in ((answer, 1), (changed, 0)):
                completion = f"Let me work it out. The answer is \\boxed{{{text.strip('$')}}}."
                name = f"{task}-{index}-{'right' if expect else 'wrong'}"
                rows.append({"id": name, "kind": "math", "gold": answer.strip("$"), "completion": completion,
                             "expect": expect, "tests": None})  # fmt: skip
    return rows[:count]


def perturbed(answer: str, draw: random.Random) -> str | None:
    """The answer with one of its whole numbers larger by 1 to 9; ``None`` when it has none."""
    found = list(_INTEGER.finditer(answer)) or list(re.finditer(r"\d+", answer))
    if not found:
        return None
    match = draw.choice(found)
    return f"{answer[: match.start()]}{int(match.group()) + draw.randint(1, 9)}{answer[match.end() :]}"


def fetch(folder: Path) -> list[str]:
    """Unpack the peers' wheels into a folder; those that cannot be had are named."""
    missing = []
    for name, requirement in WHEELS.items():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), requirement]
        if subprocess.run(command, capture_output=True).returncode:
            missing.append(name)
            continue
        with zipfile.ZipFile(next(folder.glob(f"{name}-*.whl"))) as wheel:
            wheel.extractall(folder)
    return missing


def measure() -> dict[str, Any]:
    """All sides on all sets."""
    sets = {
        (kind, title): cases(kind, file)
        for kind in KINDS
        for title, file in (("public cases", "verifier_cases.jsonl"), ("siblings", "verifier_cases_more.jsonl"))
    }
    sets["math", "siblings"] = [row for row in sets["math", "siblings"] if "bomb" not in row["reason"]][::EVERY]
    sets["math", "reasoning-gym"] = gym_answers(2000)
    with tempfile.TemporaryDirectory() as folder:
        missing = fetch(Path(folder))
        results = []
        for (kind, title), rows in sets.items():
            for name in KINDS[kind]:
                if name.partition(" ")[0] in missing:
                    continue
                found = score(name, rows, Path(folder))
                print(kind, title, found, file=sys.stderr, flush=True)
                results.append({"kind": kind, "set": title, **asdict(found)})
    return {"limit_s": LIMIT_S, "missing": missing, "python": sys.version.split()[0], "results": results}


def page(result: Mapping[str, Any]) -> str:
    """The page of a result."""
    lines = [
        "# Verifiers beside others",
        "",
        "Made by `python benchmarks/verifiers.py` from `benchmarks/results/verifiers/`.",
        "",
        "Public cases: collected from bug reports (`tests/data/verifier_cases.jsonl`); no answer counts as wrong.",
        "Siblings: our own of the same kinds (`verifier_cases_more.jsonl`), on which this project's verifiers were",
        "mended, so they say less about ours than about the others; of math each fourth, without bombs, is measured.",
        f"Reasoning-gym: answers of {len(TASKS)} tasks, and the same with a number changed. Each side runs in a",
        f"process; no verdict in {result['limit_s']:g} s is a hang. math-verify and TRL are version 0.9.0 and 1.16.0",
        "with their defaults, verl is 0.9.1 (math_dapo with the strict box). The others are not told the question,",
        "which settles some cases: their interfaces have no place for it.",
        "",
    ]
    seen = dict.fromkeys((row["kind"], row["set"]) for row in result["results"])
    for kind, title in seen:
        rows = [row for row in result["results"] if (row["kind"], row["set"]) == (kind, title)]
        first = rows[0]
        lines += [
            f"## {kind}: {title} ({first['right']} right, {first['wrong']} wrong)",
            "",
            "| verifier | false accepts | false rejects | no verdict | hangs | median time |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {row['side']} | {row['false_accepts']} | {row['false_rejects']} | {row['no_verdict']} | {row['hangs']} "
            f"| {row['median_ms']:.2f} ms |"
            for row in rows
        ]
        lines.append("")
    if result["missing"]:
        lines += [f"Not measured, because the package could not be had: {', '.join(result['missing'])}.", ""]
    return "\n".join(lines)


def main() -> None:
    """Measure, write the result and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    if not parser.parse_args().page:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    assert set(SIDES) >= {side for sides in KINDS.values() for side in sides}
    main()
