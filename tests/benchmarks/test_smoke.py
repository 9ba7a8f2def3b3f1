"""The benchmarks that need no peer run on a tiny model, and the page can show what they save. No time is judged."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import save_tiny

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
ROUNDS = 1
TINY = {
    "decode_vs_transformers": "--prompts 2 --samples 2 --tokens 3",
    "limit": "--prompts 2 --samples 2 --tokens 3 --answer 2",
    "scaling": "--rollouts 2 4 --samples 2 --tokens 2 --caps 3 --few 2 --budget 128",
}


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, Any]]:
    """The benchmarks as modules: they are a folder of programs, not a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield {name: importlib.import_module(name) for name in ("harness", "page", "gpu", *TINY)}


@pytest.fixture(scope="module")
def finished(programs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """The folder of the results, and what each benchmark printed, line by line."""
    folder = tmp_path_factory.mktemp("benchmarks")
    model, results, printed = save_tiny(folder / "model"), folder / "results", {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs["harness"], "RESULTS", results)
        for name, options in TINY.items():
            said = f"{name}.py --device cpu --model {model} --rounds {ROUNDS} --save {options}"
            patch.setattr(sys, "argv", said.split())
            with contextlib.redirect_stdout(io.StringIO()) as out:
                programs[name].main()
            printed[name] = out.getvalue().splitlines()
    return results, printed


def saved_of(results: Path, name: str) -> dict[str, Any]:
    """The result on file; machines without instructions for bfloat16 measure in float32."""
    (file,) = results.glob(f"{name}*.json")
    assert file.stem in (name, f"{name}_float32")
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TINY)
def test_the_last_line_is_the_number(finished: Any, name: str) -> None:
    _, printed = finished
    assert re.fullmatch(rf"{name}=\d+\.\d\d", printed[name][-1])


@pytest.mark.parametrize("name", TINY)
def test_what_is_saved_is_what_was_measured(finished: Any, name: str) -> None:
    results, printed = finished
    saved = saved_of(results, name)
    assert f"{name}={saved['ratio']:.2f}" == printed[name][-1]
    assert saved["machine"]["cores"] == os.cpu_count()
    assert all(len(side["rounds"]) == ROUNDS and min(side["rounds"]) > 0 for side in saved["sides"].values())


def test_scaling_has_each_size_once_and_starts_from_the_smallest(finished: Any) -> None:
    results, _ = finished
    saved = saved_of(results, "scaling")
    relative = saved["details"]["of the smallest"]
    names = ("2 x 2", "4 x 2", "2 x 3")
    assert set(saved["sides"]) == set(relative) == {f"{phase} {n}" for phase in ("generate", "update") for n in names}
    assert relative["update 2 x 2"] == relative["generate 2 x 3"] == 1
    assert saved["ratio"] == max(relative.values())
    assert all(peak > 100 for peak in saved["details"]["peak MB"].values())  # MB: no process with torch is smaller


def test_the_page_shows_every_result(finished: Any, programs: Any) -> None:
    results, _ = finished
    text = programs["page"].text(results)
    for name in TINY:
        saved = saved_of(results, name)
        assert re.search(rf"^## {name}(?: \(float32\))?$", text, re.MULTILINE)
        assert f"**{saved['ratio']:.2f}**" in text
        assert all(f"| {side} |" in text for side in saved["sides"])


def test_the_page_of_the_repository_is_made_from_its_results(programs: Any) -> None:
    page = programs["page"]
    assert page.text(FOLDER / "results") == page.PAGE.read_text(encoding="utf-8"), "run benchmarks/page.py"


def test_a_device_is_described_on_the_page(finished: Any, programs: Any) -> None:
    results, _ = finished
    saved = saved_of(results, "limit")
    saved["device"] = "cuda"
    saved["settings"]["dtype"] = "bfloat16"
    saved["machine"]["gpu"] = {"name": "Some GPU", "memory_gib": 80.0, "driver": "570.1", "cuda": "12.8"}
    text = "\n".join(programs["page"].section(saved))
    assert "## limit (cuda)\n" in text
    assert "Some GPU with 80.0 GiB, driver 570.1, CUDA 12.8" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_gpu_without_a_device_says_so(programs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert programs["gpu"].main() == 2
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert "no CUDA device" in said[0]


@pytest.mark.parametrize("memory", [4.0, 24.0, 139.0])
def test_gpu_asks_for_whole_groups_of_distinct_prompts(programs: Any, memory: float) -> None:
    for command in programs["gpu"].commands(memory, ["--rounds", "5"]):
        assert command[-2:] == ["--rounds", "5"]
        assert {"--save", "--device", "cuda"} <= set(command)
        samples = int(command[command.index("--samples") + 1])
        if "--prompts" in command:
            prompts = int(command[command.index("--prompts") + 1])
            assert prompts * samples == programs["gpu"].rows_of(memory)
        else:
            few = int(command[command.index("--few") + 1])
            start = command.index("--rollouts") + 1
            rollouts = [*map(int, command[start : start + 4]), few]
            assert all(count % samples == 0 and count >= samples for count in rollouts)
            prompts = max(rollouts) // samples
        assert prompts <= 128


def test_products_are_timed_at_full_work(programs: Any) -> None:
    harness = programs["harness"]
    work = iter([7])
    value, seconds = harness.timed(lambda: next(work))
    assert value == 7
    assert seconds > 0
    assert harness.median_ratio(harness.Measured((2.0, 30.0, 4.0), "s"), harness.Measured((1.0, 10.0, 1.0), "s")) == 3
