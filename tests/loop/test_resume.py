"""A run killed at any moment and resumed is the uninterrupted run, bit for bit.

The run is in deterministic mode and has all that a resumed run could get wrong: replaced groups (dynamic sampling), an
epoch's end, a learning-rate warm-up, an adaptive KL controller with its reference model, several optimizer steps on a
batch, evaluations between checkpoints, a best checkpoint. Each process is forked from one that has imported everything.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
from killed_run import MOMENTS, train_watched
from loop_helpers import make_place, settings

from assay.track.glossary import is_timing
from assay.track.metrics import read_metrics

FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(
    ["killed_run", "transformers.models.llama.modeling_llama", "peft", "pandas", "pyarrow.pandas_compat"]
)

PHASES = ("generate", "score", "update", "publish", "evaluate", "checkpoint")
CASES = [(phase, share) for phase in PHASES for share in (0.35, 0.9)]
CASES += list(zip(MOMENTS, (0.2, 0.5, 0.9, 0.7, 0.4, 0.9, 0.6), strict=True))
"""When to die: at which of all such moments of the run, as a share of their number."""


def values(place: Path, name: str, seed: int = 0) -> dict:
    """The recipe: 12 prompts, 3 to 6 of them a step."""
    return settings(
        place,
        rollout={"prompts_per_step": 3, "dynamic_sampling": True, "max_extra_groups": 3},
        objective={"kl": {"coefficient": 0.05, "controller": "adaptive", "target": 0.001, "horizon": 40}},
        update={"learning_rate": 3e-3, "warmup_steps": 5, "schedule": "linear", "epochs": 2, "minibatches": 2},
        eval={"every": 3, "samples": 2},
        checkpoint={"every": 2},
        run={"steps": 6, "deterministic": True, "name": name, "seed": seed},
    )


def in_a_process(recipe: dict, resume: bool = False, moment: str = "", nth: int = 0, counts: Path | None = None) -> int:
    """Train in a process of its own; its exit status, negative for the signal that ended it."""
    process = FORKS.Process(target=train_watched, args=(recipe, resume, moment, nth, counts))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


@dataclass(frozen=True)
class Whole:
    """The uninterrupted run."""

    place: Path
    folder: Path
    counts: dict[str, int]
    """How often each moment came."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    place = make_place(tmp_path_factory.mktemp("resume"))
    assert in_a_process(values(place, "whole"), counts=place / "counts.json") == 0
    return Whole(place, place / "runs" / "whole", json.loads((place / "counts.json").read_text()))


def lines(path: Path) -> list[dict[str, float]]:
    """A log without what a clock says."""
    return [{k: repr(v) for k, v in row.items() if not is_timing(k)} for row in read_metrics(path)]


def contents(folder: Path) -> dict[str, bytes]:
    """All that must be equal to the last bit, by file name."""
    files = [*folder.glob("rollouts/*"), *folder.glob("model/*"), *folder.glob("checkpoints/*/*")]
    kept = {str(p.relative_to(folder)): p.read_bytes() for p in files if p.suffix in (".parquet", ".safetensors")}
    for path in folder.glob("checkpoints/*/state.json"):
        state = json.loads(path.read_text())
        del state["totals"]
        kept[str(path.relative_to(folder))] = json.dumps(state).encode()
    return kept


def assert_equal_runs(found: Path, expected: Path) -> None:
    for log in ("metrics.jsonl", "evals.jsonl"):
        assert lines(found / log) == lines(expected / log), log
    mine, theirs = contents(found), contents(expected)
    assert sorted(mine) == sorted(theirs)
    assert [name for name in mine if mine[name] != theirs[name]] == []
    hidden = [p.name for p in (*found.glob(".*"), *found.glob("*/.*"))]
    assert hidden == []


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
    for resume, (moment, nth) in enumerate(
        [("before metrics", 5), ("before rename", 1), ("update", 2), ("evaluate", 1), ("after rename", 1)]
    ):
        assert in_a_process(recipe, resume=bool(resume), moment=moment, nth=nth) == -signal.SIGKILL
    assert in_a_process(recipe, resume=True) == 0
    assert_equal_runs(whole.place / "runs" / "again", whole.folder)


def test_another_seed_is_another_run(whole: Whole) -> None:
    """The comparison can tell runs apart."""
    assert in_a_process(values(whole.place, "other", seed=1)) == 0
    with pytest.raises(AssertionError):
        assert_equal_runs(whole.place / "runs" / "other", whole.folder)
