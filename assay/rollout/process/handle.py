"""A generation process as its parent holds it: started, killed, asked what it died of."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from assay.rollout.process.child import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)


class Handle:
    """A fresh interpreter that runs `assay.rollout.process.child`, in a session of its own.

    (An interrupt from the terminal is then for the parent alone, and killing the session kills all that it started.)
    """

    def __init__(self, end: socket.socket, memory: int, threads: int) -> None:
        """``end``: its end of the connection, closed here. ``memory``: the board's descriptor. Raises OSError."""
        with end, tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(end.fileno()), str(memory), json.dumps([str(p) for p in sys.path])],
                pass_fds=[end.fileno(), memory],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": "0"},
            )
            self._errors = os.dup(errors.fileno())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def death(self) -> str:
        """What became of one that has hung up: its exit status, and its last words."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)  # it is about to exit
        status = self._process.poll()
        size = os.fstat(self._errors).st_size
        words = os.pread(self._errors, 4096, max(0, size - 4096)).decode(errors="replace").strip().splitlines()
        how = "hung up" if status is None else _cause(status)
        return f"{how}: {words[-1][:200]}" if words else how

    def kill(self) -> None:
        """End it, and wait until it is gone; once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._errors)


def _cause(status: int) -> str:
    """What an exit status says.

    >>> _cause(1), _cause(-9)
    ('exited with status 1', 'died of SIGKILL')
    """
    return f"died of {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
