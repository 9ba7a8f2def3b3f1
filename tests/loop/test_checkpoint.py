"""Checkpoints are whole or not there, those worth keeping are kept, and a full disk is told apart from a bug."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from killed_run import forked
from loop_helpers import make_place, metrics_of, quick

from assay.errors import AssayError, UserError
from assay.loop.checkpoint import CheckpointStore, RunState


def tensors(text: str) -> Callable[[Path], None]:
    """A writer of one file in place of model and optimizer."""
    return lambda folder: (folder / "policy.safetensors").write_text(text) and None


def read(into: list[str]) -> Callable[[Path], None]:
    return lambda folder: into.append((folder / "policy.safetensors").read_text())


def store(path: Path, keep_last: int = 1, keep_best: bool = True) -> CheckpointStore:
    return CheckpointStore(path / "checkpoints", keep_last, keep_best)


def test_the_newest_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    state = RunState(5, 5, 31, 29, {"coefficient": 0.1}, 1, {"time/update": 0.1 + 0.2})
    place = store(tmp_path, keep_last=2)
    place.save(replace(state, step=4), tensors("four"))
    place.save(state, tensors("five"))
    seen: list[str] = []
    assert store(tmp_path).load(read(seen)) == state
    assert seen == ["five"]
    assert store(tmp_path / "elsewhere").load(read(seen)) is None


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "best", "kept"),
    [
        (1, True, [2, 2, 2, 8, 8], [8, 10]),
        (1, True, [2, 2, 2, 2, 2], [2, 10]),
        (1, False, [2, 2, 2, 2, 2], [10]),
        (3, True, [2, 2, 6, 6, 6], [6, 8, 10]),
        (2, True, [None] * 5, [8, 10]),
        (9, False, [None] * 5, [2, 4, 6, 8, 10]),
    ],
)
def test_the_last_and_the_best_are_kept(
    tmp_path: Path, keep_last: int, keep_best: bool, best: list[int | None], kept: list[int]
) -> None:
    place = store(tmp_path, keep_last, keep_best)
    for step, best_step in zip((2, 4, 6, 8, 10), best, strict=True):
        place.save(RunState(step), tensors(""), best_step)
    assert place.steps() == kept
    assert sorted(p.name for p in place.path.iterdir()) == [f"step-{s:06d}" for s in kept]


def test_a_half_written_checkpoint_is_never_loaded_and_goes_with_the_next(tmp_path: Path) -> None:
    place = store(tmp_path)
    place.save(RunState(2), tensors("two"))
    (place.path / ".step-000004.partial").mkdir()
    (place.path / ".step-000004.partial" / "policy.safetensors").write_text("fo")
    (place.path / "step-000005").mkdir()  # no state: not made by this program
    seen: list[str] = []
    found = place.load(read(seen))
    assert found is not None
    assert (found.step, seen) == (2, ["two"])
    place.save(RunState(6), tensors("six"))
    assert sorted(p.name for p in place.path.iterdir()) == ["step-000005", "step-000006"]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    place = store(tmp_path)
    place.save(RunState(2), tensors("two"))

    def broken(folder: Path) -> None:
        tensors("half")(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(
        AssayError,
        match=r"step 4 could not be written: No space left.*MB are free.*make room and go on from step-000002",
    ):
        place.save(RunState(4), broken)
    assert [p.name for p in place.path.iterdir()] == ["step-000002"]
    with pytest.raises(AssayError, match="make room and begin again: there was no checkpoint yet"):
        store(tmp_path / "new").save(RunState(1), broken)


@pytest.mark.parametrize("damage", ["state.json", "policy.safetensors", "optimizer.pt"])
def test_a_damaged_checkpoint_is_named_with_the_way_out(tmp_path: Path, damage: str) -> None:
    place = make_place(tmp_path)
    run = {"name": "damaged", "steps": 3}
    quick(place, run=run, checkpoint={"every": 1, "keep_last": 2}, eval={"before": False, "after": False})
    newest = place / "runs" / "damaged" / "checkpoints" / "step-000003"
    (newest / damage).write_bytes((newest / damage).read_bytes()[:40])
    with pytest.raises(UserError, match=r"step-000003 cannot be read .*delete that folder to go on from step-000002"):
        quick(place, run=run, resume=True)
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    assert quick(place, run=run, resume=True).step == 3


FULL = {"run": {"name": "full", "steps": 4}, "checkpoint": {"every": 2}, "eval": {"before": False}}


def fill_up(place: Path, limit: int, report: Path) -> None:
    """Train where no file can grow beyond ``limit`` bytes: to the process, a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        quick(place, **FULL)
    except AssayError as error:
        report.write_text(json.dumps([type(error).__name__, str(error)]), encoding="utf-8")


@pytest.mark.parametrize(
    ("limit", "what", "recorded"), [(200_000, "the checkpoint of step 2", True), (5_000, "step 1", False)]
)
def test_a_full_disk_ends_the_run_in_one_line_and_room_lets_it_go_on(
    tmp_path: Path, limit: int, what: str, recorded: bool
) -> None:
    place, report = make_place(tmp_path), tmp_path / "report.json"
    assert forked(fill_up, place, limit, report) == 0
    kind, message = json.loads(report.read_text())
    assert kind == "AssayError"
    assert message.startswith(f"{what} could not be written: "), message
    assert message.endswith("make room and begin again: there was no checkpoint yet")
    assert "\n" not in message
    assert not list((place / "runs" / "full").glob("checkpoints/*"))
    assert (place / "runs" / "full").exists() == recorded
    again = quick(place, **FULL, resume=recorded)
    assert [row["step"] for row in metrics_of(again)] == [1, 2, 3, 4]
