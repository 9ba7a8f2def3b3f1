"""The drift monitor in whole runs: a step at a thousand times the learning rate, and what each action does about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_helpers import make_place, metrics_of, quick
from safetensors.torch import load_file

from assay.errors import AssayError
from assay.loop.trainer import Outcome
from assay.policy.policy import Policy, Update
from assay.track.metrics import read_metrics
from assay.track.rollouts import read

KEPT = {"every": 1, "keep_last": 100}
AHEAD = {"max_staleness": 2}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("drift"), sums=40)


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """Have the updates of some steps made at a thousand times the learning rate."""

    def at(steps: set[int]) -> None:
        update, count = Policy.update, [0]

        def hurried(self: Policy, *arguments: Any) -> Update:
            count[0] += 1
            usual = self._factor
            if count[0] in steps:
                self._factor = lambda step: 1000 * usual(step)
            try:
                return update(self, *arguments)
            finally:
                self._factor = usual

        monkeypatch.setattr(Policy, "update", hurried)

    return at


def run(place: Path, name: str, steps: int, **sections: Any) -> Outcome:
    return quick(
        place,
        **{"eval": {"samples": 0, "before": False, "after": False}, "rollout": {"prompts_per_step": 3}, **sections},
        run={"steps": steps, "name": name, "deterministic": True, "threads": 1},
    )


def actions(outcome: Outcome) -> list[int]:
    return [int(row["drift/action"]) for row in metrics_of(outcome)]


def checkpointed(outcome: Outcome, step: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights and state of a checkpoint."""
    folder = outcome.folder / "checkpoints" / f"step-{step:06d}"
    return load_file(folder / "policy.safetensors"), json.loads((folder / "state.json").read_text())


def versions(outcome: Outcome, step: int) -> list[int]:
    """Of the oldest token of each rollout of a step."""
    return [row.oldest_version for row in read(outcome.folder, step) if row.oldest_version is not None]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_warn_says_so_and_goes_on(place: Path, sabotage, capsys: pytest.CaptureFixture[str]):
    sabotage({3})
    outcome = run(place, "warned", 4, drift={"kl": 0.3})
    rows = metrics_of(outcome)
    assert actions(outcome)[:3] == [0, 0, 1]
    assert rows[2]["drift/kl"] > 10 * max(rows[0]["drift/kl"], rows[1]["drift/kl"]) > 0
    assert outcome.finished


def test_publish_hands_the_weights_over_before_they_are_due(place: Path, sabotage):
    """Every fourth version at most, and the one that drifted."""
    sabotage({3})
    outcome = run(
        place,
        "published",
        9,
        regime={"max_staleness": 4},
        sync={"every": "drift"},
        drift={"kl": 0.3, "kl_action": "publish"},
    )
    published = [int(row["step"]) for row in metrics_of(outcome) if "sync/probe_gap" in row]
    crossed = [int(row["step"]) for row in metrics_of(outcome) if row["drift/action"] == 2]
    assert 3 in crossed
    assert set(crossed) <= set(published)
    gaps = [b - a for a, b in zip([0, *published], [*published, 10], strict=True)]
    assert max(gaps) <= 5
    assert published != [*range(1, 10)]


def test_sync_drops_to_staleness_0_for_good(place: Path, sabotage):
    sabotage({4})
    sections = {"regime": AHEAD, "drift": {"kl": 0.3, "kl_action": "sync"}, "checkpoint": KEPT}
    outcome = run(place, "dropped", 9, **sections)
    assert actions(outcome)[3] == 3
    stale = [step for step in range(1, 10) if min(versions(outcome, step)) < step - 1]
    assert 3 in stale
    assert max(stale) <= 4 + 2  # what was in flight is still trained on
    _, state = checkpointed(outcome, 9)
    assert state["drift"]["synchronous"]


