"""The few system calls that Python 3.11 has no function for."""

from __future__ import annotations

import ctypes
import os

NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
"""Kinds of namespaces."""

NOSUID_NODEV = 2 | 4
_PRIVATE = 1 << 18 | 1 << 14
_CAPBSET_DROP, _SET_SECUREBITS, _SET_NO_NEW_PRIVS, _SET_CHILD_SUBREAPER = 24, 28, 38, 36
_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL = 47, 4
_NO_ROOT_LOCKED = 0b11_11  # NOROOT and NO_SETUID_FIXUP, each locked

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(kinds: int) -> None:
    """Move this process (its future children, for process ids) into new namespaces."""
    _check(_libc.unshare(kinds), "unshare")


def rejoin_processes(namespace: int) -> None:
    """Have future children in this namespace of process ids again."""
    _check(_libc.setns(namespace, NEWPID), "setns")


def make_mounts_private() -> None:
    """Keep mounts of this namespace from showing in others."""
    _check(_libc.mount(None, b"/", None, _PRIVATE, None), "mount /")


def mount(kind: str, place: str, data: str) -> None:
    """Mount a file system that exists only here."""
    _check(_libc.mount(kind.encode(), place.encode(), kind.encode(), NOSUID_NODEV, data.encode()), f"mount {place}")


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent has ended."""
    _check(_libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def drop_privileges(user: int | None) -> None:
    """Give up every capability for good, and become ``user`` where another one is to be had."""
    for capability in range(64):
        if _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # beyond the kernel's last capability
    _check(_libc.prctl(_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl")
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    else:
        _check(_libc.prctl(_SET_SECUREBITS, _NO_ROOT_LOCKED, 0, 0, 0), "prctl")
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def close_others(keep: int) -> None:
    """Close every descriptor from ``keep`` upwards."""
    os.closerange(keep, 1 << 16)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
