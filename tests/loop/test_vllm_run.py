"""Whole runs on the real vLLM: on a server that runs already, beside the trainer, and with a sync that lies."""

from __future__ import annotations

import math

import pytest
from loop_helpers import make_place, metrics_of, quick
from tiny import save_tiny
from vllm_bench import WIDE, needs_vllm

from assay.errors import AssayError
from assay.rollout.vllm.transfer import FileTransfer
from assay.track.metrics import read_metrics

pytestmark = needs_vllm


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = make_place(tmp_path_factory.mktemp("place"))
    save_tiny(folder / "model", **WIDE)
    return folder


def on_server(server) -> dict:
    return {"engine": "vllm_server", "servers": [server.engine._port.url], "dtype": "float32", "timeout_s": 60}


@pytest.fixture
def server(vllm_served):
    """The server that runs, given back with the weights that other tests expect of it."""
    yield vllm_served
    vllm_served.run(vllm_served.publish(seed=0))


def test_a_run_on_a_running_server(place, server):
    outcome = quick(place, rollout=on_server(server), run={"steps": 3})
    steps = metrics_of(outcome)
    assert outcome.finished
    assert len(steps) == 3
    assert all(step["sync/probe_gap"] < 1e-3 for step in steps)
    assert all(math.isfinite(step["update/loss"]) for step in steps)


def test_a_run_beside_the_trainer_with_adapters(place):
    outcome = quick(
        place,
        rollout={"engine": "vllm", "dtype": "float32"},
        model={"lora": {"rank": 4}},
        update={"learning_rate": 1e-2},
        run={"steps": 2},
    )
    assert outcome.finished
    assert all(step["sync/probe_gap"] < 1e-3 for step in metrics_of(outcome))
    assert "INFO" in (outcome.folder / "vllm.log").read_text()  # there, and not among what the run shows


def test_a_sync_that_does_nothing_stops_the_run_at_that_step(place, server, monkeypatch):
    """vLLM is told of version 2, and given nothing of it: every call succeeds."""
    honest = FileTransfer.send

    async def send(self, version):
        if version != 2:
            await honest(self, version)
        else:
            await self._control.start_update()
            await self._control.finish_update(str(version))

    monkeypatch.setattr(FileTransfer, "send", send)
    with pytest.raises(AssayError, match=r"version 2.*did not arrive"):
        quick(place, rollout=on_server(server), update={"learning_rate": 0.1}, run={"steps": 3, "name": "lied-to"})
    assert len(read_metrics(place / "runs" / "lied-to" / "metrics.jsonl")) == 1
