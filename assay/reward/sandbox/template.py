"""The host's side of a template process: starts it, has it start and kill programs, hears how they ended."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import IO, Any, Literal

from assay.errors import AssayError
from assay.reward.sandbox import jail
from assay.reward.sandbox.limits import Limits

Isolation = Literal["bwrap", "none"]
"""``bwrap``: namespaces, no capabilities, nothing of the host in sight. ``none``: rlimits only, for trusted code."""

_START_SECONDS = 30.0
_KILL_SECONDS = 20.0


class SandboxBroken(AssayError):
    """The sandbox itself failed: no program's fault."""


@dataclass(frozen=True)
class Ended:
    """How a program ended, with all that it started."""

    status: int
    """Exit status; negative: the signal that ended it."""
    why: str = ""
    """``memory`` or ``processes`` where the watch ended it."""


class Template:
    """One template process and the programs that it was asked to start. For one thread; close it."""

    def __init__(self, isolation: Isolation, packages: Sequence[str] = ()) -> None:
        jail.check_platform()
        self._ids = 0
        self._ended: dict[int, Ended] = {}
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = jail.boot(theirs.fileno(), isolation == "bwrap", packages)
            try:
                if isolation == "bwrap":
                    self._process, user = self._jailed(command, theirs.fileno(), packages)
                else:
                    self._process, user = self._spawn(command, [theirs.fileno()], False), None
                self.control.send(json.dumps({"user": user}).encode())
            except OSError as error:
                self.close()
                raise jail.NoSandbox(jail.explain(self._last_words() or str(error))) from None
        self._greet(isolation)

    def _jailed(self, command: Sequence[str], control: int, packages: Sequence[str]) -> tuple[Any, int | None]:
        """Start bubblewrap, and write its map of users while it waits."""
        with ExitStack() as open_ends:
            ours_info, info = os.pipe()
            block, ours_block = os.pipe()
            for descriptor in (info, block):
                open_ends.callback(os.close, descriptor)
            waiting = ["--info-fd", str(info), "--userns-block-fd", str(block)]
            line = [*jail.jail_command(packages), *waiting, "--", *command]
            with os.fdopen(ours_block, "wb", buffering=0) as go, os.fdopen(ours_info, "rb", buffering=0) as told:
                process = self._process = self._spawn(line, [control, info, block], True)
                open_ends.close()
                found = b""
                while not found.rstrip().endswith(b"}") and (more := told.read(4096)):
                    found += more
                if not found:
                    process.wait()
                    raise OSError(self._last_words())
                user = jail.map_users(json.loads(found)["child-pid"])
                go.write(b"1")
        return process, user

    def _spawn(self, line: Sequence[str], passed: Sequence[int], isolated: bool) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=passed,
            env=jail.environment(isolated),
            cwd="/",
        )

    def _greet(self, isolation: Isolation) -> None:
        ready, _, _ = select.select([self.control], [], [], _START_SECONDS)
        if not (ready and self._receive()):
            self.close()
            words = self._last_words()
            raise jail.NoSandbox(jail.explain(words)) if isolation == "bwrap" else SandboxBroken(words)

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def start(self, limits: Limits, descriptors: Sequence[int]) -> int:
        """Start a program with these descriptors as 0, 1, 2, ...; its number."""
        self._ids += 1
        message = json.dumps({"start": self._ids, "limits": asdict(limits)}).encode()
        try:
            socket.send_fds(self.control, [message], list(descriptors))
        except OSError as error:
            raise SandboxBroken(f"the sandbox is gone: {error.strerror}") from None
        return self._ids

    def kill(self, program: int) -> Ended:
        """End a program with all it started; how it ended, if it had."""
        if program not in self._ended:
            try:
                self.control.send(json.dumps({"kill": program}).encode())
            except OSError as error:
                raise SandboxBroken(f"the sandbox is gone: {error.strerror}") from None
        ended = self.wait(program, time.monotonic() + _KILL_SECONDS)
        if ended is None:
            raise SandboxBroken("a program could not be ended")
        return ended

    def wait(self, program: int, deadline: float) -> Ended | None:
        """How a program ended; None when it has not by ``deadline`` (of the monotonic clock)."""
        while program not in self._ended:
            ready, _, _ = select.select([self.control], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                return None
            self.hear()
        return self._ended.pop(program)

    def has_ended(self, program: int) -> bool:
        """Is its end known already?"""
        return program in self._ended

    def hear(self) -> None:
        """Take in what the template has to say; SandboxBroken when it is gone or could not set a program up."""
        told = self._receive()
        if told is None:
            raise SandboxBroken(f"the sandbox ended: {self._last_words()[-300:]}")
        if told["why"].startswith("set-up"):
            raise SandboxBroken(f"a program could not be set up: {told['why']}")
        self._ended[told["id"]] = Ended(told["status"], told["why"])

    def _receive(self) -> Mapping[str, Any] | None:
        try:
            message = self.control.recv(1 << 16)
        except OSError:
            return None
        return json.loads(message) if message else None

    def close(self) -> None:
        """End the template and every program. May be called twice."""
        self.control.close()
        process: subprocess.Popen[bytes] | None = getattr(self, "_process", None)
        if process is not None:
            try:
                process.wait(_KILL_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
