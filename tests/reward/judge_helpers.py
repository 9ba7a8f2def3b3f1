"""Servers that fail, started as processes, and judges that ask them."""

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

from assay.reward.verifier import Case, Judgement, verifiers

BAD_SERVER = Path(__file__).with_name("bad_server.py")


@dataclass(frozen=True)
class BadServer:
    """A running `bad_server.py`."""

    port: int
    raw_port: int
    process: subprocess.Popen[str]

    def url(self, mode: str, number: int = 1) -> str:
        port = self.raw_port if mode in ("reset", "drip") else self.port
        return f"http://127.0.0.1:{port}/{mode}/{number}"

    def counts(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/counts") as reply:
            return json.load(reply)


@contextmanager
def bad_server() -> Iterator[BadServer]:
    process = subprocess.Popen([sys.executable, str(BAD_SERVER)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port, raw_port = json.loads(process.stdout.readline())
        server = BadServer(port, raw_port, process)
        server.counts()  # it serves
        yield server
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def options(*urls: str, **more: Any) -> dict[str, Any]:
    """Options of ``judge`` that lose no time."""
    quick = {"backoff_s": 0.001, "timeout_s": 5.0, "cooldown_s": 0.05, "template": "{{ completion }}"}
    return {"urls": list(urls), "models": ["m"], **quick, **more}


def ask(verifier: Any, *cases: Case) -> list[Judgement]:
    """Judge each case in one event loop, all at once; the connections are closed."""

    async def asked() -> list[Judgement]:
        try:
            return await verifier.judge(cases)
        finally:
            await verifier.close()

    return asyncio.run(asked())


def judge_of(*urls: str, verifier: str = "judge", **more: Any) -> Any:
    return verifiers[verifier](options(*urls, **more))


def worth(n: int) -> Case:
    return Case(completion=f"worth={n}", prompt="How much?")
