"""Whole runs over llama.cpp: the loop closed by GGUF files, a sabotaged sync, evaluation over a running server."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_helpers import write_tiny_gguf
from loop_helpers import make_place, metrics_of, quick, settings

from assay.data import demo_model
from assay.errors import AssayError, UserError
from assay.loop.assess import assess
from assay.recipe.load import load_recipe
from assay.rollout.llama import files, process
from assay.track.console import make_console

LLAMA = {"engine": "llama_server", "max_running": 16}
MOVES = {"learning_rate": 0.3}
"""So that a version differs from the last by more than the rounding of any precision."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("llama"))


def test_a_run_closes_the_loop_through_gguf_files(place):
    outcome = quick(place, rollout=LLAMA, run={"steps": 3, "name": "closed"})
    assert outcome.finished
    assert outcome.step == 3
    for row in metrics_of(outcome):
        assert 0 < row["sync/probe_gap"] < 0.01
        assert row["mismatch/logprob_abs_mean"] < 0.01
    assert not list(files._SHARED_MEMORY.glob(f"{files._PREFIX}{files.os.getpid()}-*"))


def test_the_slow_reference_trains_too(place):
    outcome = quick(place, rollout={"engine": "transformers"}, run={"steps": 2, "name": "slow"})
    assert all(row["sync/probe_gap"] < 1e-4 for row in metrics_of(outcome))


def test_adapters_eight_bits_and_running_ahead(place):
    outcome = quick(
        place,
        model={"lora": {"rank": 2}},
        rollout=LLAMA,
        sync={"gguf": "q8_0"},
        regime={"max_staleness": 1},
        run={"steps": 3, "name": "ahead"},
    )
    assert outcome.finished
    assert all(row["sync/probe_gap"] < 0.1 for row in metrics_of(outcome))


def test_a_sync_that_keeps_the_old_file_stops_the_run_at_that_step(place, monkeypatch):
    def stale(model, layout, target):
        yield from written(model, layout, target)
        old = target.with_name("version-1.gguf")
        if target.name == "version-2.gguf":
            target.write_bytes(kept[0])
        elif target == old:
            kept.append(old.read_bytes())

    kept: list[bytes] = []
    written = files.write
    monkeypatch.setattr(files, "write", stale)
    with pytest.raises(AssayError, match=r"after publishing version 2 .*the weights did not arrive"):
        quick(place, rollout=LLAMA, update=MOVES, run={"steps": 4, "name": "sabotaged"})


def test_what_is_fixed_is_not_trained_on(place):
    with pytest.raises(UserError, match=r"rollout.engine: openai cannot be given new weights"):
        quick(place, rollout={"engine": "openai", "servers": ["http://127.0.0.1:9"]})


@pytest.fixture(scope="module")
def spelled(tmp_path_factory):
    """A model and a llama.cpp server that has its true vocabulary: (folder, address)."""

    folder = tmp_path_factory.mktemp("spelled")
    write_tiny_gguf(folder / "tiny.gguf")
    (folder / "model").mkdir()
    demo_model._convert(folder / "tiny.gguf", folder / "model")
    params = {
        "n_parallel": 8,
        "n_ctx": 8 * 256,
        "kv_unified": False,
        "warmup": False,
        "fit_params": False,
        "verbosity": 0,
    }
    message = {"folder": str(folder / "none"), "model": str(folder / "tiny.gguf"), "params": params}
    with subprocess.Popen(
        [sys.executable, "-P", str(process.SERVE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(message) + "\n")
        server.stdin.flush()
        yield folder, json.loads(server.stdout.readline())["url"]
        server.stdin.write("stop\n")


def recipe_over(folder: Path, place: Path, **rollout):
    values = settings(
        place,
        model={"path": str(folder / "model")},
        data={"train": [], "eval": [str(place / "sums.jsonl")], "holdout": 0, "template": "none"},
        rollout={"engine": "openai", "max_running": 8, **rollout},
    )
    return load_recipe(values)


def test_evaluation_over_a_llama_server_as_it_is(spelled, place):
    folder, url = spelled
    told = assess(recipe_over(folder, place, servers=[url]), make_console("silent"))
    assert told["greedy"]["n"] > 0
    assert 0 <= told["mean_at_2"]["value"] <= 1
    assert not math.isnan(told["greedy"]["value"])


def test_a_server_of_another_model_is_refused(spelled, place):
    _, url = spelled
    with pytest.raises(UserError, match=r"has another tokenizer than model.path"):
        assess(recipe_over(place, place, servers=[url]), make_console("silent"))
