"""The process that is forked for every program: started once in the jail, modules imported, nothing secret in it.

It is told ``{"start": id, "limits": {...}}`` with descriptors (input, output, errors, a channel, perhaps another
channel) or ``{"kill": id}``, and answers ``{"id", "status", "why"}`` when the program with all it started is gone.
It never reads what the programs are told: a program is a copy of this memory and would find it.

Each program gets namespaces of its own (processes, mounts, network, IPC), its own /proc, an empty /tmp and /dev/shm,
no capabilities and rlimits. It is process 1 of its namespace, so the kernel ends all that it started with it. Without
isolation only sessions, rlimits and the ending of descendants are left.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from . import kernel, program
from .filter import forbid_calls, prepare

_LOOK_EVERY = 0.05
"""Seconds between looks at what a tree of processes uses."""
_MAX_DESCRIPTORS = 8
_OTHERS = 4
"""Processes of the same user that are no program's: the jail's own two, the template, a program's partner."""


@dataclass
class Running:
    """A program and why it was ended, if it was."""

    id: int
    limits: Mapping[str, Any]
    scratch: str | None
    why: str = ""


def main() -> None:
    """Serve the control socket until it closes; ``sys.argv[1]`` says which it is and how isolated programs are.

    The first message names the user that programs run as.
    """
    settings = json.loads(sys.argv[1])
    control = socket.socket(fileno=settings["control"])
    user = json.loads(control.recv(1 << 16))["user"]
    kernel.adopt_orphans()
    program.import_usual_modules()
    if settings["isolated"]:
        prepare()
    sys.path[:] = [*(path for path in sys.path if path != settings["guest"]), *settings["paths"]]
    gc.collect()
    gc.freeze()
    namespace = os.open("/proc/self/ns/pid", os.O_RDONLY) if settings["isolated"] else None
    Template(control, namespace, user).serve()


class Template:
    """Forks, watches and reaps programs."""

    def __init__(self, control: socket.socket, namespace: int | None, user: int | None) -> None:
        self._control = control
        self._namespace = namespace
        self._user = user
        self._running: dict[int, Running] = {}
        self._ended = dict[int, int]()  # descriptor that tells of a process's end -> its id
        self._private = _private_memory(os.getpid())
        self._mapped = int(_read("/proc/self/statm").split()[0]) * os.sysconf("SC_PAGE_SIZE")

    def serve(self) -> None:
        """Do what is asked until the other side is gone."""
        self._control.send(b'{"ready": true}')
        while True:
            wait = _LOOK_EVERY if self._running else None
            ready, _, _ = select.select([self._control, *self._ended], [], [], wait)
            if self._control in ready and not self._obey():
                break
            for descriptor in ready:
                if isinstance(descriptor, int):
                    self._reap(descriptor)
            if not ready:
                self._look()
        for pid in self._running:
            self._end(pid, "")

    def _obey(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, _MAX_DESCRIPTORS)
        if not message:
            return False
        asked = json.loads(message)
        if "start" in asked:
            self._start(asked["start"], asked["limits"], descriptors)
        for pid, running in self._running.items():
            if running.id == asked.get("kill"):
                self._end(pid, running.why)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _start(self, id: int, limits: Mapping[str, Any], descriptors: list[int]) -> None:
        running = Running(id, limits, None if self._isolated else tempfile.mkdtemp(prefix="assay-program-"))
        trouble, theirs = os.pipe()
        if self._namespace is not None:
            kernel.unshare(kernel.NEWPID)
        pid = os.fork()
        if pid == 0:
            self._become_program(running, descriptors, theirs)
        if self._namespace is not None:
            kernel.rejoin_processes(self._namespace)
        os.close(theirs)
        with os.fdopen(trouble, "rb") as pipe:
            failure = pipe.read().decode()  # until the program has closed it: it is set up
        if failure:
            running.why = f"set-up: {failure}"
        self._running[pid] = running
        self._ended[os.pidfd_open(pid)] = pid

    @property
    def _isolated(self) -> bool:
        return self._namespace is not None

    def _become_program(self, running: Running, descriptors: list[int], trouble: int) -> NoReturn:
        try:
            high = [_above(descriptor) for descriptor in (*descriptors, trouble)]
            for number, descriptor in enumerate(high):
                os.dup2(descriptor, number)
            kernel.close_others(len(high))
            trouble = len(high) - 1
            if self._isolated:
                _isolate(running.limits, self._user)
            else:
                os.setsid()
                os.chdir(str(running.scratch))
            _limit(running.limits, self._mapped, self._isolated)
        except (OSError, ValueError) as error:
            os.write(trouble, str(error).encode())
            os._exit(1)
        os.close(trouble)
        program.run(peer=len(high) == 6)

    def _reap(self, descriptor: int) -> None:
        pid = self._ended.pop(descriptor)
        os.close(descriptor)
        running = self._running.pop(pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if running.scratch is not None:
            self._end_orphans()
            _remove(running.scratch)
        self._control.send(json.dumps({"id": running.id, "status": status, "why": running.why}).encode())

    def _look(self) -> None:
        """End programs whose processes together go beyond their limits."""
        children = _children()
        for pid, running in self._running.items():
            tree = list(_tree(pid, children))
            if _threads(tree) > running.limits["processes"]:
                self._end(pid, "processes")
            elif self._memory(tree) > running.limits["memory_mb"] << 20:
                self._end(pid, "memory")

    def _memory(self, tree: list[int]) -> int:
        """Bytes of the tree beyond the template's own; shared pages are told apart only where it matters."""
        quick = sum(max(_private_memory(pid) - self._private, 0) for pid in tree)
        return quick if len(tree) == 1 else min(quick, sum(_proportional_memory(pid) for pid in tree))

    def _end(self, pid: int, why: str) -> None:
        self._running[pid].why = self._running[pid].why or why
        for member in [pid] if self._isolated else list(_tree(pid, _children())):
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)

    def _end_orphans(self) -> None:
        """End what has outlived its program, where no namespace did it."""
        while True:
            children = _children()
            orphans = [pid for pid in children.get(os.getpid(), []) if pid not in self._running]
            for orphan in orphans:
                for member in _tree(orphan, children):
                    with suppress(ProcessLookupError):
                        os.kill(member, signal.SIGKILL)
            for orphan in orphans:
                with suppress(ChildProcessError):
                    os.waitpid(orphan, 0)
            if not orphans:
                return


