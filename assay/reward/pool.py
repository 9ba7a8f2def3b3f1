"""Worker processes that can be killed: a job that hangs or kills its worker costs that job and nothing else.

Chosen here: one process, one connection and one keeper thread per worker. A worker is a fresh interpreter
(not a fork of a parent that runs torch's threads, and not a re-run of the user's script) in a session of its
own, so that killing it kills what it started. The keeper hands its worker one job at a time, so a job's time
starts when the worker gets it, never while it waits in the queue. Nothing is shared between workers: killing
one at any instruction cannot corrupt or block another. Left out: retries and their meaning, which are the
scorer's.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe

from assay.errors import AssayError, UserError
from assay.reward.function import is_function
from assay.reward.verifier import Case, Judgement, Part
from assay.reward.worker import Ready, Setup

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from assay.reward.worker import main; main(int(sys.argv[1]))"
)
_LOAD_SECONDS = 300.0
"""Longest start of a worker: a user's file may import a large library."""


@dataclass(frozen=True)
class Answered:
    """The worker judged the cases."""

    judgements: list[Judgement]
    seconds: float


@dataclass(frozen=True)
class TimedOut:
    """The worker was killed because the job took longer than allowed."""

    seconds: float


@dataclass(frozen=True)
class Crashed:
    """The worker died of the job, or could not be started."""

    reason: str
    seconds: float


Reply = Answered | TimedOut | Crashed


@dataclass
class _Job:
    id: int
    part: int
    canary: bool
    cases: Sequence[Case]
    future: Future[Reply]


class PoolClosed(AssayError):
    """The pool was closed before it answered."""


class Pool:
    """``workers`` processes that each hold all ``parts``. Thread-safe; close it, or use it in ``with``.

    Raises :class:`UserError` from the constructor when the parts cannot be loaded.
    """

    def __init__(self, parts: Sequence[Part], *, workers: int, timeout_s: float) -> None:
        self._setup = Setup(tuple(parts), timeout_s, os.getpid())
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._ids = itertools.count()
        self._closed = threading.Event()
        self._keepers = [_Keeper(self._setup, os.getcwd(), self._jobs, self._closed) for _ in range(workers)]
        for keeper in self._keepers:
            keeper.thread.start()
        try:
            self.ready = self._keepers[0].first.result()
        except BaseException:
            self.close()
            raise

    def submit(self, part: int, cases: Sequence[Case], *, canary: bool = False) -> Future[Reply]:
        """Judge cases by the part of this index; ``canary`` puts surely right completions in their place."""
        if self._closed.is_set():
            raise PoolClosed("the reward workers are closed")
        job = _Job(next(self._ids), part, canary, cases, Future())
        self._jobs.put(job)
        if self._closed.is_set():  # closed in between, perhaps after the queue was emptied
            job.future.cancel()
        return job.future

    def processes(self) -> list[int]:
        """Process ids of the workers."""
        running = (keeper.process for keeper in self._keepers)
        return [process.pid for process in running if process is not None]

    def close(self) -> None:
        """Kill the workers, fail what is unanswered, wait until no process is left. May be called twice."""
        self._closed.set()
        for keeper in self._keepers:
            self._jobs.put(None)
            keeper.kill()
        for keeper in self._keepers:
            keeper.thread.join()
        with suppress(queue.Empty):
            while True:
                _refuse(self._jobs.get_nowait())

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse(job: _Job | None) -> None:
    if job is not None and job.future.set_running_or_notify_cancel():
        job.future.set_exception(PoolClosed("the reward workers were closed"))


