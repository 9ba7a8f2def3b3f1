"""The profile: what is recorded, of which threads and steps, what it adds up to, and that it stops no run."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.track import profile
from assay.track.operators import costliest, operator_calls
from assay.track.profile import Profiler
from assay.track.profile_table import WIDTH

TIMES = {"time/step": 4.0, "time/generate": 1.0, "time/update": 2.0, "speed/update_tokens_s": 30.0}


def op(name: str, start: float, end: float, thread: int = 1, **args: Any) -> dict[str, Any]:
    """An operator's call in a trace, in seconds."""
    micro = {"ts": 1e6 * start, "dur": 1e6 * (end - start)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "tid": thread, "args": args} | micro


def test_an_operator_costs_what_its_callees_do_not() -> None:
    events = [
        op("inner", 1, 3),
        op("outer", 0, 10),
        op("twice deep", 1, 2),
        op("inner", 4, 5),
        op("elsewhere", 0.5, 9, thread=2),
        op("after", 10, 11),
        {"ph": "X", "cat": "user_annotation", "name": "phase", "tid": 1, "ts": 0, "dur": 12e6},
        {"ph": "M", "name": "process_name"},
    ]
    found = {o.name: (o.calls, o.seconds) for o in costliest(operator_calls(events), 9)}
    assert found == {
        "outer": (1, pytest.approx(7)),
        "inner": (2, pytest.approx(2)),
        "twice deep": (1, pytest.approx(1)),
        "elsewhere": (1, pytest.approx(8.5)),
        "after": (1, pytest.approx(1)),
    }


def test_where_a_device_worked_its_time_counts() -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "sgemm", "tid": 7, "ts": 5e6, "args": {"External id": 3}}
    events = [
        op("linear", 0, 1, **{"External id": 2}),
        op("mm", 0.2, 0.8, **{"External id": 3, "Input Dims": [[2, 3], [], [3, 4]]}),
        kernel | {"dur": 2e6},
        kernel | {"dur": 1e6, "cat": "gpu_memcpy", "name": "copy", "args": {}},
    ]
    assert sorted(operator_calls(events)) == [("copy", "", 1.0), ("mm", "2x3, 3x4", 2.0)]


class Machine:
    """A profiler of a run of ``total`` steps, and a sampler in a thread of its own."""

    def __init__(self, folder: Path, total: int = 6, start: int = 0) -> None:
        self.warnings: list[str] = []
        self.profiler = Profiler(folder / "profile", start, total, self.warnings.append)
        self.thread = ThreadPoolExecutor(1)
        self.thread.submit(torch.ones, 1).result()
        self.steps = range(start + 1, total + 1)

    async def sampler(self, work: Callable[[], Any]) -> None:
        await asyncio.get_running_loop().run_in_executor(self.thread, work)

    async def run(self) -> None:
        weights = torch.ones(8, 8, requires_grad=True)
        for step in self.steps:
            with self.profiler("generate"):
                await self.sampler(lambda: torch.linalg.inv(torch.eye(5)))
            with self.profiler("update"):
                (weights @ weights).sum().backward()
            with self.profiler("evaluate"):
                torch.sort(torch.ones(9))
            self.profiler.step(step, TIMES)


def events_of(folder: Path) -> list[dict[str, Any]]:
    plain, packed = folder / "profile" / "trace.json", folder / "profile" / "trace.json.gz"
    text = plain.read_text() if plain.exists() else gzip.decompress(packed.read_bytes()).decode()
    return json.loads(text)["traceEvents"]


def names(events: list[dict[str, Any]], category: str = "cpu_op") -> set[str]:
    return {e["name"] for e in events if e.get("cat") == category}


def test_two_steps_are_recorded_in_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "SECONDS", 600.0)
    machine = Machine(tmp_path)
    asyncio.run(machine.run())
    found = machine.profiler.finish()
    events = events_of(tmp_path)
    spans = [f"step {step}: {phase}" for step in (2, 3) for phase in ("generate", "update")]
    assert [e["name"] for e in events if e.get("cat") == "phase"] == spans
    threads = {e["tid"] for e in events if e.get("cat") == "cpu_op"}
    assert len(threads) == 2, "the sampler's and the trainer's"
    sampler = {e["tid"] for e in events if e["name"] == "aten::linalg_inv_ex"}
    trainer = {e["tid"] for e in events if e["name"] == "MmBackward0"}
    assert sampler | trainer == threads
    assert "aten::sort" not in names(events)
    assert sorted(p.name for p in (tmp_path / "profile").iterdir()) == ["table.txt", "trace.json"]
    assert (found["recorded"], found["timed"], found["trace"]) == ([2, 3], [5, 6], "profile/trace.json")
    assert not machine.warnings


