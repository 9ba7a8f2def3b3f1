"""Asked to stop, a run stops between two updates, keeps what is done, and goes on as if nobody had asked."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from killed_run import in_a_process
from whole_run import Whole, assert_equal_runs, values

from assay.track.metrics import read_metrics

INT, TERM = signal.SIGINT, signal.SIGTERM


def asked(whole: Whole, name: str, moment: str, nth: int, *numbers: int) -> tuple[int, dict[str, Any], Path]:
    """Exit status, report and folder of a run that is sent these signals."""
    report = whole.place / f"{name}.json"
    code = in_a_process(values(whole.place, name), moment=moment, nth=nth, numbers=numbers, report=report)
    return code, json.loads(report.read_text()) if report.exists() else {}, whole.place / "runs" / name


def go_on(whole: Whole, name: str) -> dict[str, Any]:
    """Resume to the end; the report."""
    report = whole.place / f"{name} resumed.json"
    assert in_a_process(values(whole.place, name), resume=True, report=report) == 0
    return json.loads(report.read_text())


@pytest.mark.parametrize(("number", "moment", "nth"), [(INT, "generate", 6), (TERM, "score", 6)])
def test_sampling_is_abandoned_and_the_steps_done_are_kept(whole: Whole, number: int, moment: str, nth: int) -> None:
    """The 6th time is in the third step or later: a step that replaces groups samples twice."""
    name = f"{moment} {number}"
    code, report, folder = asked(whole, name, moment, nth, number)
    assert code == 0
    assert not report["finished"]
    assert report["seen"]["stopping"] == 1
    done = report["step"]
    assert 0 < done < 6
    assert report["shown"] == list(range(1, done + 1))
    assert (folder / "checkpoints" / f"step-{done:06d}" / "state.json").exists()
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == report["shown"]
    assert json.loads((folder / "summary.json").read_text())["steps"] == done
    assert not (folder / "model").exists()
    assert go_on(whole, name)["shown"] == list(range(done + 1, 7))
    assert_equal_runs(folder, whole.folder)


def test_a_step_whose_update_has_begun_is_finished(whole: Whole) -> None:
    code, report, folder = asked(whole, "in update", "update", 2, INT)
    assert (code, report["step"], report["finished"]) == (0, 2, False)
    go_on(whole, "in update")
    assert_equal_runs(folder, whole.folder)


def test_an_abandoned_evaluation_is_made_when_the_run_goes_on(whole: Whole) -> None:
    for nth, step in ((2, 3), (3, 6)):  # after step 3, and after the last
        name = f"evaluation {nth}"
        code, report, folder = asked(whole, name, "evaluate", nth, TERM)
        assert (code, report["step"], report["finished"]) == (0, step, False)
        assert [row["step"] for row in read_metrics(folder / "evals.jsonl")] == [0, 3, 6][: nth - 1]
        go_on(whole, name)
        assert_equal_runs(folder, whole.folder)


def test_before_the_first_step_there_is_nothing_to_keep_and_the_run_begins_again(whole: Whole) -> None:
    code, report, folder = asked(whole, "at once", "evaluate", 1, INT)
    assert (code, report["step"], report["finished"]) == (0, 0, False)
    assert not (folder / "checkpoints").exists()
    go_on(whole, "at once")
    assert_equal_runs(folder, whole.folder)


@pytest.mark.parametrize(("numbers", "status"), [((INT, INT), 1), ((TERM, TERM), -TERM), ((INT, TERM), -TERM)])
def test_a_second_signal_acts_at_once_and_harms_nothing(whole: Whole, numbers: tuple[int, int], status: int) -> None:
    """A KeyboardInterrupt that nobody catches ends a process of this kind with 1."""
    name = "twice {} {}".format(*numbers)
    code, report, folder = asked(whole, name, "generate", 6, *numbers)
    assert (code, report) == (status, {})
    go_on(whole, name)
    assert_equal_runs(folder, whole.folder)
