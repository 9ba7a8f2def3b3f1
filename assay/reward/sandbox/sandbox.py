"""Runs programs apart: a script with its input, or functions with the tests that call them from another process."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from assay.reward.sandbox.guest.wire import Broken, Channel
from assay.reward.sandbox.jail import package_folders
from assay.reward.sandbox.limits import Limits
from assay.reward.sandbox.template import Ended, Isolation, Template

End = Literal["exit", "timeout", "memory", "processes"]
Result = Literal["passed", "failed", "crashed", "timeout", "broken"]

_LAST_WORDS = 500
_GRACE = 1.0
"""Seconds that a program whose connection ended has to end as well, so that its status is known."""


@dataclass(frozen=True)
class Ran:
    """What a script did."""

    end: End
    """How it ended: by itself, at the time limit, or beyond the memory or the processes it may have."""
    status: int
    """Exit status; negative: the signal that ended it."""
    output: bytes
    """Standard output, up to the limit."""
    errors: str
    """The last of standard error."""
    seconds: float


@dataclass(frozen=True)
class Tested:
    """What the tests found: ``broken`` is the tests' own fault, everything else the program's doing."""

    result: Result
    message: str = ""


class Sandbox:
    """A place to run programs of the model, one at a time. For one thread; close it, or use it in ``with``.

    ``packages``: names of installed Python packages that programs may import, beside the standard library. Raises
    :class:`~assay.reward.sandbox.jail.NoSandbox` where programs cannot be isolated, MissingExtra without bubblewrap.
    """

    def __init__(self, isolation: Isolation = "bwrap", packages: Sequence[str] = ()) -> None:
        folders = package_folders(packages)
        self._start = lambda: Template(isolation, folders)
        self._template: Template | None = self._start()

    def run_script(self, source: str, stdin: bytes, limits: Limits) -> Ran:
        """Run a source as ``__main__`` with this input. Raises SandboxBroken when the sandbox itself fails."""
        with ExitStack() as stack, self._whole() as template:
            given, output, errors = (stack.enter_context(_memory_file(data)) for data in (stdin, b"", b""))
            ours, theirs = socket.socketpair()
            with ours:
                began = time.monotonic()
                with theirs:
                    program = template.start(limits, [given, output, errors, theirs.fileno()])
                with suppress(Broken):
                    Channel(ours).send({"mode": "script", "source": source})
                ended = template.wait(program, began + limits.seconds)
                timed_out = ended is None
                if ended is None:
                    ended = template.kill(program)
            return Ran(
                _end(ended, timed_out),
                ended.status,
                os.pread(output, limits.output_bytes, 0),
                _tail(errors),
                time.monotonic() - began,
            )

    def run_tests(
        self, source: str, tests: str, entry_point: str | None, limits: Limits, tolerance: float = 0.0
    ) -> Tested:
        """Run Python tests (asserts, ``check(candidate)``, unittest) against the functions that a source defines.

        The two run in sandboxes of their own and exchange plain data. Raises SandboxBroken when a sandbox fails.
        """
        job = {"mode": "tests", "source": tests, "entry_point": entry_point, "tolerance": tolerance}
        with ExitStack() as stack, self._whole() as template:
            nothing = stack.enter_context(_memory_file(b""))
            words = [stack.enter_context(_memory_file(b"")) for _ in range(2)]
            program_end, peer_end = socket.socketpair()
            ours, theirs = socket.socketpair()
            with ours:
                deadline = time.monotonic() + limits.seconds
                with program_end, peer_end, theirs:
                    program = template.start(limits, [nothing, words[0], words[0], program_end.fileno()])
                    program_end.close()
                    with suppress(Broken):
                        Channel(peer_end).send({"mode": "functions", "source": source})
                    trusted = replace(limits, seconds=2 * limits.seconds + 5, memory_mb=max(limits.memory_mb, 1024))
                    judge = template.start(trusted, [nothing, words[1], words[1], theirs.fileno(), peer_end.fileno()])
                watch = _Watch(template, program, judge, Channel(ours), deadline, limits.seconds)
                try:
                    with suppress(Broken):
                        watch.channel.send(job)
                    return watch.follow()
                finally:
                    if not watch.judge_ended:
                        template.kill(judge)
                    if not watch.program_ended:
                        template.kill(program)

    @contextmanager
    def _whole(self) -> Iterator[Template]:
        """The template, a new one where the last was lost; lost again if anything goes wrong with it."""
        if self._template is None:
            self._template = self._start()
        try:
            yield self._template
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all programs. The sandbox starts anew when it is used again."""
        template, self._template = self._template, None
        if template is not None:
            template.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class _Watch:
    """Follows the tests until they have a result, the time is up, or one side is gone."""

    template: Template
    program: int
    judge: int
    channel: Channel
    deadline: float
    seconds: float
    loaded: bool = False
    called: bool = False
    program_ended: bool = False
    judge_ended: bool = False

    def follow(self) -> Tested:
        while True:
            left = self.deadline - time.monotonic()
            ready, _, _ = select.select([self.channel, self.template.control], [], [], max(left, 0))
            if not ready:
                return self._too_late()
            if self.channel in ready:
                try:
                    told = self.channel.receive()
                except Broken:
                    return self._judge_gone()
                if (tested := self._take(told)) is not None:
                    return tested
            elif self.template.control in ready:
                self.template.hear()

    def _take(self, told: dict[str, Any]) -> Tested | None:
        if told.get("event") == "again":
            self.deadline += self.seconds
        self.loaded |= told.get("event") == "loaded"
        self.called |= told.get("event") == "called"
        result, message = told.get("result"), told.get("message", "")
        if result == "gone":
            return self._program_gone(message)
        if result == "load":
            return Tested("crashed", f"the program does not load: {message}")
        if result == "missing":
            return Tested("failed", message)
        return None if result is None else Tested(result, message)

    def _too_late(self) -> Tested:
        if self.loaded and not self.called:
            return Tested("broken", f"the tests did not call the program within {self.seconds:g} s")
        return Tested("timeout", f"not done within {self.seconds:g} s")

    def _program_gone(self, message: str) -> Tested:
        ended = self.template.wait(self.program, time.monotonic() + _GRACE)
        self.program_ended = ended is not None
        if ended is None:
            return Tested("crashed", message)
        end = _end(ended, timed_out=False)
        if end == "timeout":
            return Tested("timeout", "out of processor time")
        return Tested("crashed", describe_end(end, ended.status))

    def _judge_gone(self) -> Tested:
        """The tests' process ended without a word: after the first call, by what the program made it hold."""
        ended = self.template.wait(self.judge, time.monotonic() + _GRACE)
        self.judge_ended = ended is not None
        if self.called or not self.loaded:
            return Tested("crashed", "the tests' process ended on what the program returned")
        return Tested("broken", "the tests end their own process")


def describe_end(end: End, status: int) -> str:
    """How a program ended, in words.

    >>> describe_end("exit", 1), describe_end("exit", -9), describe_end("memory", -9)
    ('exit status 1', 'ended by signal 9', 'more memory than allowed')
    """
    if end == "memory" or end == "processes":
        return f"more {end} than allowed"
    if end == "timeout":
        return "out of time"
    return f"ended by signal {-status}" if status < 0 else f"exit status {status}"


def _end(ended: Ended, timed_out: bool) -> End:
    if ended.why == "memory":
        return "memory"
    if ended.why == "processes":
        return "processes"
    return "timeout" if timed_out or ended.status == -24 else "exit"  # 24: SIGXCPU


@contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("assay", os.MFD_CLOEXEC)
    try:
        if data:
            os.write(descriptor, data)
            os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, _LAST_WORDS, max(size - _LAST_WORDS, 0)).decode(errors="replace")


@cache
def shared_sandbox(isolation: Isolation, packages: tuple[str, ...]) -> Sandbox:
    """The one sandbox of this process with these settings; it ends with the process."""
    return Sandbox(isolation, packages)
