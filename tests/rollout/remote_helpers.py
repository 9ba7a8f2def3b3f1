"""A server that fails, as a process, and exchanges that ask it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.records import Prompt, Rollout
from assay.rollout.engine import Limits, Request
from assay.rollout.remote.client import Client
from assay.rollout.remote.exchange import Exchange
from assay.rollout.remote.llama import LlamaDialect
from assay.rollout.sampling import Sampling

SERVER = Path(__file__).with_name("bad_token_server.py")


@dataclass(frozen=True)
class BadServer:
    """A running ``bad_token_server.py``."""

    port: int
    process: subprocess.Popen[str]

    def url(self, mode: str, number: int = 1) -> str:
        return f"http://127.0.0.1:{self.port}/{mode}/{number}"

    def told(self, what: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{what}/0") as reply:
            return json.load(reply)


@contextmanager
def bad_server() -> Iterator[BadServer]:
    process = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield BadServer(int(process.stdout.readline()), process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ask(id: int = 0, first: int = 4, n: int = 1, max_tokens: int = 5, **more: Any) -> Request:
    """A request whose prompt is one token; the bad server's answers count up from it."""
    return Request(id, Prompt(f"p{id}", (), "", (first,)), n, Sampling(max_tokens=max_tokens), **more)


def exchange_with(context: int | None = None, max_running: int = 8, timeout_s: float = 20.0, stop=()) -> Exchange:
    return Exchange(
        LlamaDialect(), Limits(context, max_running), frozenset(stop), str, timeout_s=timeout_s, backoff_s=0.001
    )


def answers_of(url: str, *wanted: Request, version: int = 3, key: str | None = None, **more: Any) -> list[Rollout]:
    """What comes of requests at a server, in the order of admission and index."""

    async def scenario() -> list[Rollout]:
        exchange = exchange_with(**more)
        exchange.resume(Client(url, timeout_s=exchange.timeout_s, key=key), version)
        try:
            for request in wanted:
                await exchange.submit(request)
            return [r for _, r in sorted([x async for x in exchange.finished()], key=lambda x: (x[0], x[1].index))]
        finally:
            await exchange.close()

    return asyncio.run(scenario())