def test_the_table_adds_up(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    asyncio.run(machine.run())
    found = machine.profiler.finish()
    update = found["phases"]["update"]
    assert (update["seconds"], update["share"], update["tokens_s"]) == (2.0, 0.5, 30.0)
    assert "limit_share" not in update
    for phase in found["phases"].values():
        assert 1 <= len(phase["operators"]) <= 5
        own = sum(op["seconds"] for op in phase["operators"])
        assert 0 < own <= phase["operator_seconds"] + 1e-9
        assert phase["operator_seconds"] < phase["recorded_seconds"]
    product = next(op for op in update["operators"] if op["name"] == "aten::mm")
    assert (product["calls"], product["shapes"]) == (6, "8x8, 8x8")  # forward, and two products backward, twice
    text = (tmp_path / "profile" / "table.txt").read_text()
    for words in ("generate", "update", "the rest", "mm", "no operator", "steps 5 to 6", "steps 2 to 3", "trace.json"):
        assert words in text
    assert "first 5 s" in text
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize(
    ("start", "total", "recorded", "timed"),
    [(0, 1, [1], [1]), (0, 2, [2], [2]), (0, 4, [2, 3], [2, 3]), (3, 9, [5, 6], [8, 9]), (6, 7, [7], [7])],
)
def test_which_steps(tmp_path: Path, start: int, total: int, recorded: list[int], timed: list[int]) -> None:
    machine = Machine(tmp_path, total, start)
    asyncio.run(machine.run())
    found = machine.profiler.finish()
    assert (found["recorded"], found["timed"]) == (recorded, timed)


def test_a_phase_that_waits_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "SECONDS", 0.0)
    machine = Machine(tmp_path, total=1)

    async def run() -> None:
        with machine.profiler("generate"):
            torch.linalg.inv(torch.eye(5))
            for _ in range(3):
                await asyncio.sleep(0)
            await machine.sampler(lambda: torch.sort(torch.ones(9)))
        with machine.profiler("update"):
            torch.cumsum(torch.ones(9), 0)

    asyncio.run(run())
    machine.profiler.step(1, TIMES)
    assert {"aten::linalg_inv_ex", "aten::cumsum"} < names(events_of(tmp_path))
    assert "aten::sort" not in names(events_of(tmp_path))


def test_a_phase_that_fails_is_left_out_and_the_next_is_not(tmp_path: Path) -> None:
    machine = Machine(tmp_path, total=1)

    def fail() -> None:
        with machine.profiler("generate"):
            torch.sort(torch.ones(9))
            raise KeyboardInterrupt

    async def run() -> None:
        with pytest.raises(KeyboardInterrupt):
            fail()
        with machine.profiler("update"):
            torch.cumsum(torch.ones(9), 0)

    asyncio.run(run())
    machine.profiler.step(1, TIMES)
    assert "aten::cumsum" in names(events_of(tmp_path))
    assert "aten::sort" not in names(events_of(tmp_path))


def test_a_large_trace_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "PLAIN_BYTES", 100)
    machine = Machine(tmp_path, total=2)
    asyncio.run(machine.run())
    assert machine.profiler.finish()["trace"] == "profile/trace.json.gz"
    assert [p.name for p in (tmp_path / "profile").glob("trace*")] == ["trace.json.gz"]
    assert "MmBackward0" in names(events_of(tmp_path))


def test_a_profile_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("a file in the folder's place")
    machine = Machine(tmp_path)
    asyncio.run(machine.run())
    found = machine.profiler.finish()
    assert (found["trace"], found["recorded"]) == (None, [])
    assert found["phases"]["update"]["seconds"] == 2.0
    assert all("is incomplete" in warning and "the run goes on" in warning for warning in machine.warnings)
    assert 1 <= len(machine.warnings) <= 2
