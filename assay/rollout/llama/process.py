"""A llama.cpp server in a process of its own: started on a file, watched, stopped."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import AssayError, UserError

SERVE = Path(__file__).with_name("serve.py")
_PATIENCE_S = 10.0
"""How long a server that was told to stop may take before it is killed."""


@dataclass(frozen=True)
class Settings:
    """How servers are started: with the package xllamacpp, or a program of the user's."""

    params: Mapping[str, Any]
    """Fields of ``xllamacpp.CommonParams``; with a program, flags without their dashes."""
    binary: str | None = None
    """A ``llama-server`` program; absent: the package."""
    log: Path | None = None
    """What it prints is added there; absent: beside the file that it serves."""

    def message(self, model: Path) -> dict[str, Any]:
        """What ``serve`` is told."""
        told: dict[str, Any] = {"folder": str(model.parent)}
        if self.binary is None:
            return told | {"model": str(model), "params": dict(self.params)}
        port = _free_port()
        command = [self.binary, "--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
        for name, value in self.params.items():
            flag = "--" + name.replace("_", "-")
            command += [flag] if value is True else [flag, str(value)]
        return told | {"command": command, "url": f"http://127.0.0.1:{port}"}


class Server:
    """A running server. Made by `start_server`."""

    def __init__(self, url: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.url, self._process, self._log = url, process, log
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def watch(self, tell: Callable[[AssayError], None]) -> None:
        """Call ``tell`` when the process ends by itself."""

        async def follow() -> None:
            status = await self._process.wait()
            tell(AssayError(f"llama-server ended with exit status {status}{_last_words(self._log)}"))

        self._watch = asyncio.create_task(follow())

    async def stop(self) -> None:
        """Stop it, gently if possible, and wait for its end."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await _stop(self._process)


async def start_server(settings: Settings, model: Path, timeout_s: float) -> Server:
    """Start a server on a GGUF file and wait until it answers.

    Raises UserError for options that it does not know, AssayError when it ends or says nothing for ``timeout_s``.
    """
    log = settings.log or model.with_suffix(".log")
    with open(log, "ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", str(SERVE)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # an interrupt at the terminal is for the trainer, which then stops it
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(settings.message(model)).encode() + b"\n")
        line = await asyncio.wait_for(process.stdout.readline(), timeout_s)
        answer = json.loads(line) if line else {"error": f"it ended with exit status {await process.wait()}"}
        if "error" in answer:
            kind = UserError if answer.get("user") else AssayError
            where = "rollout.options" if answer.get("user") else "llama-server does not start"
            raise kind(f"{where}: {answer['error']}{'' if answer.get('user') else _last_words(log)}")
    except TimeoutError:
        await _stop(process)
        raise AssayError(f"llama-server did not come up within {timeout_s:g} s (rollout.timeout_s)") from None
    except BaseException:
        await _stop(process)
        raise
    return Server(answer["url"], process, log)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None and process.stdin is not None:
        with suppress(ConnectionError):
            process.stdin.write(b"stop\n")
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _PATIENCE_S)
        except TimeoutError:
            process.kill()
    await process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _last_words(log: Path) -> str:
    """The end of a server's log, for an error."""
    with suppress(OSError):
        words = " ".join(log.read_text(encoding="utf-8", errors="replace").split())[-200:]
        return f"; its last words: {words}" if words else ""
    return ""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
