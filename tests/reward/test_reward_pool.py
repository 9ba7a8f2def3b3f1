"""Fault injection with real worker processes: hang, exit, kill, exhaust, orphan."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import Future, wait
from pathlib import Path

import pytest
from reward_helpers import is_running, wait_until, write

from assay.errors import UserError
from assay.reward.function import read_source
from assay.reward.pool import Answered, Crashed, Pool, PoolClosed, Reply, TimedOut
from assay.reward.verifier import Case, Part

FAULTS = """
import ctypes, os, re, signal, sys
def f(data_source, solution_str, ground_truth, extra_info):
    if solution_str == "loop":
        while True: pass
    if solution_str == "regex":  # hangs inside C code, which holds the interpreter lock
        re.match(r"(a+)+$", "a" * 64 + "b")
    if solution_str == "exit": os._exit(1)
    if solution_str == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if solution_str == "segfault": ctypes.string_at(0)
    if solution_str == "recursion":
        def deep(n): return deep(n + 1)
        deep(0)
    if solution_str == "memory": return [0] * (1 << 60)
    if solution_str == "raise": raise ValueError("bad")
    if solution_str == "noise":
        print("x" * 1_000_000); os.write(1, b"raw"); sys.stderr.write("y" * 100_000)
    if solution_str == "pid": return os.getpid()
    if solution_str == "child":
        import subprocess
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
    if solution_str == "modules": return float(bool({"torch", "transformers", "pandas"} & set(sys.modules)))
    return float(solution_str.split()[-1])
