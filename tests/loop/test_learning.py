"""The loop learns: a model that is right a third of the time becomes one that is right nearly always."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from loop_helpers import make_place, metrics_of, quick, settings
from safetensors.torch import load_file
from tiny import save_tiny

from assay.errors import UserError
from assay.loop.sft import train_on_completions
from assay.loop.trainer import Outcome
from assay.recipe.presets import PRESETS
from assay.recipe.schema import Recipe
from assay.track.console import SilentConsole, make_console
from assay.track.glossary import lookup

SUMS = [(a, b) for a in range(10) for b in range(10)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("learning"))


def write(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_grpo_makes_a_model_right_that_was_right_a_third_of_the_time(tmp_path: Path) -> None:
    """0.9 M parameters from scratch: warmed up on one right and two wrong answers to each sum, then rewarded."""
    save_tiny(tmp_path / "model", hidden_size=128, intermediate_size=1024, initializer_range=0.08)
    rng = random.Random(0)
    given = [
        {"prompt": f"{a}+{b}=", "completion": str(n)}
        for a, b in SUMS
        for n in [a + b, *rng.sample([n for n in range(19) if n != a + b], 2)]
    ]
    noisy = write(tmp_path / "noisy.jsonl", given)
    sums = write(tmp_path / "sums.jsonl", [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in SUMS])
    common = {
        "data": {"train": [noisy], "eval": [sums], "holdout": 0, "template": "none"},
        "reward": {"parts": [{"verifier": "exact"}]},
        "eval": {"samples": 4, "before": False},
        "checkpoint": {"every": 0, "keep_best": False},
    }
    warm = settings(
        tmp_path,
        **common,
        rollout={"prompts_per_step": 60, "max_tokens": 4},
        update={"learning_rate": 2e-3, "warmup_steps": 10},
        run={"steps": 130, "name": "warm"},
    )
    warmed = train_on_completions(Recipe.from_dict(warm), console=make_console("silent"))
    common["data"]["train"] = [sums]
    rewarded = quick(
        tmp_path,
        **common,
        model={"path": str(warmed.folder / "model")},
        rollout={"prompts_per_step": 25, "group_size": 8, "max_tokens": 4},
        update={"learning_rate": 1e-3},
        run={"steps": 30, "name": "rewarded"},
    )
    before, after = warmed.summary["after"], rewarded.summary["after"]
    assert before["mean_at_4"]["value"] < 0.45, before
    assert after["mean_at_4"]["value"] > 0.8, after
    assert after["greedy"]["low"] > before["greedy"]["high"]
    assert before["pass_at_4"]["value"] > before["mean_at_4"]["value"]


def moved(place: Path, outcome_model: Path) -> float:
    """The largest change of a weight since the model that the run began with."""
    old, new = (load_file(folder / "model.safetensors") for folder in (place / "model", outcome_model))
    return max(float((new[name] - old[name]).abs().max()) for name in new)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_runs(place: Path, preset: str) -> None:
    outcome = quick(
        place, preset=preset, rollout={"prompts_per_step": 4}, eval={"samples": 0}, run={"name": f"preset {preset}"}
    )
    assert outcome.finished
    assert outcome.step == 2
    rows = metrics_of(outcome)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["update/skipped_steps"] == 0 for row in rows)
    assert moved(place, outcome.folder / "model") > 0


EVERYTHING = {
    "model": {"lora": {"rank": 4}},
    "rollout": {"dynamic_sampling": True, "max_retries": 1},
    "objective": {
        "estimator": "grpo",
        "entropy": 0.01,
        "mask_truncated": True,
        "dual_clip": 3.0,
        "kl": {"coefficient": 0.05, "controller": "adaptive"},
        "correction": {"kind": "truncate", "reject_low": 0.9, "reject_high": 1.1},
    },
    "update": {"epochs": 2, "minibatches": 2},
    "reward": {
        "parts": [
            {"verifier": "regex", "options": {"pattern": "[0-9]"}},
            {"verifier": "length", "weight": 0.1},
        ],
        "overlong_buffer": 0.5,
    },
    "eval": {"every": 1},
    "run": {"steps": 3, "name": "everything"},
}


def test_everything_at_once_logs_only_what_the_glossary_explains(place: Path) -> None:
    outcome = quick(place, **EVERYTHING)
    rows = metrics_of(outcome)
    names = {name for row in rows for name in row if name != "step"}
    for name in names:
        lookup(name)
    assert {
        "update/kl_reference",
        "update/kl_coefficient",
        "update/entropy",
        "update/rejected_share",
        "update/ess_sequence",
        "update/clip_high_share",
        "mismatch/kl",
        "sync/probe_gap",
        "group/extra",
        "reward/part/overlong",
        "rollout/tokens_mean",
        "speed/generate_tokens_s",
        "time/evaluate",
        "memory/peak_mb",
    } <= names
    assert all(math.isfinite(row["update/loss"]) for row in rows if row["update/optimizer_steps"])
    assert outcome.summary["seconds"]["evaluate"] > sum(row.get("time/evaluate", 0.0) for row in rows)


def test_completions_are_checked_before_the_first_step(place: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "completion": "2"}, {"prompt": "1+2=", "completion": ""}]
    data = write(tmp_path / "given.jsonl", rows)
    recipe = Recipe.from_dict(
        settings(place, data={"train": [data], "holdout": 0}, eval={"samples": 8}, run={"name": "bare"})
    )
    with pytest.raises(UserError, match=r"given\.jsonl:2.*'completion'"):
        train_on_completions(recipe, console=make_console("silent"))
    assert not (place / "runs" / "bare").exists()


def test_completions_beyond_the_context_are_skipped_and_counted_or_refused(place: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"1+{n}=", "completion": "2" * (300 if n < 2 else 240 if n < 3 else 4)} for n in range(8)]
    data = write(tmp_path / "long.jsonl", rows)
    said: list[str] = []

    class Heard(SilentConsole):
        def message(self, text: str, style: str = "info") -> None:
            said.append(text)

    def warm_up(name: str = "long", **keys: object) -> Outcome:
        sections = {"data": {"train": [data], "holdout": 0, **keys}, "eval": {"samples": 8}}
        values = settings(place, **sections, run={"steps": 3, "threads": 1, "name": name, "folder": str(tmp_path)})
        return train_on_completions(Recipe.from_dict(values), console=Heard())

    with pytest.raises(UserError, match=r"long\.jsonl:1: prompt and completion have 310 tokens, more than .* 256"):
        warm_up(overlong="refuse")
    outcome = warm_up()
    assert any(line.startswith("2 completions, with their prompts, are longer") for line in said)
    tokens = outcome.summary["tokens"]
    assert "generated" not in tokens
    assert tokens["given"] == sum(row["sft/tokens_mean"] * 3 for row in metrics_of(outcome))
    card = (outcome.folder / "model" / "README.md").read_text()
    assert "Supervised training on given completions" in card
    rows = [{"prompt": "1+1=", "completion": "2" * 300}]
    with pytest.raises(UserError, match="every prompt with its completion is longer"):
        warm_up(train=[write(tmp_path / "all.jsonl", rows)], name="none")


def test_a_warm_up_is_resumed_like_any_run(place: Path) -> None:
    def warm(steps: int, resume: bool) -> list[dict[str, float]]:
        values = settings(place, rollout={"max_tokens": 4}, eval={"samples": 0}, run={"name": "sft", "steps": steps})
        return metrics_of(train_on_completions(Recipe.from_dict(values), resume=resume, console=make_console("silent")))

    assert len(warm(2, resume=False)) == 2
    rows = warm(4, resume=True)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["sft/loss"] < rows[0]["sft/loss"]