def test_a_small_sample_size_is_seen_where_the_sampler_lags(place: Path, sabotage):
    """Answers of the weights before the sabotage weigh next to nothing after it."""
    sabotage({4})
    slow = {"update": {"learning_rate": 1e-4}, "objective": {"anchor": "recompute"}}
    outcome = run(place, "lagging", 6, regime=AHEAD, drift={"ess": 0.7, "ess_action": "sync"}, **slow)
    rows = metrics_of(outcome)
    assert actions(outcome)[:4] == [0, 0, 0, 0]
    assert actions(outcome)[4] == 3
    assert rows[4]["drift/ess"] == rows[4]["update/ess_sequence"] < 0.7


def test_rollback_restores_weights_and_optimizer_and_asks_the_next_prompts(place: Path, sabotage):
    sabotage({4})
    outcome = run(place, "back", 6, drift={"kl": 0.3, "kl_action": "rollback"}, checkpoint=KEPT)
    assert actions(outcome) == [0, 0, 0, 4, 0, 0]
    assert [row["drift/rollbacks"] for row in metrics_of(outcome)] == [0, 0, 0, 1, 1, 0]
    good, _ = checkpointed(outcome, 2)  # the newest that a step without a crossing followed
    back, state = checkpointed(outcome, 4)
    assert same(back, good)
    assert not same(back, checkpointed(outcome, 3)[0])
    assert not same(back, checkpointed(outcome, 5)[0])
    folder = outcome.folder / "checkpoints"
    theirs, ours = (
        torch.load(folder / f"step-{step:06d}" / "optimizer.pt", weights_only=True)["optimizer"]["state"]
        for step in (2, 4)
    )
    assert all(torch.equal(ours[i][key], theirs[i][key]) for i in theirs for key in theirs[i])
    assert state["cursor"] == 12
    asked = [{row.prompt_id for row in read(outcome.folder, step)} for step in (3, 4, 5)]
    assert not asked[1] & asked[2]
    assert not asked[0] & asked[1]


def test_rollback_gives_up_what_the_drifted_policy_sampled(place: Path, sabotage):
    """With groups in flight: they are not trained on, and staleness holds after it."""
    sabotage({4})
    outcome = run(place, "back-ahead", 8, regime=AHEAD, drift={"kl": 0.3, "kl_action": "rollback"}, checkpoint=KEPT)
    assert actions(outcome)[3] == 4
    for step in range(5, 9):
        assert min(versions(outcome, step)) >= max(4, step - 1 - 2)


def test_before_any_checkpoint_it_goes_back_to_the_beginning(place: Path, sabotage):
    sabotage({2})
    outcome = run(
        place, "start", 3, drift={"kl": 0.3, "kl_action": "rollback"}, checkpoint={"every": 50, "keep_last": 9}
    )
    assert actions(outcome) == [0, 4, 0]
    assert same(checkpointed(outcome, 2)[0], checkpointed(outcome, 0)[0])


def test_rollbacks_that_lead_nowhere_stop_the_run(place: Path, sabotage):
    sabotage({3, 4, 5, 6, 7, 8})
    with pytest.raises(AssayError, match=r"drifted again after 3 rollbacks to the checkpoint of step 1: lower"):
        run(place, "nowhere", 9, drift={"kl": 0.3, "kl_action": "rollback"}, checkpoint=KEPT)
    rows = read_metrics(place / "runs" / "nowhere" / "metrics.jsonl")
    assert [int(row["drift/action"]) for row in rows] == [0, 0, 4, 4, 4]


def test_a_resumed_run_measures_what_the_uninterrupted_one_does(place: Path):
    """The probe's answers are those of the first policy, also after a resumption."""
    drift = {"kl": 0.5, "surprise": 50.0}
    whole = run(place, "whole", 4, drift=drift)
    run(place, "halved", 2, drift=drift)
    halved = quick(
        place,
        resume=place / "runs" / "halved",
        eval={"samples": 0, "before": False, "after": False},
        drift=drift,
        run={"steps": 4, "name": "halved", "deterministic": True, "threads": 1},
    )
    for one, other in zip(metrics_of(whole), metrics_of(halved), strict=True):
        assert one["drift/kl"] == other["drift/kl"]
    ours, theirs = (checkpointed(outcome, 4)[1]["drift"]["norms"] for outcome in (whole, halved))
    assert ours == theirs
    assert ours["count"] == 4
