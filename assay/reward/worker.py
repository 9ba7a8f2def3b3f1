"""The inside of a worker process: loads the parts once, then judges what it is sent until the pool or its
parent is gone.

A job is ``(id, part index, cases)``, its reply ``(id, judgements, seconds)``. The first message is the
:class:`Setup`, its reply a :class:`Ready`. Three things end a worker: the pool's kill signal, the parent's
death (a thread watches the parent's id, and the main thread the connection), and, should the parent die
while C code holds the interpreter lock, an alarm of the C level that stands beside every job.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import threading
import time
import types
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from assay.errors import UserError
from assay.reward.function import describe_error, is_function, load_function
from assay.reward.verifier import Case, Judgement, LoadedPart, Part, verifier_error, verifiers

_MEMORY = 4 << 30
"""Bytes of address space for workers of built-in verifiers only: no expression may take the machine."""
_PARENT_CHECK = 0.5
"""Seconds between looks at the parent's id."""


@dataclass(frozen=True)
class Setup:
    """What a worker is told first."""

    parts: tuple[Part, ...]
    timeout_s: float
    parent: int
    """Process id of the pool."""


@dataclass(frozen=True)
class Ready:
    """What a worker answers: what its parts want, or why it refuses to work."""

    per_group: tuple[bool, ...] = ()
    wants_ids: tuple[bool, ...] = ()
    lowest: tuple[float, ...] = ()
    refusal: str = ""
    user_error: bool = False
    """Is the refusal the user's to mend?"""


def load(part: Part, modules: dict[str, types.ModuleType]) -> LoadedPart:
    """A part ready to judge; UserError for an unknown verifier, bad options or a bad function."""
    if is_function(part.verifier):
        return load_function(part, modules)
    verifier = verifiers[part.verifier](part.options)
    return LoadedPart(
        lambda cases: [verifier(case) for case in cases],
        canary=getattr(verifier, "canary", str),
        lowest=getattr(verifier, "lowest", 0.0),
    )


def judge(part: LoadedPart, cases: Sequence[Case]) -> list[Judgement]:
    """Judge the cases; whatever the verifier raises becomes a ``verifier_error`` of each."""
    try:
        return part.judge(cases)
    except (Exception, SystemExit) as error:  # third-party code may raise anything
        return [verifier_error(describe_error(error))] * len(cases)


def canary_cases(part: LoadedPart, cases: Sequence[Case]) -> list[Case]:
    """The same cases with completions that are surely right (and no thinking left open by the prompt)."""
    return [
        replace(
            case,
            completion=part.canary("" if case.gold is None else case.gold),
            prompt=case.prompt.rstrip().removesuffix("<think>"),
            tokens=1,
            finish="stop",
            token_ids=case.token_ids[:1],
        )
        for case in cases
    ]


def main(descriptor: int) -> None:
    """Serve the connection of this file descriptor until it closes."""
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    setup: Setup = connection.recv()
    threading.Thread(target=_follow_parent, args=(setup.parent,), daemon=True).start()
    _limit(setup.parts)
    modules: dict[str, types.ModuleType] = {}
    try:
        parts = [load(part, modules) for part in setup.parts]
    except UserError as error:
        connection.send(Ready(refusal=str(error), user_error=True))
        return
    except Exception as error:
        connection.send(Ready(refusal=describe_error(error)))
        return
    connection.send(
        Ready(tuple(p.per_group for p in parts), tuple(p.wants_ids for p in parts), tuple(p.lowest for p in parts))
    )
    with suppress(EOFError, ConnectionError), open(os.devnull, "w") as nowhere:
        while True:
            job, index, canary, cases = connection.recv()
            faulthandler.dump_traceback_later(2 * setup.timeout_s + 1, exit=True, file=nowhere)
            began = time.perf_counter()
            judgements = judge(parts[index], canary_cases(parts[index], cases) if canary else cases)
            seconds = time.perf_counter() - began
            faulthandler.cancel_dump_traceback_later()
            connection.send((job, judgements, seconds))
    _end_session()


def _limit(parts: Sequence[Part]) -> None:
    """Numbers of any length; bounded memory for built-ins; first to go when the machine is out of it."""
    sys.set_int_max_str_digits(0)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    if not any(is_function(part.verifier) for part in parts):
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _follow_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK)
    _end_session()


def _end_session() -> None:
    """End this process and whatever a user's function started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
