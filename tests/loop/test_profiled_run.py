"""`profile=true`: the engine's and the update's operators on file, the same run, and nothing of it when it is off."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from loop_helpers import make_place, metrics_of, quick
from rich.console import Console

from assay.loop.trainer import Outcome
from assay.track.glossary import is_timing
from assay.view.outcome import outcome_panel
from assay.view.report import write_report


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("profiled"))


def run(place: Path, name: str, steps: int, resume: bool = False, **sections: Any) -> Outcome:
    settings = {"name": name, "steps": steps, "deterministic": True}
    return quick(place, resume=resume, run=settings, eval={"before": False, "after": False}, **sections)


def trace(outcome: Outcome) -> list[dict[str, Any]]:
    content = (outcome.folder / outcome.summary["profile"]["trace"]).read_bytes()
    return json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)["traceEvents"]


def untimed(outcome: Outcome) -> list[dict[str, str]]:
    return [{k: repr(v) for k, v in row.items() if not is_timing(k)} for row in metrics_of(outcome)]


def test_a_profiled_run_is_the_same_run_with_a_profile(place: Path) -> None:
    plain = run(place, "plain", 6)
    assert not (plain.folder / "profile").exists()
    assert "profile" not in plain.summary
    outcome = run(place, "profiled", 6, profile=True)
    assert untimed(outcome) == untimed(plain)
    events = trace(outcome)
    spans = {e["name"]: e for e in events if e.get("cat") == "phase"}
    assert list(spans) == [f"step {s}: {p}" for s in (2, 3) for p in ("generate", "update", "publish")]
    operators = [e for e in events if e.get("cat") == "cpu_op"]
    assert "LinearBackward" in {e["name"] for e in operators}
    span = spans["step 2: generate"]
    engine = [e for e in operators if span["ts"] <= e["ts"] < span["ts"] + span["dur"]]
    assert len([e for e in engine if "mm" in e["name"] or "linear" in e["name"]]) > 20
    table = (outcome.folder / "profile" / "table.txt").read_text()
    for phase in ("generate", "score", "update", "publish"):
        assert phase in table
        assert outcome.summary["profile"]["phases"][phase]["seconds"] > 0
    for phase in ("generate", "update"):
        assert 0 < outcome.summary["profile"]["phases"][phase]["limit_share"] < 2
    for phase in ("generate", "update", "publish"):
        assert len(outcome.summary["profile"]["phases"][phase]["operators"]) == 5


def test_it_is_shown_at_the_end_and_in_the_report(place: Path) -> None:
    outcome = run(place, "shown", 1, profile=True)
    assert outcome.summary["profile"]["recorded"] == [1]
    page = write_report(outcome.folder)
    console = Console(width=100, file=io.StringIO())
    console.print(outcome_panel(outcome.folder, page))
    for text in (console.file.getvalue(), page.read_text()):  # pyright: ignore[reportAttributeAccessIssue]
        for words in ("costliest operators", "of the machine", "profile/trace.json", "Phases are timed in"):
            assert words in text
    assert 'href="profile/trace.json' in page.read_text()


def test_a_resumed_run_may_be_profiled(place: Path) -> None:
    run(place, "resumed", 2)
    outcome = run(place, "resumed", 5, resume=True, profile=True)
    assert outcome.summary["profile"]["recorded"] == [4, 5]
    assert {e["name"].partition(":")[0] for e in trace(outcome) if e.get("cat") == "phase"} == {"step 4", "step 5"}


def test_a_run_outlives_its_profile(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(place, "full", 1)
    (place / "runs" / "full" / "profile").write_text("in the way")
    outcome = run(place, "full", 3, resume=True, profile=True)
    assert outcome.finished
    assert outcome.summary["profile"]["trace"] is None
    assert "profiler_start" not in capfd.readouterr().err