"""


def parts_of(folder: Path, source: str = FAULTS) -> list[Part]:
    verifier, text = read_source(f"{write(folder, source)}:f")
    return [Part("f", verifier, {}, text)]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory):
    with Pool(parts_of(tmp_path_factory.mktemp("pool")), workers=2, timeout_s=3.0) as pool:
        yield pool


def ask(pool: Pool, text: str) -> Future[Reply]:
    return pool.submit(0, [Case(completion=text, gold="0")])


def score(reply: Reply) -> float | None:
    assert isinstance(reply, Answered), reply
    return reply.judgements[0].score


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("exit", "the worker exited with status 1"),
        ("kill", "the worker died of SIGKILL"),
        ("segfault", "the worker died of SIGSEGV"),
    ],
)
def test_a_worker_that_dies_is_replaced(pool: Pool, fault: str, reason: str) -> None:
    reply = ask(pool, fault).result()
    assert isinstance(reply, Crashed)
    assert reply.reason == reason
    assert [score(f.result()) for f in [ask(pool, f"say {i}") for i in range(6)]] == list(range(6))


@pytest.mark.parametrize("fault", ["loop", "regex"])
def test_a_job_that_hangs_is_killed_and_others_go_on(pool: Pool, fault: str) -> None:
    hanging = ask(pool, fault)
    others = [ask(pool, f"say {i}") for i in range(20)]
    assert isinstance(hanging.result(), TimedOut)
    assert [score(f.result()) for f in others] == list(range(20))


@pytest.mark.parametrize(
    ("fault", "error"),
    [("recursion", "RecursionError"), ("memory", "MemoryError"), ("raise", "ValueError: bad")],
)
def test_exceptions_are_answers_of_a_living_worker(pool: Pool, fault: str, error: str) -> None:
    reply = ask(pool, fault).result()
    assert isinstance(reply, Answered)
    judgement = reply.judgements[0]
    assert judgement.outcome == "verifier_error"
    assert judgement.message.startswith(error)


def test_noise_corrupts_nothing(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    noisy = [ask(pool, text) for i in range(10) for text in ("noise", f"say {i}")]
    replies = [f.result() for f in noisy]
    assert [score(reply) for reply in replies[1::2]] == list(range(10))
    assert all("could not convert" in r.judgements[0].message for r in replies[::2] if isinstance(r, Answered))
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_time_in_the_queue_does_not_count(tmp_path: Path) -> None:
    slow = "import time\ndef f(data_source, solution_str, ground_truth):\n    time.sleep(0.5)\n    return 1.0\n"
    with Pool(parts_of(tmp_path, slow), workers=1, timeout_s=3.0) as pool:  # 4 s of work in a queue of 3 s jobs
        assert [score(f.result()) for f in [ask(pool, "x") for _ in range(8)]] == [1.0] * 8


def test_two_hundred_mixed_jobs_are_all_answered_and_none_for_another(pool: Pool) -> None:
    faults = {17: "loop", 40: "exit", 90: "kill", 91: "segfault", 120: "raise", 150: "loop", 199: "exit"}
    futures = [ask(pool, faults.get(i, f"say {i}")) for i in range(200)]
    assert not wait(futures, timeout=300).not_done
    for i, future in enumerate(futures):
        reply = future.result()
        if i not in faults:
            assert score(reply) == i
        elif faults[i] == "raise":
            assert isinstance(reply, Answered)
        else:
            assert isinstance(reply, TimedOut if faults[i] == "loop" else Crashed)


def test_an_idle_worker_killed_from_outside_costs_nothing(tmp_path: Path) -> None:
    with Pool(parts_of(tmp_path), workers=1, timeout_s=5) as pool:
        victim = int(score(ask(pool, "pid").result()) or 0)
        os.kill(victim, signal.SIGKILL)
        assert wait_until(lambda: not is_running(victim))
        successor = int(score(ask(pool, "pid").result()) or 0)
        assert successor != victim


def test_workers_are_warm_and_light(pool: Pool) -> None:
    first, second = (int(score(ask(pool, "pid").result()) or 0) for _ in range(2))
    assert {first, second} <= set(pool.processes())
    assert score(ask(pool, "modules").result()) == 0.0


def test_a_timed_out_jobs_children_die_with_it(tmp_path: Path) -> None:
    with Pool(parts_of(tmp_path), workers=1, timeout_s=3.0) as pool:
        child = int(score(ask(pool, "child").result()) or 0)
        assert is_running(child)
        assert isinstance(ask(pool, "loop").result(), TimedOut)
        assert wait_until(lambda: not is_running(child))


def test_closing_leaves_no_process_and_fails_what_is_open(tmp_path: Path) -> None:
    pool = Pool(parts_of(tmp_path), workers=2, timeout_s=60)
    pids = pool.processes()
    futures = [ask(pool, "loop") for _ in range(5)]
    assert wait_until(lambda: sum(future.running() for future in futures) == 2)
    pool.close()
    pool.close()
    assert not any(is_running(pid) for pid in pids)
    assert all(isinstance(future.exception(), PoolClosed) for future in futures)
    with pytest.raises(PoolClosed):
        ask(pool, "say 1")


PARENT = """
import sys
from assay.reward.pool import Pool
from assay.reward.verifier import Case, Part
path, text, fault = sys.argv[1:]
pool = Pool([Part("f", path + ":f", {}, text)], workers=2, timeout_s=1000 if fault != "regex" else 1)
child = pool.submit(0, [Case(completion="child")]).result().judgements[0].score
busy = pool.submit(0, [Case(completion=fault)])
while not (busy.running() or busy.done()): pass
print(*pool.processes(), int(child), flush=True)
while True: pass
"""

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("fault", ["loop", "pid"])
def test_when_the_parent_is_killed_the_workers_go(tmp_path: Path, fault: str) -> None:
    path = write(tmp_path, FAULTS)
    command = [sys.executable, "-c", PARENT, path, FAULTS, fault]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in re.findall(r"\d+", parent.stdout.readline())]
        assert len(pids) == 3
        parent.kill()
        assert wait_until(lambda: not any(is_running(pid) for pid in pids))  # what they started, too


def test_orphans_whose_interpreter_is_locked_end_soon(tmp_path: Path) -> None:
    """C code that never gives the interpreter lock back keeps the watching thread from running."""
    command = [sys.executable, "-c", PARENT, write(tmp_path, FAULTS), FAULTS, "regex"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in re.findall(r"\d+", parent.stdout.readline())]
        parent.kill()
        assert wait_until(lambda: not any(is_running(pid) for pid in pids[:2]))


def test_parts_that_cannot_be_loaded_are_the_users_to_mend(tmp_path: Path) -> None:
    for part, message in [
        (Part("n", "numbr", {}), "unknown verifier 'numbr' (did you mean 'number'?)"),
        (Part("n", "number", {"tolerence": 1}), "did you mean 'tolerance'"),
        (parts_of(tmp_path, "def g(): ...")[0], "has no 'f'"),
        (parts_of(tmp_path, "import os; os._exit(3)")[0], None),
    ]:
        with pytest.raises(
            Exception, match=re.escape(message or "died while loading: the worker exited with status 3")
        ) as error:
            Pool([part], workers=2, timeout_s=1)
        assert isinstance(error.value, UserError) == (message is not None)
