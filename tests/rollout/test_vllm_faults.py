"""vLLM that dies, hangs, breaks off or refuses: every wait ends, and nobody is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from vllm_bench import TOKENIZER, ask, gap, llama, needs_vllm, recipe

from assay.errors import AssayError, UserError
from assay.rollout.engine import EngineFailed, Limits
from assay.rollout.fleet import Fleet, Replica
from assay.rollout.vllm.disaggregated import DisaggregatedPort
from assay.rollout.vllm.engine import RETRIES, VllmEngine
from assay.rollout.vllm.factory import embedded_engine, server_engine
from assay.rollout.vllm.remote import remote_engine
from assay.rollout.vllm.served import ServedPort
from assay.rollout.vllm.workshop import Workshop

STARTER = """
import sys, time
from pathlib import Path
from assay.rollout.vllm.launch import ServerProcess
server = ServerProcess(["--model=none"], {}, Path(sys.argv[1]))
print(server.pid, flush=True)
time.sleep(600)
"""
TRAINER = """
import os, subprocess, sys, time
from pathlib import Path
from assay.rollout.vllm.lifeline import Lifeline
line = Lifeline(Path(sys.argv[1]))
core = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
environment = {**os.environ, **line.environment}
child = subprocess.Popen([sys.executable, "-c", core, sys.argv[2]], stdout=subprocess.PIPE, env=environment)
print(child.pid, int(child.stdout.readline()), flush=True)
time.sleep(600)
"""
WORKER = """
import os, time
from assay.rollout.vllm.lifeline import follow
follow()
print(os.getpid(), flush=True)
time.sleep(600)
"""


@needs_vllm
def test_answers_of_a_killed_server_are_finished_by_another(vllm_served):
    url, model = vllm_served.engine._port.url, llama()
    shop = Workshop(recipe(), model, TOKENIZER)
    requests = [ask(n=8, id=i, max_tokens=8000) for i in range(4)]

    async def scenario():
        mortal = server_engine(shop)
        mortal._stop = frozenset()  # its answers are under way for long; the other's end at a stop token
        fleet = Fleet([Replica("mortal", mortal), Replica("other", remote_engine(shop, url))], retries=2)
        try:
            await fleet.publish(1)
            for request in requests:
                await fleet.submit(request)
            while not any(len(r) for _, r in await mortal.partials()):
                await asyncio.sleep(0.005)
            os.kill(mortal._port.process.pid, signal.SIGKILL)  # in the midst of its answers
            answers = {(i, rollout.index): rollout async for i, rollout in fleet.finished()}
            return answers, fleet.serving
        finally:
            await fleet.close()

    answers, serving = asyncio.run(scenario())
    assert (len(answers), serving) == (32, 1)
    assert {r.finish for r in answers.values()} <= {"stop", "length"}
    assert max(gap(model, requests[i], r) for (i, _), r in answers.items()) < 1e-4
    vllm_served.run(vllm_served.publish(seed=0))


@needs_vllm
def test_a_server_that_hangs_is_taken_for_dead(vllm_served):
    """Stopped in the midst of answers: the silence is noticed, and so is a publish that nobody takes."""
    url, pid, model = vllm_served.engine._port.url, vllm_served.engine._port.process.pid, llama()
    shop = Workshop(recipe(rollout={"timeout_s": 1.5}), model, TOKENIZER)

    async def scenario():
        engine, other = remote_engine(shop, url), remote_engine(shop, url)
        try:
            await engine.publish(1)
            await engine.submit(ask(n=8, max_tokens=900))
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(AssayError, match="silent"):
                async for _ in engine.finished():
                    pass
            with pytest.raises(AssayError, match="silent"):
                await engine.submit(ask())
            with pytest.raises(AssayError):
                await other.publish(2)
        finally:
            os.kill(pid, signal.SIGCONT)
            await engine.close()
            await other.close()

    asyncio.run(scenario())
    vllm_served.run(vllm_served.engine._port.resume())
    vllm_served.run(vllm_served.publish(seed=0))
    assert gap(vllm_served.model, ask(), vllm_served.run(vllm_served.answers(ask()))[0, 0]) < 1e-4


@needs_vllm
@pytest.mark.parametrize(("options", "said"), [({"no_such_option": 1}, "no-such-option"), ({"quantization": "x"}, "x")])
def test_options_that_vllm_does_not_know_are_refused_in_its_words(vllm_embedded, options, said):
    async def scenario():
        engine = embedded_engine(recipe(rollout={"options": options}), llama(), TOKENIZER)
        with pytest.raises(UserError, match="vLLM says") as caught:
            await engine.publish(1)
        await engine.close()
        return str(caught.value)

    message = asyncio.run(scenario())
    assert said in message
    assert "\n" not in message


def test_a_server_ends_with_the_process_that_started_it(tmp_path):
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path / "log")], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert alive(pid)
    starter.kill()
    starter.wait()
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        os.sched_yield()
    assert not alive(pid)


def test_a_core_and_its_worker_end_with_the_process_that_started_them(tmp_path):
    """As vLLM has it: the trainer starts a core, the core a worker; only the worker knows of us."""
    starter = subprocess.Popen([sys.executable, "-c", TRAINER, str(tmp_path), WORKER], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    core, worker = map(int, starter.stdout.readline().split())
    assert alive(core)
    assert alive(worker)
    starter.kill()
    starter.wait()
    deadline = time.monotonic() + 30
    while (alive(core) or alive(worker)) and time.monotonic() < deadline:
        os.sched_yield()
    assert not alive(core)
    assert not alive(worker)


def alive(pid: int) -> bool:
    """Does a process run, and is not merely unburied?"""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_address_where_nobody_is_is_the_users_to_mend():
    with pytest.raises(UserError, match=r"rollout\.servers"):
        remote_engine(Workshop(recipe(), llama(), TOKENIZER), "http://127.0.0.1:9")


Reply = Callable[[dict, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(reply: Reply, aborted: Callable[[], None] = lambda: None):
    """A real HTTP server with vLLM's routes, whose generate route answers as told; yields a port to it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = [int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")]
        body = json.loads(await reader.readexactly(length[0]) or b"{}") if length else {}
        if "/generate" in head:
            await reply(body, writer)
        else:
            if "/abort" in head:
                aborted()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield ServedPort(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, 30.0)


