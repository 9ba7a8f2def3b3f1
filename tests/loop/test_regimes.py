"""Whole runs that run ahead: what they are made of, and what is left of them when they are killed at any moment."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from killed_run import in_a_process
from loop_helpers import make_place, metrics_of, quick, settings
from whole_run import Whole, assert_equal_runs, values

from assay.data.sampler import PromptSampler
from assay.track.metrics import read_metrics
from assay.track.rollouts import read


def ahead(place: Path, name: str, eta: int | None, **more: Any) -> dict[str, Any]:
    """The whole run's recipe with generation running ahead; nothing is replaced, so that admissions are steps."""
    recipe = values(place, name)
    recipe["regime"] = {"max_staleness": eta}
    for section, keys in more.items():
        recipe[section] = {**recipe.get(section, {}), **keys}
    return recipe


def test_in_deterministic_mode_a_run_that_is_ahead_goes_on_bit_for_bit_from_what_was_in_flight(whole: Whole) -> None:
    reference = ahead(whole.place, "two ahead", 2)
    report = whole.place / "two ahead.json"
    assert in_a_process(reference, report=report) == 0
    seen = json.loads(report.read_text())["seen"]
    folder = whole.place / "runs" / "two ahead"
    assert [row["staleness/max"] for row in read_metrics(folder / "metrics.jsonl")] == [0, 1, 2, 2, 2, 2]
    for moment, share in (("generate", 0.6), ("update", 0.9), ("publish", 0.5), ("after rename", 0.5)):
        recipe = ahead(whole.place, f"two ahead {moment}", 2)
        assert in_a_process(recipe, moment=moment, nth=max(1, round(share * seen[moment]))) == -signal.SIGKILL
        assert in_a_process(recipe, resume=True) == 0
        assert_equal_runs(whole.place / "runs" / f"two ahead {moment}", folder)


@pytest.mark.parametrize("process", ["trainer", "own"])
def test_killed_again_and_again_a_run_that_streams_loses_no_prompt_and_trains_on_none_twice(
    tmp_path: Path, process: str
) -> None:
    place, name = make_place(tmp_path), "streamed"
    recipe = settings(
        place,
        data={"holdout": 0},
        eval={"samples": 8},
        rollout={"prompts_per_step": 3, "process": process, "max_retries": 0},
        regime={"max_staleness": 2},
        checkpoint={"every": 1, "keep_last": 2},
        run={"steps": 9, "name": name},
    )
    deaths = [("publish", 2), ("tensors written", 3), ("update", 2), ("before metrics", 2), ("checkpoint", 1)]
    for i, (moment, nth) in enumerate(deaths):
        assert in_a_process(recipe, resume=i > 0, moment=moment, nth=nth) == -signal.SIGKILL
    assert in_a_process(recipe, resume=True) == 0
    folder = place / "runs" / name
    rows = read(folder)
    times = Counter((r.admission, r.index) for r in rows)
    assert set(times.values()) == {1}
    assert {a for a, _ in times} == set(range(27))
    order, _ = PromptSampler(16, seed=0).take(0, 27)
    asked = [json.loads(line)["prompt"] for line in (place / "sums.jsonl").read_text().splitlines()]
    assert {r.admission: r.question for r in rows} == {a: asked[k] for a, k in enumerate(order)}
    metrics = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, 10))
    assert max(row["staleness/max"] for row in metrics) <= 2
    assert list(folder.glob("checkpoints/*/in-flight.json")) or metrics[-1]["staleness/running"] == 0


def test_a_thinking_budget_closes_the_span_by_force_and_trains_on_what_was_sampled(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    outcome = quick(
        place,
        rollout={"max_tokens": 14, "thinking": {"budget": 4, "close": "</t>="}},
        regime={"max_staleness": 1},
        run={"steps": 3},
    )
    rows = read(outcome.folder)
    forced = [r for r in rows if "</t>=" in r.completion]
    assert forced
    assert max(len(r.token_ids) for r in rows) <= 14
    metrics = metrics_of(outcome)
    assert metrics[0]["rollout/forced_share"] > 0
    first = [r for r in rows if r.step == 1]
    sampled = sum(r.tokens for r in first) - 5 * sum(r in forced for r in first)
    assert metrics[0]["update/tokens_counted"] == sampled


def test_oversampling_cuts_off_the_slowest_and_says_what_that_does_to_lengths(tmp_path: Path) -> None:
    outcome = quick(
        make_place(tmp_path), rollout={"oversample": 3, "max_tokens": 24, "max_running": 64}, run={"steps": 2}
    )
    rows = read(outcome.folder)
    sizes = Counter((r.step, r.admission) for r in rows)
    assert set(sizes.values()) == {4}
    assert {r.finish for r in rows} <= {"stop", "length"}
    metrics = metrics_of(outcome)
    assert all(0 < row["rollout/cancelled_share"] <= 3 / 7 for row in metrics)
    assert all(row["rollout/length_bias"] != 0 for row in metrics)
