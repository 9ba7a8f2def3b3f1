"""Alarms: none on a run that is well, the right one on each that is not, and the same ones again after a resumption."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from track_helpers import group_of

from assay.errors import UserError
from assay.track.alarm_log import AlarmLog, read_alarms
from assay.track.alarms import RULES, Alarm, raised
from assay.track.glossary import lookup
from assay.track.metrics import read_metrics
from assay.track.rollouts import LoggedRollout, rows_of
from assay.track.windows import SPANS, WINDOW, Change, change, level, since

HERE = Path(__file__).parent
Row = dict[str, float]


def ramp(step: int, start: float, end: float, first: int = 20, last: int = 80) -> float:
    """From start to end between two steps."""
    return start + (end - start) * min(1.0, max(0.0, (step - first) / max(1, last - first)))


def well(step: int, steps: int, rng: random.Random) -> Row:
    """A step of a run that learns: 128 rollouts, accuracy from .3 to .85, answers that grow somewhat."""
    right = ramp(step, 0.3, 0.85, 5, steps)
    correct = sum(rng.random() < right for _ in range(128)) / 128
    length = ramp(step, 100, 130, 5, steps) * rng.uniform(0.9, 1.1)
    return {
        "step": step,
        "reward/mean": correct + 0.1 * rng.uniform(0.85, 0.95),
        "reward/std": 0.45,
        "reward/correct": correct,
        "reward/part/math": correct,
        "reward/part/format": rng.uniform(0.85, 0.95),
        "reward/watch/strict": correct * rng.uniform(0.85, 0.95),
        "reward/valid_share": 1.0,
        "rollout/tokens_mean": length,
        "rollout/tokens_mean_correct": length * rng.uniform(0.9, 1.0),
        "rollout/tokens_mean_wrong": length * rng.uniform(1.0, 1.3),
        "rollout/truncated_share": rng.uniform(0, 0.08),
        "rollout/answers_mean": length / 10 * rng.uniform(0.95, 1.05),
        "rollout/duplicate_share": rng.uniform(0, 0.1),
        "group/mixed": rng.uniform(0.4, 0.7),
        "group/all_fail": 0.2,
        "group/all_pass": 0.2,
        "update/entropy": ramp(step, 0.9, 0.3, 5, steps) * rng.uniform(0.9, 1.1),
    }


def history(steps: int, seed: int, ill: Callable[[int, Row], Row] = lambda step, row: {}) -> list[Row]:
    """A run that is well, but for what ``ill`` says of it."""
    rng = random.Random(seed)
    rows = [well(step, steps, rng) for step in range(1, steps + 1)]
    return [row | ill(int(row["step"]), row) for row in rows]


def alarms_of(rows: Sequence[Row], completions: Sequence[LoggedRollout] = ()) -> list[Alarm]:
    """What is raised as the run goes on."""
    found: list[Alarm] = []
    for n in range(1, len(rows) + 1):
        found += raised(rows[:n], {alarm.name for alarm in found}, lambda: completions)
    return found


def flat(row: Row, noise: random.Random) -> Row:
    """Accuracy that stays where it began, and a reward that follows it."""
    correct = 0.4 + noise.uniform(-0.04, 0.04)
    return {
        "reward/correct": correct,
        "reward/part/math": correct,
        "reward/mean": correct,
        "reward/watch/strict": correct,
    }


NOISE = random.Random(5)

ILL: dict[str, Callable[[int, Row], Row]] = {
    "watched_verifier_left_behind": lambda s, r: {"reward/watch/strict": 0.3 + NOISE.uniform(-0.05, 0.05)},
    "format_only_gains": lambda s, r: (
        (f := flat(r, NOISE))
        | {
            "reward/part/format": ramp(s, 0.1, 0.9),
            "reward/mean": f["reward/correct"] + ramp(s, 0.05, 0.45),
            "reward/watch/strict": float("nan"),
        }
    ),
    "length_inflation": lambda s, r: (
        flat(r, NOISE) | {"rollout/tokens_mean_wrong": ramp(s, 100, 220) * NOISE.uniform(0.9, 1.1)}
    ),
    "length_collapse": lambda s, r: (
        flat(r, NOISE) | {"rollout/tokens_mean": ramp(s, 120, 40) * NOISE.uniform(0.9, 1.1)}
    ),
    "answer_spraying": lambda s, r: {"rollout/answers_mean": ramp(s, 2, 12) * NOISE.uniform(0.9, 1.1)},
    "duplicate_completions": lambda s, r: flat(r, NOISE) | {"rollout/duplicate_share": ramp(s, 0.05, 0.8)},
    "truncation": lambda s, r: {"rollout/truncated_share": ramp(s, 0.02, 0.6)},
    "no_mixed_groups": lambda s, r: {"group/mixed": ramp(s, 0.5, 0.02), "group/all_fail": ramp(s, 0.3, 0.9)},
    "entropy_collapse": lambda s, r: flat(r, NOISE) | {"update/entropy": ramp(s, 0.8, 0.01) * NOISE.uniform(0.9, 1.1)},
    "verdicts_missing": lambda s, r: {"reward/valid_share": ramp(s, 1.0, 0.7)},
}
"""By alarm, what a run looks like that it is for."""


@given(seed=st.integers(0, 10**9), steps=st.integers(1, 150))
@settings(max_examples=25, deadline=None)
def test_a_run_that_is_well_raises_nothing(seed: int, steps: int) -> None:
    assert alarms_of(history(steps, seed)) == []


@given(seed=st.integers(0, 10**9))
@settings(max_examples=15, deadline=None)
def test_a_run_that_stands_still_raises_nothing(seed: int) -> None:
    noise = random.Random(seed)
    assert alarms_of(history(120, seed, lambda s, r: flat(r, noise))) == []


@pytest.mark.parametrize("name", ["steady", "wild"])
def test_real_runs_that_learned_raise_nothing(name: str) -> None:
    """Recorded runs of the demo's task; the second at twice its learning rate, a third of its answers cut at first."""
    rows = read_metrics(HERE / f"recorded-{name}.jsonl")
    assert len(rows) == 40
    assert rows[-1]["reward/correct"] > rows[0]["reward/correct"] + 0.3
    assert alarms_of(rows) == []