@dataclass
class _Keeper:
    """One thread that owns one worker process: starts it, feeds it, kills it, replaces it.

    A worker is taken for dead when its connection hangs up, never by waiting for it: so its process id stays
    reserved until :meth:`kill` has killed its session.
    """

    setup: Setup
    folder: str
    jobs: queue.SimpleQueue[_Job | None]
    closed: threading.Event
    first: Future[Ready] = field(default_factory=Future)
    """Resolves once the first start succeeded or failed."""
    process: subprocess.Popen[bytes] | None = None
    connection: Connection | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a process is started or killed, so that closing cannot miss one."""

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name="assay-reward", daemon=True)

    def _run(self) -> None:
        try:
            self.first.set_result(self._start())
        except (AssayError, OSError) as error:
            self.first.set_exception(error)
        while (job := self.jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            reply = self._work(job)
            if self.closed.is_set() and not isinstance(reply, Answered):
                job.future.set_exception(PoolClosed("the reward workers were closed"))
            else:
                job.future.set_result(reply)
            if self._is_dead() and not self.closed.is_set():
                with suppress(AssayError, OSError):  # warm a successor; should it fail, the next job says why
                    self._start()
        self.kill()
        if self.connection is not None:
            self.connection.close()

    def _work(self, job: _Job) -> Reply:
        began = time.perf_counter()
        try:
            if self._is_dead():
                self._start()
        except (AssayError, OSError) as error:
            return Crashed(f"no worker could be started: {error}", time.perf_counter() - began)
        assert self.connection is not None
        began = time.perf_counter()
        try:
            self.connection.send((job.id, job.part, job.canary, tuple(job.cases)))
            if not self.connection.poll(self.setup.timeout_s):
                status = self.kill()
                seconds = time.perf_counter() - began
                return TimedOut(seconds) if status == -signal.SIGKILL else Crashed(_cause(status), seconds)
            answered, judgements, seconds = self.connection.recv()
        except (EOFError, OSError):
            return Crashed(_cause(self.kill()), time.perf_counter() - began)
        except Exception as error:  # what cannot be pickled, here or there, is the job's fault
            self.kill()
            return Crashed(f"{type(error).__name__}: {error}", time.perf_counter() - began)
        if answered != job.id:
            self.kill()
            return Crashed(f"the worker answered job {answered} instead of {job.id}", seconds)
        return Answered(judgements, seconds)

    def _start(self) -> Ready:
        """Start a worker and wait until its parts are loaded; UserError or AssayError says why not."""
        self.kill()
        try:
            ready = self._greet(self._spawn())
        except (EOFError, OSError):
            raise AssayError(f"a reward worker died while loading: {_cause(self.kill())}") from None
        except Exception as error:  # a setup or an answer that cannot be pickled
            self.kill()
            raise AssayError(f"a reward worker could not be set up: {type(error).__name__}: {error}") from error
        if ready.refusal:
            self.kill()
            raise UserError(ready.refusal) if ready.user_error else AssayError(ready.refusal)
        return ready

    def _spawn(self) -> Connection:
        with self.lock:
            if self.closed.is_set():
                raise EOFError
            if self.connection is not None:
                self.connection.close()
            self.connection, theirs = Pipe()
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps([str(p) for p in sys.path])],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.folder,
                env=_environment(self.setup.parts),
            )
            theirs.close()
            return self.connection

    def _greet(self, connection: Connection) -> Ready:
        connection.send(self.setup)
        if not connection.poll(_LOAD_SECONDS):
            return Ready(refusal=f"the reward functions did not load within {_LOAD_SECONDS:.0f} s", user_error=True)
        return connection.recv()

    def kill(self) -> int | None:
        """Kill the worker with all it started; the exit status it had by itself, or ``-SIGKILL``."""
        with self.lock:
            if self.process is None:
                return None
            with suppress(subprocess.TimeoutExpired):
                # One whose connection broke is about to exit: let its own status be seen.
                self.process.wait(5 if self._hung_up() and not self.closed.is_set() else 0)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            status, self.process = self.process.wait(), None
            return status

    def _is_dead(self) -> bool:
        return self.process is None or self._hung_up()

    def _hung_up(self) -> bool:
        """Between jobs a worker says nothing: a connection that can be read is one that ended."""
        try:
            return self.connection is None or self.connection.poll(0)
        except OSError:
            return True


def _cause(status: int | None) -> str:
    """What an exit status says.

    >>> _cause(1), _cause(-11)
    ('the worker exited with status 1', 'the worker died of SIGSEGV')
    """
    if status is not None and status < 0:
        return f"the worker died of {signal.Signals(-status).name}"
    return f"the worker exited with status {status}"


def _environment(parts: Sequence[Part]) -> dict[str, str]:
    """Sets iterate alike in every worker; built-in verifiers get one thread: the trainer has the cores."""
    alone = {} if any(is_function(part.verifier) for part in parts) else {"OMP_NUM_THREADS": "1"}
    return {**alone, **os.environ, "PYTHONHASHSEED": "0"}
