"""Who started vLLM holds a lock on a file; its workers wait for that lock, and end vLLM when they get it.

The system lets go of a lock when its holder dies, however that comes. vLLM's core, which would run on without us, has
no other way of knowing.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from pathlib import Path

VARIABLE = "ASSAY_VLLM_LIFELINE"
"""Holds ``PID:PATH``: whose death is waited for, and the file."""


class Lifeline:
    """The starter's end: the lock is ours until `release`, or until we die."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lifeline"
        self._file = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    @property
    def environment(self) -> dict[str, str]:
        """What vLLM's processes must know."""
        return {VARIABLE: f"{os.getpid()}:{self.path}"}

    def release(self) -> None:
        """Let go: vLLM has ended, or is to end."""
        os.close(self._file)


def follow() -> None:
    """A worker's end: it ends when the starter does, and so does the process above it where that is vLLM's."""
    starter, _, path = os.environ.get(VARIABLE, "").partition(":")
    if path and os.path.exists(path):
        threading.Thread(target=_wait, args=(int(starter), path, os.getppid()), daemon=True).start()


def _wait(starter: int, path: str, parent: int) -> None:
    file = os.open(path, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    if parent not in (starter, 1) and os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