@pytest.mark.parametrize("name", list(RULES))
@given(seed=st.integers(0, 10**9))
@settings(max_examples=5, deadline=None)
def test_each_alarm_is_raised_where_it_should_and_alone(name: str, seed: int) -> None:
    found = alarms_of(history(100, seed, ILL[name]))
    assert [alarm.name for alarm in found] == [name]
    (alarm,) = found
    assert 1 <= alarm.since <= alarm.step <= 100
    assert alarm.step > 15  # nothing was wrong before step 20; a window's worth of it must be seen
    assert any(character.isdigit() for character in alarm.saw)
    assert alarm.advice in alarm.line()
    assert "\n" not in alarm.line()


def test_truncation_that_passes_is_no_alarm() -> None:
    passing = history(60, 1, lambda s, r: {"rollout/truncated_share": 0.6 * 0.8**s})
    lasting = history(60, 1, lambda s, r: {"rollout/truncated_share": 0.3})
    assert alarms_of(passing) == []
    assert [(a.name, a.step, a.since) for a in alarms_of(lasting)] == [("truncation", 8, 1)]


def test_growth_with_accuracy_is_no_inflation() -> None:
    grown = history(100, 2, lambda s, r: {k: 2.5 * r[k] for k in r if "tokens_mean" in k and s > 30})
    assert "length_inflation" in {a.name for a in alarms_of(grown)}  # at one step, accuracy did not move with it
    slowly = history(
        160, 2, lambda s, r: {k: r[k] * ramp(s, 1, 2, 1, 160) for k in r if "tokens" in k or "answers" in k}
    )
    assert alarms_of(slowly) == []


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=45), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_no_number_breaks_them(numbers: list[float], seed: int) -> None:
    rng = random.Random(seed)
    names = [name for name in well(1, 1, rng) if name != "step"]
    rows = [{"step": s, **{n: rng.choice(numbers) for n in names if rng.random() < 0.9}} for s in range(1, 45)]
    for alarm in alarms_of(rows):
        assert alarm.name in RULES


