"""The command as a person meets it: what it prints, what it leaves behind, and how it refuses."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import save_tiny

from assay.cli import main

Run = tuple[int, str, str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, sums to learn, and a recipe."""
    folder = tmp_path_factory.mktemp("cli")
    save_tiny(folder / "model")
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "completion": str(a + b)} for a in range(8) for b in range(8)]
    (folder / "sums.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "recipe.yaml").write_text(
        f"""\
model: {{path: {folder}/model}}
data: {{train: [{folder}/sums.jsonl], holdout: 6}}
rollout: {{prompts_per_step: 3, group_size: 3, max_tokens: 6}}
reward: {{parts: [{{verifier: regex, options: {{pattern: "[0-9]"}}}}]}}
update: {{learning_rate: 1.0e-3}}
eval: {{samples: 2}}
run: {{steps: 2, folder: {folder}/runs}}
"""
    )
    return folder


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> Run:
    """Run the command in this process: exit status, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["assay", *map(str, words)])
    capsys.readouterr()
    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    out, err = capsys.readouterr()
    assert isinstance(code, int)
    return code, out, err


def test_train_leaves_a_run_that_show_report_and_sample_read(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, monkeypatch, "train", place / "recipe.yaml", "run.name=whole")
    folder = Path(out.strip().splitlines()[-1])
    assert code == 0
    assert folder == place / "runs" / "whole"
    left = {p.name for p in folder.iterdir()}
    assert left == {
        "recipe.yaml", "metrics.jsonl", "evals.jsonl", "rollouts", "checkpoints", "model", "summary.json", "report.html"
    }  # fmt: skip
    summary = json.loads((folder / "summary.json").read_text())
    for when in ("before", "after"):
        for name in ("greedy", "mean_at_2"):
            found = summary[when][name]
            assert found["low"] <= found["value"] <= found["high"]
            assert found["n"] == 6
    assert summary["steps"] == 2
    assert {"generate", "update"} <= set(summary["seconds"])
    assert summary["tokens"]["generated"] > 0
    assert "before" in out
    assert "after" in out

    code, out, _ = run(capsys, monkeypatch, "show", folder, "--step", 1, "--limit", 2)
    assert code == 0
    assert "step 1" in out
    code, out, _ = run(capsys, monkeypatch, "report", folder)
    assert (code, Path(out.strip())) == (0, folder / "report.html")
    code, out, _ = run(capsys, monkeypatch, "sample", folder, "1+1=", "-n", 2, "--max-tokens", 4)
    assert code == 0
    assert out.count("nats a token") == 2
    code, out, _ = run(capsys, monkeypatch, "export", folder, "--out", place / "exported")
    assert (code, Path(out.strip().splitlines()[-1])) == (0, place / "exported")
    assert (place / "exported" / "model.safetensors").exists()
    code, _, err = run(capsys, monkeypatch, "export", folder, "--step", 9)
    assert code == 2
    assert "--step 9" in err


def test_a_finished_run_can_be_made_longer(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", place / "recipe.yaml", "run.name=longer", "--console", "silent")
    assert run(capsys, monkeypatch, *words)[0] == 0
    assert run(capsys, monkeypatch, *words, "run.steps=3", "--resume")[0] == 0
    lines = (place / "runs" / "longer" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def test_sft_imitates(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("update.learning_rate=0.003", "run.steps=40", "rollout.prompts_per_step=16", "run.name=sft")
    code, _, _ = run(capsys, monkeypatch, "sft", place / "recipe.yaml", *words, "--console", "silent")
    rows = [json.loads(x) for x in (place / "runs" / "sft" / "metrics.jsonl").read_text().splitlines()]
    assert code == 0
    assert rows[-1]["sft/loss"] < rows[0]["sft/loss"] / 3


def test_eval_prints_intervals(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, monkeypatch, "eval", place / "recipe.yaml", "--console", "silent")
    assert code == 0
    for name in ("greedy", "mean@2", "pass@2", "majority@2"):
        assert name in out


def test_explain_says_where_values_come_from(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("explain", place / "recipe.yaml", "preset=dapo", "objective.clip_low=0.1")
    code, out, _ = run(capsys, monkeypatch, *words)
    assert code == 0
    for said in ("0.28", "preset", "override", "0.1"):
        assert said in out


def test_doctor_answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, monkeypatch, "doctor")
    assert code == 0
    assert "torch" in out


def _broken_row(place: Path) -> str:
    (place / "broken.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": \n')
    return f"data.train=[{place}/broken.jsonl]"


def _empty(place: Path) -> str:
    (place / "empty.jsonl").write_text("")
    return f"data.train=[{place}/empty.jsonl]"


REFUSALS = {
    "unknown key": (lambda p: "update.learning_rte=1", ["update.learning_rte", "did you mean", "learning_rate"]),
    "missing file": (lambda p: f"data.train=[{p}/none.jsonl]", ["none.jsonl"]),
    "broken row": (_broken_row, ["broken.jsonl", "2"]),
    "empty data": (_empty, ["empty.jsonl"]),
    "one rollout a group": (lambda p: "rollout.group_size=1", ["rollout.group_size"]),
    "no such verifier": (lambda p: "reward.parts[0].verifier=nmber", ["nmber", "number"]),
    "no model": (lambda p: f"model.path={p}/runs", ["model.path"]),
    "no such model": (lambda p: f"model.path={p}/nowhere", ["model.path"]),
    "run folder under a file": (lambda p: f"run.folder={p}/sums.jsonl", ["run.folder", "sums.jsonl"]),
    "not an override": (lambda p: "steps", ["steps"]),
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_bad_input_is_refused_in_one_line(
    fault: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    override, said = REFUSALS[fault]
    name = fault.replace(" ", "-")
    code, _, err = run(
        capsys, monkeypatch, "train", place / "recipe.yaml", override(place), f"run.name={name}", "--console", "silent"
    )
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    assert code == 2, err
    assert len(lines) == 1, err
    assert "Traceback" not in err
    assert all(word in lines[0] for word in said), lines[0]
    assert not (place / "runs" / name).exists()


def test_a_recipe_that_is_not_there(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, monkeypatch, "train", place / "other.yaml")
    assert code == 2
    assert "other.yaml" in err


def test_resume_with_a_changed_recipe_says_what_changed(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", place / "recipe.yaml", "run.name=changed", "--console", "silent")
    assert run(capsys, monkeypatch, *words)[0] == 0
    code, _, err = run(capsys, monkeypatch, *words, "update.learning_rate=0.5", "--resume")
    assert code == 2
    assert "update.learning_rate" in err
    assert "0.5" in err


def test_a_verifier_that_raises_ends_the_run_with_its_reason(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "raises.py").write_text(
        "def reward(prompts, completions, **columns):\n    raise KeyError('no such column')\n"
    )
    words = ("train", place / "recipe.yaml", f"reward.parts[0]={{verifier: '{place}/raises.py:reward'}}")
    code, _, err = run(capsys, monkeypatch, *words, "run.name=raises", "eval.before=false", "--console", "silent")
    assert code == 2
    assert "no such column" in err
    assert "Traceback" not in err


def test_a_failed_run_says_what_is_kept_and_the_whole_command_that_goes_on(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "flaky.py").write_text(
        "from pathlib import Path\ncalls = 0\n"
        "def reward(prompts, completions, **columns):\n"
        "    global calls\n    calls += 1\n"
        f"    if calls > 6 and not Path({str(place / 'mended')!r}).exists():\n"
        "        raise ConnectionError('judge is down')\n"
        "    return [float('1' in c) for c in completions]\n"
    )
    part = f"reward.parts=[{{verifier: '{place}/flaky.py:reward'}}]"
    words = (
        "train",
        place / "recipe.yaml",
        part,
        "reward.timeout_s=300",
        "rollout.max_retries=0",
        "run.name=flaky",
        "run.steps=3",
    )
    code, out, err = run(capsys, monkeypatch, *words, "eval.before=false", "--console", "plain")
    assert code == 2
    assert "judge is down" in err
    kept = next(line for line in out.splitlines() if "2 steps done are kept" in line)
    command = shlex.split(kept.split("`")[1])
    assert command == ["assay", *map(str, words), "eval.before=false", "--resume", "--run", f"{place}/runs/flaky"]
    (place / "mended").touch()
    assert run(capsys, monkeypatch, *command[1:], "--console", "silent")[0] == 0
    assert len((place / "runs" / "flaky" / "metrics.jsonl").read_text().splitlines()) == 3


def test_an_interrupted_run_says_how_to_go_on(place: Path) -> None:
    command = [sys.executable, "-m", "assay.cli", "train", str(place / "recipe.yaml"), "run.name=stopped"]
    process = subprocess.Popen(
        [*command, "run.steps=500", "eval.before=false", "--console", "plain"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 2/"):
            process.send_signal(signal.SIGINT)
            break
    rest, _ = process.communicate()
    assert process.returncode == 130
    assert "--resume --run" in rest, rest
    assert list((place / "runs" / "stopped" / "checkpoints").glob("step-*/state.json"))


def test_eval_needs_no_training_data_and_may_cut_the_distribution(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "held.yaml").write_text(
        f"model: {{path: {place}/model}}\ndata: {{eval: [{place}/sums.jsonl]}}\n"
        "eval: {samples: 2, limit: 4}\nrollout: {max_tokens: 4}\n"
    )
    code, out, _ = run(capsys, monkeypatch, "eval", place / "held.yaml", "--console", "silent")
    assert code == 0
    assert "mean@2" in out
    code, _, err = run(capsys, monkeypatch, "train", place / "held.yaml")
    assert code == 2
    assert "data.train" in err


def test_debug_may_stand_anywhere(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, monkeypatch, "explain", place / "recipe.yaml", "--debug")[0] == 0
