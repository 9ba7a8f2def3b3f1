"""Runs that cannot be: one line that names the fault, and no run folder for what never ran."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loop_helpers import make_place, metrics_of, quick
from safetensors.torch import load_file, save_file

from assay.errors import AssayError, MissingExtra, UserError
from assay.hardware import fast_precision
from assay.loop.folder import RunFolder, find_run, new_run
from assay.loop.sft import train_on_completions
from assay.recipe.schema import Recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("refusals"))


def file(place: Path, name: str, text: str) -> str:
    (place / name).write_text(text)
    return str(place / name)


def data(name: str, text: str | None) -> Callable[[Path], dict[str, Any]]:
    def sections(place: Path) -> dict[str, Any]:
        path = str(place / name) if text is None else file(place, name, text)
        return {"data": {"train": [path], "holdout": 0}, "eval": {"samples": 8}}

    return sections


RAISES = "def reward(prompts, completions, **columns):\n    raise KeyError('gold')\n"
BROKEN = '{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", \n'

FAULTS: dict[str, tuple[Callable[[Path], dict[str, Any]], type[AssayError], str]] = {
    "missing file": (data("nowhere.jsonl", None), UserError, r"nowhere\.jsonl"),
    "broken row": (data("broken.jsonl", BROKEN), UserError, r"broken\.jsonl:2"),
    "empty data": (data("empty.jsonl", ""), UserError, r"empty\.jsonl"),
    "no model": (lambda p: {"model": {"path": str(p)}}, UserError, r"^model\.path: .* is not a model"),
    "no such folder": (lambda p: {"model": {"path": str(p / "none")}}, UserError, r"^model\.path: .*no such folder"),
    "folder under a file": (
        lambda p: {"run": {"folder": str(p / "sums.jsonl" / "runs")}}, UserError, r"^run\.folder: cannot write to",
    ),
    "unknown verifier": (
        lambda p: {"reward": {"parts": [{"verifier": "nmber"}]}}, UserError, r"'nmber' \(did you mean 'number'\?\)",
    ),
    "function that raises": (
        lambda p: {"reward": {"parts": [{"verifier": file(p, "raises.py", RAISES) + ":reward"}]}},
        UserError,
        r"4 of 4 verdicts are invalid.*verifier_error: .*KeyError.*gold",
    ),
    "function that raises in training": (
        lambda p: {
            "reward": {"parts": [{"verifier": file(p, "raises.py", RAISES) + ":reward"}]}, "eval": {"before": False},
        },
        UserError,
        r"24 of 24 verdicts are invalid.*verifier_error: .*KeyError.*gold",
    ),
    "prompts longer than the context": (
        lambda p: {"data": {"train": [file(p, "long.jsonl", json.dumps({"prompt": "1+" * 200, "answer": "200"}))],
                            "holdout": 0}, "eval": {"samples": 8}},
        UserError,
        r"context is 256",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_run_is_refused_in_one_line_and_leaves_no_folder(place: Path, fault: str) -> None:
    sections, kind, said = FAULTS[fault]
    values = sections(place)
    values.setdefault("run", {}).update(name=fault)
    with pytest.raises(AssayError, match=said) as refused:
        quick(place, **values)
    assert type(refused.value) is kind
    assert "\n" not in str(refused.value)
    assert not (place / "runs" / fault).exists()
    assert not (place / "runs").exists() or all(any(run.iterdir()) for run in (place / "runs").iterdir())


def test_a_recipe_that_cannot_work_is_refused_from_python_too(place: Path) -> None:
    recipe = Recipe.from_dict({"data": {"train": ["x"]}})
    lone = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"group_size": 1})})
    with pytest.raises(UserError, match=r"rollout\.group_size 1"):
        train_on_completions(lone)


def test_a_missing_tracker_is_found_before_training(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(MissingExtra, match="trackio"):
        quick(place, track={"trackers": ["trackio"]}, run={"name": "untracked"})
    assert not (place / "runs" / "untracked").exists()


def test_a_folder_that_was_there_is_never_removed(place: Path) -> None:
    notes = place / "runs" / "mine" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("keep me")
    with pytest.raises(UserError):
        quick(place, run={"name": "mine"}, reward={"parts": [{"verifier": "nmber"}]})
    assert notes.read_text() == "keep me"


def test_a_run_is_resumed_with_its_recipe_or_not_at_all(place: Path) -> None:
    run = {"name": "fixed", "steps": 1}
    quick(place, run=run)
    before = {p: p.read_bytes() for p in (place / "runs" / "fixed").rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=r"resume: rollout\.temperature was 1 and is now 0\.5") as refused:
        quick(place, run=run, rollout={"temperature": 0.5}, resume=True)
    assert "\n" not in str(refused.value)
    assert {p: p.read_bytes() for p in (place / "runs" / "fixed").rglob("*") if p.is_file()} == before
    with pytest.raises(UserError, match=r"run\.name: .*fixed exists already: continue it with --resume"):
        quick(place, run=run)
    with pytest.raises(UserError, match=r"nothing to resume: .*elsewhere holds no recipe\.yaml"):
        quick(place, run=run, resume=place / "elsewhere")
    with pytest.raises(UserError, match="nothing to resume: no run other in"):
        quick(place, run={"name": "other"}, resume=True)
    auto, decided = {"path": str(place / "model")}, place / "runs" / "fixed" / "recipe.yaml"
    decided.write_text(decided.read_text().replace("compute_dtype: float32", "compute_dtype: bfloat16"))
    if fast_precision("cpu") == "float32":
        said = r"model\.compute_dtype was 'bfloat16' and is now 'float32', as this machine decides it: model\.compute"
        with pytest.raises(UserError, match=said):
            quick(place, run=run, model={**auto, "compute_dtype": "auto"}, resume=True)
    decided.write_text(decided.read_text().replace("compute_dtype: bfloat16", "compute_dtype: float32"))
    longer = quick(place, run={"name": "fixed", "steps": 2}, resume=place / "runs" / "fixed")
    assert [row["step"] for row in metrics_of(longer)] == [1, 2]


def test_the_run_of_this_recipe_that_began_last_is_resumed(tmp_path: Path) -> None:
    names = ["a-20260101-000000", "a-20260102-000000", "a-20260102-000000-2", "a-20260102-000000-10",
             "a-2b-20270101-000000", "b-20280101-000000", "a-20290101-000000"]  # fmt: skip
    for name in names:
        (tmp_path / name).mkdir()
        if name != "a-20290101-000000":  # begun by nobody: no recipe
            (tmp_path / name / "recipe.yaml").touch()
    assert find_run(str(tmp_path), None, "a").path.name == "a-20260102-000000-10"
    assert find_run(str(tmp_path), None, "a-2b").path.name == "a-2b-20270101-000000"
    fresh = new_run(str(tmp_path), None, "a")
    fresh.path.mkdir()
    assert new_run(str(tmp_path), None, "a").path != fresh.path


def test_a_failing_run_leaves_no_trace_only_where_nothing_was_recorded(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "deep" / "run")

    def fail(metrics: str) -> None:
        with folder.opened():
            folder.recipe.touch()
            folder.metrics.write_text(metrics)
            raise KeyError

    for recorded in (False, True):
        with pytest.raises(KeyError):
            fail("{}\n" if recorded else "")
        assert (tmp_path / "runs").exists() == recorded


def test_a_model_that_is_not_finite_is_found_before_the_first_step(place: Path, tmp_path: Path) -> None:
    make_place(tmp_path)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    name = sorted(weights)[0]
    weights[name][0] = float("nan")
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AssayError, match="log-probs are NaN"):
        quick(tmp_path, run={"name": "nan"})
    assert not (tmp_path / "runs").exists()
