"""Allocations that really fail, under a limit on a process's memory: one line, and the steps done are kept."""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_run import forked
from loop_helpers import make_place, metrics_of, settings
from safetensors.torch import load_file
from tiny import save_tiny
from torch.optim.optimizer import register_optimizer_step_post_hook

from assay.errors import AssayError, UserError
from assay.loop.memory import HELP, memory
from assay.loop.trainer import train
from assay.recipe.keys import schema_keys
from assay.recipe.schema import Recipe
from assay.records import Group
from assay.track.console import SilentConsole

MB = 2**20
WORDS = 60_000
"""Vocabulary: a token's logits are 0.23 MB."""


class Limiting(SilentConsole):
    """Leaves the process ``room`` bytes more than it has, from the end of a step on; keeps the warnings."""

    def __init__(self, room: int, after: int) -> None:
        self.room, self.after = room, after
        self.said: list[str] = []

    def step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        if step == self.after:
            limit(self.room)

    def message(self, text: str, style: str = "info") -> None:
        self.said.append(text)


@pytest.fixture(autouse=True)
def _linux() -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("limits on the memory of a process are Linux's")


def limit(room: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def train_limited(values: dict[str, Any], room: int, after: int, report: Path) -> None:
    """Train in a process that may grow by ``room`` after that step, and report how it failed."""
    console = Limiting(room, after)
    if after == 0:
        limit(room)
    try:
        train(Recipe.from_dict(values), console=console)
    except AssayError as error:
        report.write_text(json.dumps({"kind": type(error).__name__, "error": str(error), "said": console.said}))


def failure(values: dict[str, Any], room: int, after: int, report: Path) -> dict[str, Any]:
    assert forked(train_limited, values, room, after, report) == 0
    return json.loads(report.read_text())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_place(tmp_path_factory.mktemp("memory"))
    (folder / "turns.py").write_text(
        "def reward(prompts, completions, **columns):\n    return [k % 2 for k in range(len(completions))]\n"
    )
    save_tiny(folder / "model", vocab_size=WORDS, hidden_size=16, num_attention_heads=2, num_key_value_heads=2)
    return folder


def recipe(place: Path, name: str, **sections: dict[str, Any]) -> dict[str, Any]:
    reward = {"parts": [{"verifier": f"{place}/turns.py:reward"}]}  # every group has signal
    values = {"eval": {"before": False, "after": False}, "reward": reward, **sections}
    return settings(place, **values, run={"name": name, "steps": 3, "folder": str(place / "runs")})


def test_an_update_that_does_not_fit_says_what_helps_and_keeps_the_steps_done(place: Path) -> None:
    wide = recipe(place, "wide", rollout={"max_tokens": 128, "max_running": 4}, update={"head_chunk": 2048})
    told = failure(wide, 40 * MB, 1, place / "wide.json")
    assert told["kind"] == "AssayError"
    assert told["error"].startswith("the update ran out of memory")
    assert "a lower update.tokens_per_microbatch (now 4096)" in told["error"]
    assert "model.gradient_checkpointing=true (now false)" in told["error"]
    assert "a lower update.head_chunk (now 2048)" in told["error"]
    assert "\n" not in told["error"]
    assert any("1 steps done are kept" in line and "step-000001" in line for line in told["said"])
    narrow = {**wide, "update": {**wide["update"], "head_chunk": 16}}
    done = train(Recipe.from_dict(narrow), resume=True, console=SilentConsole())
    assert [row["step"] for row in metrics_of(done)] == [1, 2, 3]


def test_generation_and_evaluation_that_do_not_fit_say_what_helps(place: Path) -> None:
    rollout = {"prompts_per_step": 10, "group_size": 40, "max_tokens": 2, "max_running": 400}
    many = recipe(place, "many", rollout=rollout, update={"head_chunk": 16})
    told = failure(many, 40 * MB, 1, place / "many.json")
    assert told["error"].startswith("generation ran out of memory")
    assert "a lower rollout.max_running (now 400), a lower rollout.max_tokens (now 2)" in told["error"]
    assert any("1 steps done are kept" in line and "step-000001" in line for line in told["said"])
    rollout = {"prompts_per_step": 2, "max_running": 400, "max_tokens": 2}
    held = recipe(place, "held", rollout=rollout, eval={"samples": 120, "before": False, "every": 1})
    told = failure(held, 40 * MB, 1, place / "held.json")
    assert told["error"].startswith("evaluation ran out of memory")
    assert "a lower rollout.max_running (now 400)" in told["error"]
    assert (place / "runs" / "held" / "checkpoints" / "step-000001" / "state.json").exists()


def test_a_model_that_does_not_fit_is_not_called_broken(place: Path) -> None:
    save_tiny(place / "large", vocab_size=400_000, hidden_size=32, num_attention_heads=2, num_key_value_heads=2)
    values = recipe(place, "large", model={"path": str(place / "large"), "compute_dtype": "float32"})
    told = failure(values, 40 * MB, 0, place / "large.json")
    assert told["kind"] == "AssayError"
    assert told["error"].startswith("loading the model ran out of memory")
    assert "model.dtype=bfloat16 (now float32), another model.device (now auto)" in told["error"]
    assert not (place / "runs" / "large").exists()


@pytest.mark.parametrize("every", [0, 1])
def test_weights_that_began_to_move_are_not_taken_for_those_of_the_steps_done(tmp_path: Path, every: int) -> None:
    make_place(tmp_path)
    sections = {"checkpoint": {"every": every}, "eval": {"before": False, "after": False}}
    steps, console = [0], Limiting(0, -1)

    def fail(*_: object) -> None:
        steps[0] += 1
        if steps[0] == 2:
            raise MemoryError

    values = settings(tmp_path, **sections, run={"name": "moved", "steps": 2, "folder": str(tmp_path / "runs")})
    hook = register_optimizer_step_post_hook(fail)
    try:
        with pytest.raises(AssayError, match=r"^the update ran out of memory"):
            train(Recipe.from_dict(values), console=console)
    finally:
        hook.remove()
    way_back = "go on from step-000001" if every else "begin again: there was no checkpoint yet"
    assert any(line.startswith("step 2 began to move the weights") and way_back in line for line in console.said)
    if every:
        resumed = train(Recipe.from_dict(values), resume=True, console=SilentConsole()).folder
        values["run"]["name"] = "whole"
        whole = train(Recipe.from_dict(values), console=SilentConsole()).folder
        mine, theirs = (load_file(f / "model" / "model.safetensors") for f in (resumed, whole))
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_what_helps_are_keys_of_the_recipe() -> None:
    assert {key for _, keys in HELP.values() for key in keys} <= set(schema_keys())


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB)"),
        OSError(12, "Cannot allocate memory"),
        MemoryError(),
    ],
)
def test_every_way_to_say_it_is_understood_also_as_a_cause(error: Exception) -> None:
    said = r"^the update ran out of memory.*tokens_per_microbatch \(now 4096\)"
    with pytest.raises(AssayError, match=said) as told, memory("update", Recipe()):
        raise error
    assert type(told.value) is AssayError
    assert "\n" not in str(told.value)
    with pytest.raises(AssayError, match=said), memory("update", Recipe()):
        raise UserError("model.path: not a model") from error


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes"), memory("update", Recipe()):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