@asynccontextmanager
async def engine_over(port):
    engine = VllmEngine(port, None, TOKENIZER, stop=frozenset({2}), limits=Limits(None, 4), path="", timeout_s=30.0)
    try:
        yield engine
    finally:
        await engine.close()


def events(writer: asyncio.StreamWriter, *choices: dict) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    for choice in choices:
        writer.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())


def piece(*tokens: int, logprob: float = -1.0, finish: str | None = None) -> dict:
    content = [{"token_id": token, "logprob": logprob} for token in tokens]
    return {"index": 0, "token_ids": list(tokens), "logprobs": {"content": content}, "finish_reason": finish}


def status(writer: asyncio.StreamWriter, code: int) -> None:
    writer.write(f"HTTP/1.1 {code} X\r\nContent-Length: 6\r\nConnection: close\r\n\r\nbroken".encode())


def play(reply: Reply, **more):
    async def scenario():
        async with serving(reply) as port, engine_over(port) as engine:
            await engine.submit(ask(max_tokens=6, **more))
            return [r async for _, r in engine.finished()]

    return asyncio.run(scenario())


def test_a_stream_that_breaks_off_is_taken_up_behind_its_tokens():
    asked = []

    async def reply(body, writer):
        asked.append(body)
        if len(asked) == 1:
            status(writer, 503)
        elif len(asked) == 2:
            events(writer, piece(7, 8))
        else:
            events(writer, piece(9, 2, finish="stop"))

    (rollout,) = play(reply)
    assert (rollout.token_ids, rollout.finish) == ((7, 8, 9, 2), "stop")
    first, _, last = asked
    assert last["token_ids"] == [*first["token_ids"], 7, 8]
    assert last["sampling_params"]["max_tokens"] == 4


def test_an_answer_that_never_comes_is_an_error_after_a_few_asks():
    asked = []

    async def reply(body, writer):
        asked.append(body)
        status(writer, 500)

    (rollout,) = play(reply)
    assert (rollout.finish, rollout.segments, len(asked)) == ("error", (), 1 + RETRIES)


def test_log_probs_that_vllm_clamps_are_no_numbers():
    async def reply(body, writer):
        events(writer, piece(7, 8), piece(9, 9, logprob=-9999.0), piece(9, 2, finish="stop"))

    (rollout,) = play(reply)
    assert (rollout.finish, rollout.token_ids) == ("error", (7, 8))


def test_an_answer_that_runs_on_behind_its_cancel_is_aborted_once_more():
    """The first abort may come before the request is there; a piece says that it is, and later ones say no more."""
    aborts = []
    first, second = asyncio.Event(), asyncio.Event()

    def aborted():
        aborts.append(True)
        (first if len(aborts) == 1 else second).set()

    async def reply(body, writer):
        await first.wait()
        events(writer, *[piece(7) for _ in range(5)])
        await writer.drain()
        await second.wait()
        writer.write(f"data: {json.dumps({'choices': [piece(finish='abort')]})}\n\n".encode())

    async def scenario():
        async with serving(reply, aborted) as port, engine_over(port) as engine:
            await engine.submit(ask(max_tokens=6))
            await engine.cancel(0)
            return [r async for _, r in engine.finished()]

    (rollout,) = asyncio.run(scenario())
    assert (rollout.finish, rollout.token_ids) == ("cancelled", (7,) * 5)
    assert len(aborts) == 2


def test_a_request_that_vllm_refuses_is_refused_by_all():
    async def reply(body, writer):
        status(writer, 400)

    with pytest.raises(EngineFailed, match="400 broken"):
        play(reply)


def test_a_failure_that_the_stream_reports_is_tried_again():
    asked = []

    async def reply(body, writer):
        asked.append(body)
        if len(asked) == 1:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            writer.write(b'data: {"error": {"message": "no luck"}}\n\n')
        else:
            events(writer, piece(7, 2, finish="stop"))

    (rollout,) = play(reply)
    assert (rollout.finish, rollout.token_ids) == ("stop", (7, 2))


def test_a_pair_prefills_on_one_server_and_decodes_on_the_other():
    asked = {}

    async def prefill(body, writer):
        asked["prefill"] = body
        said = json.dumps({"choices": [], "kv_transfer_params": {"remote_engine_id": "e"}}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(said) + said)

    async def decode(body, writer):
        asked["decode"] = body
        events(writer, piece(7, 8, 2, finish="stop"))

    async def scenario():
        async with (
            serving(prefill) as one,
            serving(decode) as other,
            engine_over(DisaggregatedPort(one, other)) as engine,
        ):
            await engine.submit(ask(max_tokens=6))
            return [r async for _, r in engine.finished()]

    (rollout,) = asyncio.run(scenario())
    assert rollout.token_ids == (7, 8, 2)
    first, second = asked["prefill"], asked["decode"]
    assert first["token_ids"] == second["token_ids"]
    assert (first["sampling_params"]["max_tokens"], second["sampling_params"]["max_tokens"]) == (1, 6)
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert second["kv_transfer_params"] == {"remote_engine_id": "e"}
    assert first["cache_salt"] == second["cache_salt"]
