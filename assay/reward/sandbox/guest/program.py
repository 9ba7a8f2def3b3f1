"""One program, in a process of its own: a script, functions that are called from outside, or the tests that call them.

Descriptors: 0 to 2 as ever; 3 the channel that brings the source; 4, for tests, the channel to the functions.
"""

from __future__ import annotations

import atexit
import importlib
import os
import site
import socket
import sys
import threading
import traceback
import types
from typing import Literal, NoReturn, TextIO, cast

from .wire import Channel

_USUAL = (
    "array ast base64 bisect builtins calendar collections contextlib copy dataclasses datetime decimal enum fractions "
    "functools hashlib heapq inspect io itertools json linecache math numbers operator os pathlib pprint queue random "
    "re secrets statistics string struct tempfile textwrap threading time tokenize traceback types typing unittest"
)
"""Modules that programs commonly import."""


def import_usual_modules() -> None:
    """Import them once, for all programs; and what the programs' own side needs."""
    for name in (*_USUAL.split(), f"{__package__}.functions", f"{__package__}.tests"):
        importlib.import_module(name)


def run(peer: bool) -> NoReturn:
    """Do what the first message on the channel says, and exit."""
    from . import functions, tests

    sys.stdin = sys.__stdin__ = _stream(0, "r", "strict")
    sys.stdout = sys.__stdout__ = _stream(1, "w", "surrogateescape")
    sys.stderr = sys.__stderr__ = _stream(2, "w", "backslashreplace")
    sys.argv[:] = ["solution.py"]
    site.setquit()  # exit() and quit(), as every interpreter has them
    channel = Channel(socket.socket(fileno=3))
    job = channel.receive()
    if job["mode"] == "script":
        channel.close()
        leave(run_script(job["source"]))
    elif job["mode"] == "functions":
        functions.serve(channel, job["source"])
        leave(0)
    elif peer:
        tests.run(channel, Channel(socket.socket(fileno=4)), job)
    os._exit(0)


def _stream(descriptor: int, mode: Literal["r", "w"], errors: str) -> TextIO:
    return cast("TextIO", open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False))


def make_module(name: str, source: str, file: str) -> types.ModuleType:
    """An empty module that Python takes for the one of this file."""
    module = types.ModuleType(name)
    module.__file__ = os.path.abspath(file)
    module.__dict__["__builtins__"] = __builtins__
    sys.modules[name] = module
    with open(file, "w", encoding="utf-8", errors="surrogatepass") as written:
        written.write(source)
    return module


def run_script(source: str) -> int:
    """Execute a source as ``__main__``; the exit status it would have had."""
    module = make_module("__main__", source, "solution.py")
    try:
        exec(compile(source, "solution.py", "exec", dont_inherit=True), module.__dict__)
        return 0
    except SystemExit as error:
        return _status(error.code)
    except BaseException:
        traceback.print_exc()
        return 1


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def leave(status: int) -> NoReturn:
    """Exit as the interpreter does: wait for threads, run exit handlers, flush."""
    try:
        while running := [t for t in threading.enumerate() if t is not threading.current_thread() and not t.daemon]:
            running[0].join()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        status = status or 1
    os._exit(status)
