"""A run that goes wrong says so once, writes it, and says the same after a resumption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loop_helpers import DIGIT, metrics_of, settings

from assay.loop.trainer import Outcome, train
from assay.recipe.schema import Recipe
from assay.track.alarm_log import read_alarms
from assay.track.console import SilentConsole
from assay.view.outcome import outcome_panel
from assay.view.report import write_report
from assay.view.show import show_alarms


class Hearing(SilentConsole):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str, style: str = "info") -> None:
        """Keep it."""
        self.said.append(text)


ALWAYS = {"verifier": "regex", "options": {"pattern": ""}}


def run(place: Path, steps: int, resume: bool = False) -> tuple[Outcome, list[str]]:
    """Every answer is right, so no group is mixed; a watched verifier looks for a digit."""
    values = settings(
        place,
        reward={"parts": [ALWAYS], "watch": [DIGIT | {"name": "digit"}]},
        rollout={"prompts_per_step": 2, "group_size": 2, "max_tokens": 2},
        eval={"before": False, "after": False, "samples": 0},
        checkpoint={"every": 4, "keep_last": 9},
        run={"steps": steps, "name": "ill", "deterministic": True},
    )
    console = Hearing()
    outcome = train(Recipe.from_dict(values), resume=resume, console=console)
    return outcome, [text for text in console.said if text.startswith("alarm ")]


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, list[str]]:
    from loop_helpers import make_place

    place = make_place(tmp_path_factory.mktemp("ill"))
    return place, *run(place, 12)


def test_it_says_so_once_and_writes_it(ill: tuple[Path, Outcome, list[str]]) -> None:
    _, outcome, said = ill
    alarms = read_alarms(outcome.folder / "alarms.jsonl")
    names = [alarm.name for alarm in alarms]
    assert "no_mixed_groups" in names
    assert "truncation" in names
    assert len(set(names)) == len(names) == len(said)
    assert said == [alarm.line() for alarm in alarms]
    mixed = alarms[names.index("no_mixed_groups")]
    assert (mixed.step, mixed.since, mixed.saw) == (8, 1, "groups: 0 % all fail, 0 % mixed, 100 % all pass")
    assert len(mixed.examples) == 2
    watched = [row["reward/watch/digit"] for row in metrics_of(outcome)]
    assert all(0 <= score <= 1 for score in watched)
    assert len(set(watched)) > 1
    assert {row["reward/mean"] for row in metrics_of(outcome)} == {1.0}


def test_the_report_the_panel_and_show_tell_it(ill: tuple[Path, Outcome, list[str]], capsys) -> None:
    import rich.console

    _, outcome, _ = ill
    page = write_report(outcome.folder).read_text()
    assert "no mixed groups, since step 1" in page
    assert "100 % all pass" in page
    console = rich.console.Console(width=100, record=True)
    show_alarms(outcome.folder, console)
    console.print(outcome_panel(outcome.folder, outcome.folder / "report.html"))
    text = " ".join(console.export_text().split())
    assert "no mixed groups · since step 1, raised at 8" in text
    assert f"{len(read_alarms(outcome.folder / 'alarms.jsonl'))} alarms" in text
    assert "no mixed groups since step 1: groups" in text


def test_a_resumed_run_finds_the_same(ill: tuple[Path, Outcome, list[str]]) -> None:
    import shutil

    place, outcome, said = ill
    log = outcome.folder / "alarms.jsonl"
    before = log.read_text()
    for step in (8, 12):
        shutil.rmtree(outcome.folder / "checkpoints" / f"step-{step:06d}")
    again, repeated = run(place, 12, resume=True)
    assert again.finished
    assert log.read_text() == before
    assert repeated == said
    assert [json.loads(line)["step"] for line in before.splitlines()] == sorted(
        json.loads(line)["step"] for line in before.splitlines()
    )
