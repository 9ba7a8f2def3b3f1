"""A run killed at any moment and resumed is the uninterrupted run, bit for bit."""

from __future__ import annotations

import json
import signal

import pytest
from killed_run import MOMENTS, PHASES, in_a_process
from whole_run import Whole, assert_equal_runs, values

from assay.track.metrics import read_metrics

CASES = [(phase, share) for phase in PHASES for share in (0.35, 0.9)]
CASES += list(zip(MOMENTS, (0.2, 0.5, 0.9, 0.7, 0.4, 0.9, 0.6), strict=True))
"""When to die: at which of all such moments of the run, as a share of their number."""


def test_the_run_has_all_that_could_go_wrong(whole: Whole) -> None:
    rows = read_metrics(whole.folder / "metrics.jsonl")
    state = json.loads((whole.folder / "checkpoints" / "step-000006" / "state.json").read_text())
    assert state["cursor"] > 12, "an epoch ended"
    assert sum(row["group/unused"] for row in rows) > 0
    assert len({row["update/learning_rate"] for row in rows}) > 3
    assert len({row["update/kl_coefficient"] for row in rows}) == 6
    assert max(row["update/optimizer_steps"] for row in rows) == 4
    assert [row["step"] for row in read_metrics(whole.folder / "evals.jsonl")] == [0, 3, 6]
    assert set(PHASES) | set(MOMENTS) <= set(whole.counts)


@pytest.mark.parametrize(("moment", "share"), CASES)
def test_a_run_killed_at_any_moment_goes_on_as_if_it_had_not_been(whole: Whole, moment: str, share: float) -> None:
    nth = max(1, round(share * whole.counts[moment]))
    recipe = values(whole.place, f"{moment} {nth}")
    assert in_a_process(recipe, moment=moment, nth=nth) == -signal.SIGKILL
    assert in_a_process(recipe, resume=True) == 0
    assert_equal_runs(whole.place / "runs" / f"{moment} {nth}", whole.folder)


def test_a_run_killed_before_its_first_checkpoint_begins_again_in_its_folder(whole: Whole) -> None:
    recipe = values(whole.place, "early")
    assert in_a_process(recipe, moment="generate", nth=1) == -signal.SIGKILL
    assert in_a_process(recipe, resume=True, moment="weights moved", nth=2) == -signal.SIGKILL
    assert not list((whole.place / "runs" / "early").glob("checkpoints/step-*"))
    assert in_a_process(recipe, resume=True) == 0
    assert_equal_runs(whole.place / "runs" / "early", whole.folder)


def test_a_run_killed_again_and_again(whole: Whole) -> None:
    recipe = values(whole.place, "again")
    deaths = [("before metrics", 5), ("before rename", 1), ("update", 2), ("evaluate", 1), ("after rename", 1)]
    for i, (moment, nth) in enumerate(deaths):
        assert in_a_process(recipe, resume=i > 0, moment=moment, nth=nth) == -signal.SIGKILL
    assert in_a_process(recipe, resume=True) == 0
    assert_equal_runs(whole.place / "runs" / "again", whole.folder)


def test_another_seed_is_another_run(whole: Whole) -> None:
    """The comparison can tell runs apart."""
    assert in_a_process(values(whole.place, "other", seed=1)) == 0
    with pytest.raises(AssertionError):
        assert_equal_runs(whole.place / "runs" / "other", whole.folder)
