"""A server process of our own: started on a free port of this machine, seen to be healthy, ended with all below it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from assay.errors import MissingExtra, UserError

REFUSAL = "assay-vllm: "
"""Begins the line by which `assay.rollout.vllm.server` says what the user can mend."""


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class ServerProcess:
    """A child in a session of its own, so that it and all its children can be ended at once.

    It holds the reading end of a pipe and ends when we do, however that comes.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: Path, python: str | None = None
    ) -> None:
        """Start ``python -m assay.rollout.vllm.server`` with vLLM's flags; what it says goes into ``log``."""
        self.port = free_port()
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [python or sys.executable, "-m", "assay.rollout.vllm.server", "serve", *arguments]
        command += ["--host=127.0.0.1", f"--port={self.port}"]
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._pipe: IO[bytes] | None = self._child.stdin

    @property
    def pid(self) -> int:
        """Of the process that listens."""
        return self._child.pid

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def running(self) -> bool:
        """Has it not ended?"""
        return self._child.poll() is None

    def ended(self) -> str:
        """How it ended, and what it said last, in one line. Raises UserError when that is the user's to mend."""
        lines = self._said()
        if any("No module named 'vllm'" in line or "No module named vllm" in line for line in lines):
            raise MissingExtra("rollout.engine: vllm_server", "vllm", "vllm")
        for line in lines:
            if line.startswith(REFUSAL):
                raise UserError(f"rollout.options: vLLM says: {line.removeprefix(REFUSAL)}")
        telling = [line for line in lines if "Error" in line] or lines or ["nothing"]
        return f"it ended with status {self._child.poll()}, saying {telling[-1][-300:]!r} (log: {self.log})"

    def kill(self) -> None:
        """End it and everything below it, whatever state they are in."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def stop(self, grace_s: float = 5.0) -> None:
        """Ask it to end, and end it with everything below it."""
        with contextlib.suppress(ProcessLookupError):
            self._child.terminate()
        deadline = time.monotonic() + grace_s
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(max(deadline - time.monotonic(), 0.0))
        self.kill()

    def _said(self) -> list[str]:
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return [line.strip() for line in text.splitlines()[-400:] if line.strip()]
