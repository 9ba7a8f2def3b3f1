"""The studies of mismatch and of staleness run on tiny things, merge their results, and their pages show them."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import save_tiny

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("harness", "mismatch", "mismatch_page", "staleness", "staleness_page")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The studies as modules, with results and pages in a folder of the test's own."""
    monkeypatch.syspath_prepend(str(FOLDER))
    modules = {name: importlib.import_module(name) for name in NAMES}
    monkeypatch.setattr(modules["harness"], "RESULTS", tmp_path / "results")
    for name in ("mismatch_page", "staleness_page"):
        monkeypatch.setattr(modules[name], "PAGE", tmp_path / f"{name}.md")
    return modules


def say(module: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["study", *words])
    module.main()


def test_the_mismatch_of_a_sampler_is_measured_and_shown(programs, tmp_path, monkeypatch):
    model = str(save_tiny(tmp_path / "model", max_position_embeddings=512))
    for side in ("native float32", "native int8"):
        say(programs["mismatch"], monkeypatch, side, "--model", model, "--few", "2", "--tokens", "8", "--save")
    saved = json.loads((tmp_path / "results" / "mismatch.json").read_text())["sides"]
    exact, coarse = saved["native float32"], saved["native int8"]
    for trainer in ("float32", "bfloat16"):
        assert 0 < coarse["gap"][trainer]["ess_64"] <= 1
    assert exact["gap"]["float32"]["logprob_abs_max"] < 1e-3 < coarse["gap"]["float32"]["logprob_abs_max"]
    say(programs["mismatch"], monkeypatch, "--page")
    page = (tmp_path / "mismatch_page.md").read_text()
    assert page.count("| native int8 |") == 3  # two trainers, and bypass
    assert "{{" not in page


def test_runs_of_the_staleness_study_are_merged_and_shown(programs, tmp_path, monkeypatch):
    study = programs["staleness"]
    monkeypatch.setattr(study, "START", 0.01)
    monkeypatch.setattr(study, "STALENESS", (0, 2, None))
    say(study, monkeypatch, "--seeds", "1", "--steps", "4", "--only", "none", "--save")
    runs = json.loads((tmp_path / "results" / "staleness.json").read_text())["runs"]
    assert set(runs) == {"start/0/none/0", *(f"0.0003/{age}/none/0" for age in ("0", "2", "inf"))}
    assert runs["0.0003/0/none/0"]["ess_sequence"] == pytest.approx(1, abs=1e-3)
    assert runs["0.0003/inf/none/0"]["ess_sequence"] < runs["0.0003/2/none/0"]["ess_sequence"] < 1
    say(study, monkeypatch, "--page")
    page = (tmp_path / "staleness_page.md").read_text()
    assert "| ∞ |" in page
    assert "{{" not in page
