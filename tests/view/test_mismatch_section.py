"""The report's section on the sampler says what was logged, and nothing where nothing was."""

from __future__ import annotations

import json
from pathlib import Path

from assay.objective.mismatch import bin_names
from assay.track.metrics import MetricsLog
from assay.view.mismatch import sampler
from assay.view.run_record import open_run


def section(folder: Path, rows: list[dict[str, float]]) -> str:
    log = MetricsLog(folder / "metrics.jsonl")
    for step, row in enumerate(rows, start=1):
        log.append(step, row)
    recipe = {"rollout": {"engine": "vllm", "dtype": "auto"}, "model": {"compute_dtype": "bfloat16"}}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return sampler(open_run(folder))


def test_before_and_after_correction_are_drawn_together_and_the_engine_is_named(tmp_path: Path):
    rows = [
        {"mismatch/kl": 0.01 * step, "mismatch/corrected/kl": 0.001, "mismatch/prob_correlation": 0.99951}
        for step in (1, 2, 3)
    ]
    html = section(tmp_path, rows)
    assert "Sampled by vllm in bfloat16" in html
    assert html.count("after correction") >= 2  # the legend, and what each column shows
    assert "0.99951" in html
    assert "Effective sample size" not in html


def test_the_histogram_is_the_mean_over_the_steps(tmp_path: Path):
    middle = bin_names()[4]
    rows = [
        {f"mismatch/token_weight/{name}": share if name == middle else (1 - share) / 8 for name in bin_names()}
        | {"mismatch/kl": 0.1}
        for share in (0.2, 0.6)
    ]
    html = section(tmp_path, rows)
    assert "<td class='number'>40.0%</td>" in html
    assert "width:40.0%" in html
    assert html.count("<td class='number'>7.5%</td>") == 8


def test_staleness_is_told_apart(tmp_path: Path):
    fresh = {"mismatch/kl": 0.1}
    stale = {"mismatch/lag/3-4/share": 0.25, "mismatch/lag/3-4/kl": 0.05, "mismatch/lag/3-4/ess_token": 0.5}
    assert "versions older" not in section(tmp_path / "fresh", [fresh])
    html = section(tmp_path / "stale", [fresh, fresh | stale, fresh | stale])
    assert "<td>3-4</td><td class='number'>2</td><td class='number'>25.0%</td>" in html


def test_nothing_recorded_is_said(tmp_path: Path):
    assert "Not recorded" in section(tmp_path, [{"reward/mean": 0.5}])
