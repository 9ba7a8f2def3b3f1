"""What is said of a step: numbers of known groups, of none, and what the logs of a run hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from loop_helpers import make_place, metrics_of, prompts, quick, settings
from safetensors.torch import load_file

from assay.loop.harvest import Harvest
from assay.loop.observe import generated_tokens, harvest_metrics, speed_metrics
from assay.loop.summary import best_step
from assay.loop.trainer import train
from assay.recipe.schema import Recipe
from assay.records import Group, Rollout, Segment, Verdict
from assay.track.console import SilentConsole
from assay.track.glossary import lookup
from assay.track.rollouts import logged_steps, read
from assay.track.trackers import TRACKERS, TrackedRun

ALWAYS = {"verifier": "regex", "options": {"pattern": ""}}


def group(*answers: tuple[str, float | None], number: int = 0, parts: Mapping[str, float] | None = None) -> Group:
    """A group of these texts with these rewards; as many tokens as characters."""
    prompt = prompts(number + 1).prompts[number]
    rollouts = tuple(
        Rollout(
            prompt.id,
            i,
            (Segment("policy", (1,) * len(text), (-1.0,) * len(text), (0,) * len(text)),),
            "length" if len(text) > 3 else "stop",
            text,
        )
        for i, (text, _) in enumerate(answers)
    )
    verdicts = tuple(
        Verdict(None, "verifier_error")
        if reward is None
        else Verdict(reward, "scored" if reward else "no_answer", parts=parts or {}, correct=float(reward > 0.5))
        for _, reward in answers
    )
    return Group(prompt, rollouts, verdicts, number)


def test_numbers_of_known_groups() -> None:
    mixed = group(("4", 1.0), ("5 or 6", 0.0), ("4", 1.0), ("?", None), parts={"exact": 0.25})
    failed = group(("x", 0.0), ("yy", 0.0), number=1)
    replaced = group(("lost", None), ("gone", None), ("out", None), number=2)
    harvest = Harvest((mixed,), (failed,), extra=1, replaced=(replaced,))
    found = harvest_metrics(harvest)
    for name in found:
        lookup(name)
    assert found == pytest.approx(
        {
            "group/all_fail": 0.5,
            "group/mixed": 0.5,
            "group/all_pass": 0.0,
            "group/no_signal": 0.0,
            "group/count": 1,
            "group/extra": 1,
            "group/unused": 1,
            "verdict/scored": 2,
            "verdict/no_answer": 3,
            "verdict/verifier_error": 4,
            "reward/valid_share": 5 / 9,
            "reward/mean": 0.4,
            "reward/std": (5 * 0.24 / 4) ** 0.5,
            "reward/correct": 0.4,
            "reward/part/exact": 0.25,
            "rollout/tokens_mean": 2.0,
            "rollout/tokens_max": 6,
            "rollout/truncated_share": 1 / 6,
            "rollout/answers_mean": 4 / 6,
            "rollout/duplicate_share": 1 / 6,
            "rollout/tokens_mean_correct": 1.0,
            "rollout/tokens_mean_wrong": 3.0,
            "rollout/retried": 3,
        }
    )
    assert generated_tokens(harvest) == 12 + 11


def test_nothing_generated_and_nothing_valid() -> None:
    assert harvest_metrics(Harvest(())) == {
        "group/all_fail": 0.0,
        "group/mixed": 0.0,
        "group/all_pass": 0.0,
        "group/no_signal": 0.0,
        "group/count": 0,
        "group/extra": 0,
        "group/unused": 0,
        "rollout/retried": 0,
    }
    broken = harvest_metrics(Harvest((group(("a", None), ("b", None)),)))
    assert broken["reward/valid_share"] == 0.0
    assert broken["group/no_signal"] == 1.0
    assert "reward/mean" not in broken
    assert set(speed_metrics({"time/generate": 2.0, "time/update": 0.5}, 0, 0)) == {
        "speed/generate_tokens_s",
        "memory/peak_mb",
    }


@pytest.mark.parametrize(
    ("greedy", "best"),
    [
        ({}, None),
        ({0: 0.9}, None),
        ({0: 0.9, 5: 0.2}, 5),
        ({5: 0.4, 10: 0.6, 15: 0.6}, 10),
        ({5: float("nan"), 10: 0.0}, 10),
    ],
)
def test_the_best_step_is_the_first_of_the_trained_ones(greedy: dict[int, float], best: int | None) -> None:
    assert best_step({step: {"eval/greedy": value} for step, value in greedy.items()}) == best


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("observe"))


def test_a_step_without_any_signal_counts_and_moves_nothing(place: Path) -> None:
    """Every answer passes: dynamic sampling finds no group to train on, with a KL that would pull on one."""
    outcome = quick(
        place,
        reward={"parts": [ALWAYS]},
        rollout={"dynamic_sampling": True, "max_extra_groups": 2},
        objective={"kl": {"coefficient": 0.1, "controller": "adaptive"}},
        update={"minibatches": 2},
        eval={"before": False, "samples": 0},
        run={"name": "no signal", "steps": 3},
    )
    assert outcome.finished
    assert outcome.step == 3
    rows = metrics_of(outcome)
    for row in rows:
        assert (row["group/count"], row["group/unused"], row["group/extra"]) == (0, 5, 2)
        assert (row["reward/mean"], row["group/all_pass"]) == (1.0, 1.0)
        assert row["update/optimizer_steps"] == row["update/tokens_forwarded"] == 0
        assert row["update/kl_coefficient"] == 0.1
    old, new = (load_file(f / "model.safetensors") for f in (place / "model", outcome.folder / "model"))
    assert all((old[name] == new[name]).all() for name in new)
    assert logged_steps(outcome.folder) == logged_steps(outcome.folder, "unused") == [1, 2, 3]
    assert read(outcome.folder) == []
    unused = read(outcome.folder, 2, "unused")
    assert len(unused) == 5 * 4
    assert {row.advantage for row in unused} == {None}
    assert outcome.summary["tokens"] == {"generated": sum(r.tokens for r in read(outcome.folder, None, "unused")),
                                         "forwarded": 0}  # fmt: skip


class Mortal:
    """A tracker whose server goes away after the first step."""

    def __init__(self, run: TrackedRun) -> None:
        self.run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take step 1."""
        if step > 1:
            raise ConnectionError("server is gone")

    def summary(self, values: Mapping[str, Any]) -> None:
        """Never called after a failure."""
        raise AssertionError

    def close(self) -> None:
        """Never called after a failure."""
        raise AssertionError


class Hearing(SilentConsole):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def message(self, text: str, style: str = "info") -> None:
        """Keep it."""
        self.said.append((text, style))


def test_a_run_outlives_its_tracker(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACKERS._things, "trackio", Mortal)
    values = settings(
        place, track={"trackers": ["trackio"]}, eval={"before": False}, run={"name": "mortal", "steps": 3}
    )
    console = Hearing()
    outcome = train(Recipe.from_dict(values), console=console)
    assert outcome.finished
    assert [said for said in console.said if "tracker" in said[0]] == [
        ("tracker trackio failed and is left out: ConnectionError: server is gone", "warning")
    ]
