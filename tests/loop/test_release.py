"""A checkpoint as a model: the right one, whole, with its card; and where a model's place may be a run or adapters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_helpers import make_place, quick, settings
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from assay.errors import UserError
from assay.loop.assess import ask, assess
from assay.loop.folder import RunFolder
from assay.loop.release import release
from assay.loop.summary import best_step
from assay.policy.model import load_model
from assay.recipe.load import load_recipe
from assay.recipe.schema import ModelRecipe
from assay.track.console import make_console
from assay.track.metrics import read_metrics

CPU = torch.device("cpu")
LORA = {"rank": 2, "alpha": 4.0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def run(place: Path) -> RunFolder:
    """Four steps, every checkpoint kept, each evaluated."""
    sections: dict[str, Any] = {
        "update": {"learning_rate": 5e-3},
        "eval": {"every": 1, "samples": 2},
        "checkpoint": {"every": 1, "keep_last": 9},
        "run": {"name": "whole", "steps": 4, "folder": str(place / "runs"), "threads": 1},
    }
    return RunFolder(quick(place, **sections).folder)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_step_is_the_weights_of_its_checkpoint_with_its_card(run: RunFolder, tmp_path: Path) -> None:
    folder = release(run, step=2, out=tmp_path / "two")
    assert same(weights(folder), load_file(run.checkpoints / "step-000002" / "policy.safetensors"))
    assert not same(weights(folder), weights(run.model))
    rows = {row["step"]: row for row in read_metrics(run.evals)}
    card = (folder / "README.md").read_text()
    assert all(f"{rows[step]['eval/greedy']:.3f}" in card for step in (0, 2))
    assert "steps: 4" in card  # the recipe
    assert ask(str(folder), "1+1=", n=2, max_tokens=3, temperature=1.0, seed=0)


def test_the_last_step_is_what_the_run_exported(run: RunFolder) -> None:
    folder = release(run, step=4)
    assert folder == run.path / "model-step-000004"
    mine, theirs = (f / "model.safetensors" for f in (folder, run.model))
    assert mine.read_bytes() == theirs.read_bytes()
    assert (folder / "README.md").read_text() == (run.model / "README.md").read_text()
    assert release(run, step=4) == folder  # again


def test_without_a_wish_it_is_the_best_if_that_is_kept_else_the_last(run: RunFolder, tmp_path: Path) -> None:
    copied = RunFolder(shutil.copytree(run.path, tmp_path / "copied"))
    rows = [json.loads(line) for line in copied.evals.read_text().splitlines()]
    for row in rows:
        row["eval/greedy"] = 0.9 if row["step"] == 3 else 0.1
    copied.evals.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert best_step({int(row["step"]): row for row in read_metrics(copied.evals)}) == 3
    assert release(copied).name == release(copied, best=True).name == "model-step-000003"
    shutil.rmtree(copied.checkpoints / "step-000003")
    assert release(copied).name == "model-step-000004"
    with pytest.raises(UserError, match=r"--best: step 3 was best and is not kept.*step 1, 2, 4"):
        release(copied, best=True)
    copied.evals.unlink()
    assert release(copied).name == "model-step-000004"
    with pytest.raises(UserError, match=r"--best: no step of .* was evaluated"):
        release(copied, best=True)


def test_what_cannot_be_exported_is_refused_and_nothing_is_overwritten(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--step 7: checkpoints are there of step 1, 2, 3, 4$"):
        release(run, step=7)
    with pytest.raises(UserError, match="--step and --best"):
        release(run, step=2, best=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(UserError, match=r"--out .*mine: is there already"):
        release(run, out=tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"
    with pytest.raises(UserError, match=r"holds no recipe\.yaml"):
        release(RunFolder(tmp_path))
    bare = RunFolder(tmp_path / "bare")
    bare.path.mkdir()
    shutil.copy(run.recipe, bare.recipe)
    with pytest.raises(UserError, match="no checkpoint to export"):
        release(bare)


def test_a_run_folder_stands_for_its_model_and_says_how_to_get_one(place: Path, run: RunFolder, tmp_path: Path) -> None:
    def found(path: Path) -> dict[str, Any]:
        values = settings(place, model={"path": str(path), "compute_dtype": "float32"})
        return assess(load_recipe(values), make_console("silent"))

    assert found(run.path) == found(run.model)
    copied = Path(shutil.copytree(run.path, tmp_path / "stopped", ignore=shutil.ignore_patterns("model")))
    for use in (lambda: found(copied), lambda: ask(str(copied), "1+1=", n=1, max_tokens=2, temperature=1.0, seed=0)):
        with pytest.raises(UserError, match=r"the run .*stopped has no model yet: `assay export .*stopped` writes one"):
            use()
    shutil.rmtree(copied / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint"):
        found(copied)


def test_adapters_stand_for_their_base_with_them_merged(place: Path) -> None:
    sections = {"update": {"learning_rate": 1e-2}, "eval": {"before": False, "after": False}}
    model = {"path": str(place / "model"), "compute_dtype": "float32"}
    alone = quick(place, **sections, model={**model, "lora": {**LORA, "export": "adapter"}}, run={"name": "alone"})
    adapters = alone.folder / "model"
    assert (adapters / "adapter_config.json").exists()
    assert not (adapters / "model.safetensors").exists()
    merged = weights(release(RunFolder(alone.folder)))
    loaded = dict(load_model(str(adapters), ModelRecipe(), CPU).named_parameters())
    base = weights(place / "model")
    assert merged.keys() == loaded.keys() == base.keys()
    assert all(torch.allclose(merged[name], loaded[name], atol=1e-6) for name in merged)
    assert not same(loaded, base)
    said = [ask(str(p), "1+1=", n=2, max_tokens=6, temperature=0, seed=0)
            for p in (adapters, alone.folder / "model-step-000002", alone.folder)]  # fmt: skip
    assert len({tuple(r.text for r in answers) for answers in said}) == 1
    (adapters / "tokenizer_config.json").unlink()  # as peft alone leaves it: the base's serves
    (adapters / "tokenizer.json").unlink()
    assert ask(str(adapters), "1+1=", n=1, max_tokens=2, temperature=1.0, seed=0)
    again = quick(place, **sections, model={**model, "path": str(adapters)}, run={"name": "again", "steps": 1})
    assert (again.folder / "model" / "model.safetensors").exists()
    with pytest.raises(UserError, match=r"^model\.lora\.export: adapter has no base to name"):
        quick(place, model={**model, "path": str(adapters), "lora": {**LORA, "export": "adapter"}}, run={"name": "on"})


def test_evaluation_keeps_to_the_recipes_threads_and_determinism(place: Path) -> None:
    threads, values = torch.get_num_threads(), settings(place, run={"threads": 2, "deterministic": True})
    try:
        once, again = (assess(load_recipe(values), make_console("silent")) for _ in range(2))
        assert torch.get_num_threads() == 2
        assert torch.are_deterministic_algorithms_enabled()
        assert once == again
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            '{"base_model_name_or_path": "/nowhere/base"}',
            r"adapters for '/nowhere/base', which .*no such folder",
        ),
        ('{"base_model_name_or_path": null}', "does not name the model"),
        ("{}", "cannot be read"),
        ("{", "cannot be read"),
        ('{"base_model_name_or_path": "BASE", "peft_type": "LORA", "r": 2}', "cannot be merged into"),
    ],
)
def test_adapters_that_cannot_be_used_are_refused_in_one_line(
    place: Path, tmp_path: Path, config: str, said: str
) -> None:
    (tmp_path / "adapter_config.json").write_text(config.replace("BASE", str(place / "model")))
    with pytest.raises(UserError, match=said) as refused:
        ask(str(tmp_path), "1+1=", n=1, max_tokens=2, temperature=1.0, seed=0)
    assert str(refused.value).startswith("model.path: ")
    assert "\n" not in str(refused.value)
