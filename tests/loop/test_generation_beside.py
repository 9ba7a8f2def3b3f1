"""Whole runs whose answers are sampled in processes of their own, some of which are killed."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from loop_helpers import make_place, metrics_of, settings
from whole_run import Whole, assert_equal_runs, values

from assay.errors import AssayError
from assay.loop.trainer import Outcome, train
from assay.recipe.schema import Recipe
from assay.track.console import Console, SilentConsole


class Killer(SilentConsole):
    """A silent console that kills a generation process when it is told of the ``nth`` answer."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.killed: list[int] = []
        self.said: list[str] = []

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        self.left -= name == "generate" and done is not None
        if not self.left:
            self.left = -1
            self.killed = children()[:1]
            for pid in self.killed:
                os.kill(pid, signal.SIGKILL)

    def message(self, text: str, style: str = "info") -> None:
        self.said.append(text)


def children() -> list[int]:
    """The generation processes of this process."""
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "process.child"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def run(recipe: dict[str, Any], console: Console | None = None, resume: bool = False) -> Outcome:
    return train(Recipe.from_dict(copy.deepcopy(recipe)), resume=resume, console=console or Killer(-1))


def test_beside_the_trainer_a_run_is_the_same_bit_for_bit_though_its_process_was_killed(whole: Whole) -> None:
    recipe = values(whole.place, "beside")
    recipe["rollout"]["process"] = "own"
    killer = Killer(30)
    with pytest.raises(AssayError, match=r"the generation process \(pid \d+\) died of SIGKILL"):
        run(recipe, killer)
    assert killer.killed
    assert run(recipe, resume=True).finished
    assert_equal_runs(whole.place / "runs" / "beside", whole.folder)
    assert children() == []


def test_a_run_goes_on_when_one_of_its_generation_processes_is_killed(tmp_path: Path) -> None:
    recipe = settings(
        make_place(tmp_path),
        rollout={"replicas": 2, "max_tokens": 12},
        regime={"max_staleness": 1},
        run={"steps": 4},
        eval={"before": False, "after": False},
    )
    killer = Killer(14)
    outcome = run(recipe, killer)
    assert killer.killed
    lost = [text for text in killer.said if "is lost: generation process" in text]
    assert len(lost) == 1
    assert f"(pid {killer.killed[0]}) died of SIGKILL" in lost[0]
    assert outcome.finished
    rows = metrics_of(outcome)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert {row["group/count"] for row in rows} == {3}
    assert children() == []
