"""Both ends of the line between a benchmark and the programs that do its work.

A worker is a process of its own, in whichever environment, that loads what it needs, says that it is ready, and then
does one unit of work for each line of JSON on its standard input and answers with one line on its standard output. In
between it waits in a read, which costs no processor time, so that sides can take turns on one machine. This file is
imported in the environments of peers: standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any


class Worker:
    """The benchmark's end: starts the program, waits until it is ready, asks.

    What the program prints besides its answers goes to ``log``; ``environment`` is added to its variables. Raises
    SystemExit, with the last lines of the log, when the program ends unasked.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = log
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **environment},
            )
        self.about = self._answer()
        """What the program said of itself when it was ready."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def ask(self, request: str, **values: Any) -> dict[str, Any]:
        """Have one unit of work done; its answer."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: what there is to say of that is in the log
            print(json.dumps({"do": request, **values}), file=self._process.stdin, flush=True)
        return self._answer()

    def forget_peak(self) -> None:
        """Have `peak_mb` count from now on."""
        for process in _family(self._process.pid):
            Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")

    def peak_mb(self) -> float:
        """The most memory that the program and the processes that it started have had resident, each, summed; MB.

        Linux only, as `forget_peak`.
        """
        return sum(map(_peak_mb, _family(self._process.pid)))

    def processor_seconds(self) -> float:
        """Processor time that the program and the processes that it started have used so far."""
        return sum(map(_processor_seconds, _family(self._process.pid)))

    def close(self) -> None:
        """End the program; it sees that nobody will ask any more."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            told = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
            raise SystemExit("\n".join([*told, f"the {self.name} side ended with exit status {code}"]))
        return json.loads(line)


class Line:
    """The program's end. Standard output is taken for the answers: all that is printed goes to standard error."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def answer(self, values: Mapping[str, Any]) -> None:
        """Say that the work is done, and what came of it."""
        print(json.dumps(dict(values)), file=self._answers, flush=True)

    def next(self) -> dict[str, Any]:
        """Wait for the next request. Raises SystemExit when there is none to come."""
        line = sys.stdin.readline()
        if not line:
            raise SystemExit(0)
        return json.loads(line)


class Paced:
    """Holds a training loop between its steps until the next one is asked for, and times it.

    The loop calls `pause` before each step. ``report`` says what a step of so many seconds did, ``requests`` are what
    else may be asked for between steps, outside the clock.
    """

    def __init__(
        self,
        line: Line,
        report: Callable[[float], Mapping[str, Any]],
        requests: Mapping[str, Callable[..., None]],
    ) -> None:
        self._line = line
        self._report = report
        self._requests = requests
        self._began: float | None = None

    def pause(self) -> None:
        """Answer for the step that is done, and wait for the request to do the next. Raises SystemExit: see `Line`."""
        if self._began is None:
            self._line.answer({"ready": True})
        else:
            seconds = time.perf_counter() - self._began
            self._line.answer({"seconds": seconds, **self._report(seconds)})
        while True:
            request = self._line.next()
            wanted = request.pop("do")
            if wanted == "step":
                break
            self._requests[wanted](**request)
            self._line.answer({})
        self._began = time.perf_counter()


def _family(process: int) -> list[int]:
    """The ids of a process and of all that descend from it (Linux)."""
    found = [process]
    for thread in Path(f"/proc/{process}/task").iterdir():
        children = (thread / "children").read_text(encoding="ascii").split()
        found += [member for child in children for member in _family(int(child))]
    return found


def _peak_mb(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0.0)


def _processor_seconds(process: int) -> float:
    stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    user, system = stat.rpartition(")")[2].split()[11:13]  # the name before it may hold anything
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
