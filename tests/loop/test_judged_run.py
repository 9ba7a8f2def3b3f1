"""A run whose reward is partly a judge's, over a server that fails now and then."""

from __future__ import annotations

from pathlib import Path

import pytest
from loop_helpers import DIGIT, make_place, metrics_of, quick
from reward.judge_helpers import bad_server, options

from assay.errors import AssayError
from assay.track.rollouts import read


def judged(*urls: str, **more: object) -> dict[str, object]:
    return {"verifier": "judge", "options": options(*urls, key_env="TEST_JUDGE_KEY", **more), "weight": 0.5}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_JUDGE_KEY", "sk-never-written-4711")


def test_a_run_is_judged_over_replicas_and_its_key_is_nowhere(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    with bad_server() as server:
        part = judged(server.url("fails", 3), server.url("good"), template="worth=7 {{ completion }}")
        outcome = quick(place, reward={"parts": [DIGIT, part]}, run={"name": "judged", "steps": 2})
    rows = metrics_of(outcome)
    assert [row["reward/part/judge"] for row in rows] == pytest.approx([0.7, 0.7])
    assert [row["reward/valid_share"] for row in rows] == [1.0, 1.0]
    for row in read(outcome.folder):
        assert row.reward == pytest.approx((row.correct or 0.0) + 0.35)
    written = b"".join(path.read_bytes() for path in outcome.folder.rglob("*") if path.is_file())
    assert b"TEST_JUDGE_KEY" in written
    assert b"never-written" not in written


def test_a_judge_that_is_down_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    with bad_server() as server:
        part = judged(server.url("denied"), attempts=1)
        with pytest.raises(AssayError, match=r"unavailable: judge: 127\.0\.0\.1:\d+: status 401") as caught:
            quick(place, reward={"parts": [DIGIT, part]}, run={"name": "down"}, eval={"before": False})
    assert "4711" not in str(caught.value)
