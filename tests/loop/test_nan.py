"""Numbers that are not finite: skipped, counted, and after three steps in a row the end, with the batch to look at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loop_helpers import make_place, metrics_of, quick
from safetensors.torch import load_file

from assay.errors import AssayError, UserError
from assay.track.metrics import read_metrics
from assay.view.show import Selection, select

HUGE = """
calls = 0

def reward(prompts, completions, **columns):
    '''Rewards whose gradient overflows float32 in the steps named; 3 groups a step.'''
    global calls
    step, calls = calls // 3 + 1, calls + 1
    size = 3e38 if step in {bad} else 1.0
    return [size * (-1) ** k for k in range(len(completions))]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_place(tmp_path)


def sections(place: Path, bad: set[int], **run: object) -> dict[str, dict]:
    """A run without evaluation whose update overflows in the steps ``bad``."""
    (place / "huge.py").write_text(HUGE.replace("{bad}", repr(bad)))
    return {
        "reward": {"parts": [{"verifier": f"{place}/huge.py:reward"}]},
        "objective": {"estimator": "dr_grpo"},
        "eval": {"before": False, "after": False},
        "run": {"name": "huge", **run},
    }


def test_three_steps_in_a_row_stop_the_run_and_keep_the_batch(place: Path) -> None:
    with pytest.raises(
        AssayError, match=r"not finite in 3 steps in a row.*failed-batch\.json.*go on from step-000003"
    ) as stopped:
        quick(place, **sections(place, {2, 3, 4, 5}, steps=9), checkpoint={"every": 1, "keep_last": 9})
    assert "\n" not in str(stopped.value)
    folder = place / "runs" / "huge"
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["update/skipped_steps"] for row in rows] == [0, 1, 1, 1]
    assert [row["update/optimizer_steps"] for row in rows] == [1, 0, 0, 0]
    batch = json.loads((folder / "failed-batch.json").read_text(), parse_constant=pytest.fail)
    groups = batch["groups"]
    assert (batch["step"], len(groups)) == (4, 3)
    assert {abs(v["reward"]) for g in groups for v in g["verdicts"]} == {3e38}
    assert all(r["segments"][0]["sampler_logprobs"] for g in groups for r in g["rollouts"])
    rows, seen = select(folder, Selection(phase="failed", sort="reward", limit=0))
    assert (seen, rows[0].reward, rows[0].step, rows[0].gold) == (12, 3e38, 4, groups[0]["prompt"]["columns"]["answer"])
    assert {r.prompt_id for r in rows} == {g["prompt"]["id"] for g in groups}
    with pytest.raises(UserError, match="stopped at step 4, not 3"):
        select(folder, Selection(phase="failed", step=3))
    first, last = (load_file(folder / "checkpoints" / f"step-00000{n}" / "policy.safetensors") for n in (1, 3))
    assert all((first[name] == last[name]).all() for name in first)


def test_a_finite_step_between_them_lets_the_run_go_on(place: Path) -> None:
    outcome = quick(place, **sections(place, {1, 2, 4, 5}, steps=6))
    assert outcome.finished
    assert [row["update/skipped_steps"] for row in metrics_of(outcome)] == [1, 1, 0, 1, 1, 0]


def test_bad_steps_are_counted_over_a_resumption(place: Path) -> None:
    quick(place, **sections(place, {1, 2}, steps=2))
    with pytest.raises(AssayError, match="3 steps in a row"):
        quick(place, **sections(place, {1, 2}, steps=3), resume=True)  # the function counts from 1 again


def test_a_learning_rate_that_blows_the_weights_up_ends_the_run(place: Path) -> None:
    values = sections(place, set(), steps=9)
    values["update"] = {"learning_rate": 1e30, "max_grad_norm": None}
    with pytest.raises(AssayError, match=r"3 steps in a row.*lower update\.learning_rate"):
        quick(place, **values)
    assert len(read_metrics(place / "runs" / "huge" / "metrics.jsonl")) == 4


def test_a_failing_verifier_leaves_a_checkpoint_of_the_steps_done(place: Path) -> None:
    flaky = place / "flaky.py"
    flaky.write_text(
        "from pathlib import Path\n"
        "calls = 0\n"
        "def reward(prompts, completions, **columns):\n"
        "    global calls\n"
        "    calls += 1\n"
        f"    if calls > 6 and not Path({str(place / 'mended')!r}).exists():\n"
        "        raise ConnectionError('judge is down')\n"
        "    return [float('1' in c) for c in completions]\n"
    )
    run = {
        "reward": {"parts": [{"verifier": f"{flaky}:reward"}], "timeout_s": 300},  # its worker counts: none may be lost
        "rollout": {"max_retries": 0},
        "eval": {"before": False},
        "run": {"name": "flaky", "steps": 4},
    }
    with pytest.raises(AssayError, match="judge is down"):
        quick(place, **run)
    folder = place / "runs" / "flaky"
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["step-000002"]
    (place / "mended").touch()
    outcome = quick(place, **run, resume=True)
    assert [row["step"] for row in metrics_of(outcome)] == [1, 2, 3, 4]