def test_they_read_only_metrics_that_are_logged() -> None:
    for row in history(1, 0):
        for name in row:
            assert name == "step" or lookup(name)


def test_a_change_is_measured_between_windows() -> None:
    rows = [{"step": s, "a": 1.0 if s <= 10 else 3.0} for s in range(1, 21)]
    assert change(rows, "a", 10) == Change(1.0, 3.0, 0.0, 11)
    assert change(rows, "a", 20) is change(rows[:-1], "a", 10) is change(rows, "b", 10) is None
    assert level(rows, "a") == 3.0
    assert since(rows, "a", lambda v: v > 2) == 11
    assert Change(0.0, 0.4, 0.11, 1).rises(0.1) is Change(0.4, 0.0, 0.11, 1).falls(0.1) is False
    assert Change(0.0, 0.4, 0.09, 1).rises(0.1) is Change(0.4, 0.0, 0.09, 1).falls(0.1) is True
    assert max(SPANS) % WINDOW == 0


def completions() -> list[LoggedRollout]:
    groups = [group_of([("7", 1.0), ("1, 2, 3, 4, 5", 0.0), ("wrong and long", 0.0), ("", None), ("8 9", 0.0)])]
    return rows_of(40, groups)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("answer_spraying", ["1, 2, 3, 4, 5", "8 9"]),
        ("verdicts_missing", [""]),
        ("length_inflation", ["wrong and long", "1, 2, 3, 4, 5"]),
        ("duplicate_completions", ["7", "1, 2, 3, 4, 5"]),
    ],
)
def test_an_alarm_shows_completions_that_tell(name: str, shown: list[str]) -> None:
    (alarm,) = alarms_of(history(100, 3, ILL[name]), completions())
    assert [example.completion for example in alarm.examples] == shown


def test_they_are_written_once_and_found_again_after_a_resumption(tmp_path: Path) -> None:
    def ill(step: int, row: Row) -> Row:
        return ILL["truncation"](step, row) | {"reward/valid_share": ramp(step, 1.0, 0.5, 50, 90)}

    rows = history(100, 4, ill)

    def go_on(path: Path, first: int, last: int) -> None:
        log = AlarmLog(path)
        log.truncate_after(first)
        for n in range(first + 1, last + 1):
            for alarm in raised(rows[:n], log.names, completions):
                log.append(alarm)

    whole = tmp_path / "whole.jsonl"
    go_on(whole, 0, 100)
    steps = [alarm.step for alarm in read_alarms(whole)]
    assert len(steps) == 2
    assert [json.loads(line)["step"] for line in whole.read_text().splitlines()] == steps
    for kept in (steps[0] - 1, steps[0], steps[1]):
        stopped = tmp_path / f"stopped-{kept}.jsonl"
        go_on(stopped, 0, 100)
        go_on(stopped, kept, 100)
        assert stopped.read_bytes() == whole.read_bytes()
    assert not (tmp_path / "none.jsonl").exists()
    AlarmLog(tmp_path / "none.jsonl").truncate_after(3)
    assert not (tmp_path / "none.jsonl").exists()


def test_the_page_names_every_alarm_with_its_advice() -> None:
    page = (HERE.parents[1] / "docs" / "alarms.md").read_text()
    for name in RULES:
        assert f"| `{name}` |" in page
        assert " ".join((RULES[name].look.__doc__ or "").split()).rstrip(".") in page


def test_a_broken_log_is_said(tmp_path: Path) -> None:
    (tmp_path / "alarms.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(UserError, match=r"alarms\.jsonl, row 1: not an alarm"):
        read_alarms(tmp_path / "alarms.jsonl")
