"""System calls that programs may not make: those that make namespaces, and memory that no limit counts.

A seccomp filter, built by hand: an unknown machine is refused, a call on the list fails with EPERM, ``clone`` fails
where it asks for a namespace. ``clone3``, whose flags a filter cannot see, is said not to exist: C libraries fall back.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from functools import cache

_CALLS = (
    # name, x86-64, ARM64
    ("shmget", 29, 194),
    ("semget", 64, 190),
    ("msgget", 68, 186),
    ("ptrace", 101, 117),
    ("pivot_root", 155, 41),
    ("mount", 165, 40),
    ("umount2", 166, 39),
    ("mq_open", 240, 180),
    ("add_key", 248, 217),
    ("request_key", 249, 218),
    ("keyctl", 250, 219),
    ("unshare", 272, 97),
    ("perf_event_open", 298, 241),
    ("open_by_handle_at", 304, 265),
    ("setns", 308, 268),
    ("process_vm_readv", 310, 270),
    ("process_vm_writev", 311, 271),
    ("bpf", 321, 280),
    ("userfaultfd", 323, 282),
    ("io_uring_setup", 425, 425),
    ("open_tree", 428, 428),
    ("move_mount", 429, 429),
    ("fsopen", 430, 430),
    ("fsmount", 432, 432),
)
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_OTHER_ABI = 0x40000000
"""From here on, numbers of x86-64's second set of calls."""
_NEW_NAMESPACES = 0x7E020000 | 0x00000080
"""Flags of ``clone`` that ask for a namespace of any kind."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_SET_SECCOMP, _FILTER = 22, 2
_STEP_BYTES = 8

Step = tuple[int, int, int, int]
"""An instruction: code, steps to skip if true, if false, and its operand."""


@cache
def prepare() -> ctypes.Array[ctypes.c_char]:
    """The filter as the kernel takes it, made once for all programs; OSError on a machine that it is not for."""
    machine = platform.machine()
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"programs are isolated on x86-64 and ARM64, not on {machine}")
    code = b"".join(struct.pack("=HBBI", *step) for step in _filter(machine))
    return ctypes.create_string_buffer(code, len(code))


def forbid_calls() -> None:
    """Install the filter for this process and all that it starts; OSError where that cannot be done."""
    code = prepare()
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code) // _STEP_BYTES, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp: the filter of system calls was refused")


def _filter(machine: str) -> list[Step]:
    column = 1 if machine == "x86_64" else 2
    steps: list[Step] = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, _MACHINES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_refused_if(_AT_LEAST, _OTHER_ABI, errno.ENOSYS),
        *_refused_if(_EQUAL, _CLONE3, errno.ENOSYS),
    ]
    for call in _CALLS:
        steps += _refused_if(_EQUAL, int(call[column]), errno.EPERM)
    steps += [(_EQUAL, 0, 3, _CLONE[machine]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    steps += [*_refused_if(_ANY_BIT, _NEW_NAMESPACES, errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return steps


def _refused_if(test: int, operand: int, error: int) -> list[Step]:
    return [(test, 0, 1, operand), (_RETURN, 0, 0, _FAIL | error)]