def _isolate(limits: Mapping[str, Any], user: int | None) -> None:
    kernel.unshare(kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET)
    kernel.make_mounts_private()
    for place in ("/tmp", "/dev/shm"):
        kernel.mount("tmpfs", place, f"size={limits['scratch_mb']}m,mode=1777,nr_inodes=4096")
    kernel.mount("proc", "/proc", "subset=pid")
    os.chdir("/tmp")
    kernel.drop_privileges(user)
    forbid_calls()
    os.setsid()


def _limit(limits: Mapping[str, Any], mapped: int, isolated: bool) -> None:
    """Set rlimits. The one of processes counts all of the user's, so it means nothing where that is a real user."""
    memory = limits["memory_mb"] << 20
    seconds = int(limits["seconds"]) + 1
    for kind, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, limits["output_bytes"]),
        (resource.RLIMIT_NOFILE, limits["descriptors"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, min(memory, 256 << 20)),
        (resource.RLIMIT_NPROC, limits["processes"] + _OTHERS if isolated else resource.RLIM_INFINITY),
        (resource.RLIMIT_AS, memory + mapped),
    ):
        hard = resource.getrlimit(kind)[1]
        if resource.RLIM_INFINITY in (value, hard):
            value = hard if value == resource.RLIM_INFINITY else value
        else:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))


def _above(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 32)


def _children() -> dict[int, list[int]]:
    """Process ids by that of their parent."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _read(f"/proc/{name}/stat")):
            found.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    return found


def _tree(pid: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    waiting = [pid]
    while waiting:
        found = waiting.pop()
        yield found
        waiting += children.get(found, [])


def _threads(pids: list[int]) -> int:
    stats = (_read(f"/proc/{pid}/stat").rpartition(")")[2].split() for pid in pids)
    return sum(int(fields[17]) for fields in stats if len(fields) > 17)


def _private_memory(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _proportional_memory(pid: int) -> int:
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) << 10
    return 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def serve_or_tell() -> None:
    """Run :func:`main`; what fails is told on standard error, where the host reads it."""
    try:
        main()
    except Exception:  # the host must learn why, whatever it was
        traceback.print_exc()
        os._exit(1)
