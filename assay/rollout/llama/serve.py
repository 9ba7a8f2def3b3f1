"""What runs in a server's process: llama.cpp until its owner says stop, or dies.

The first line of standard input is JSON: ``{"folder": path, "model": file, "params": {...}}`` for the server in the
package xllamacpp, or ``{"folder": path, "command": [...], "url": ...}`` for a program of the user's. The answer is one
line, ``{"url": ...}`` or ``{"error": ..., "user": is it the user's to mend}``. A line ``stop`` ends it; the end of
input without one means that the owner was killed, and then the folder with the weights is removed too: nobody else
will.

It imports nothing of Assay and is run by its path, so that it starts in a fraction of a second.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

_POLL_S = 0.02


class Mistake(Exception):
    """An option that the server does not have."""


def main() -> None:
    """Serve as told by the first line of standard input; ends the process."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what llama.cpp prints is its log
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    stop: Callable[[], None] | None = None
    try:
        url, stop = _command(settings) if "command" in settings else _package(settings)
        print(json.dumps({"url": url}), file=answers, flush=True)
    except (Mistake, RuntimeError, OSError) as error:
        print(json.dumps({"error": str(error), "user": isinstance(error, Mistake)}), file=answers, flush=True)
    told = sys.stdin.readline().strip()
    if stop is not None:
        stop()
    if told != "stop":
        shutil.rmtree(settings["folder"], ignore_errors=True)
    os._exit(0)  # without the seconds that a server takes to free what the system frees anyway


def _package(settings: dict[str, Any]) -> tuple[str, Callable[[], None]]:
    """Start the server of xllamacpp in this process: its address, and how it is stopped."""
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    for name, value in settings["params"].items():
        _set(params, name, value)
    server = xllamacpp.Server(params)
    return server.listening_address, partial(_keep, server)


def _keep(server: object) -> None:
    """Nothing is to be done: the process ends, and with it the server, which must live until then."""


def _set(params: Any, name: str, value: Any) -> None:
    """Set a field by its name, ``cpuparams.n_threads`` too; of an enumeration the member that ends so (``q8_0``)."""
    owner, _, leaf = name.rpartition(".")
    holder = getattr(params, owner) if owner else params
    if leaf.startswith("_") or not hasattr(holder, leaf):
        near = difflib.get_close_matches(leaf, [n for n in dir(holder) if n[0] != "_"], n=1)
        raise Mistake(f"llama.cpp has no option {name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    members = getattr(type(getattr(holder, leaf)), "__members__", {})
    try:
        setattr(holder, leaf, _member(members, value) if members else value)
    except TypeError as error:
        raise Mistake(f"llama.cpp's option {name} cannot be {value!r}: {error}") from None


def _member(members: dict[str, Any], value: Any) -> Any:
    ends = [name for name in members if f"_{name}".endswith(f"_{value}".upper())]
    if not ends:
        raise TypeError(f"it is one of {', '.join(members)}")
    return members[min(ends, key=len)]


def _command(settings: dict[str, Any]) -> tuple[str, Callable[[], None]]:
    """Start a program of the user's beside this process: its address, and how it is stopped."""
    process = subprocess.Popen(settings["command"], stdin=subprocess.DEVNULL)
    stopping = threading.Event()
    while not _healthy(settings["url"]):
        if process.poll() is not None:
            raise RuntimeError(f"{settings['command'][0]} ended with exit status {process.returncode}")
        time.sleep(_POLL_S)

    def follow() -> None:
        status = process.wait()
        if not stopping.is_set():
            os._exit(status if status > 0 else 1)

    def stop() -> None:
        stopping.set()
        process.kill()
        process.wait()

    threading.Thread(target=follow, daemon=True).start()
    return settings["url"], stop


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
