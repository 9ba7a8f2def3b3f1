"""Compiling and loading: each process compiles what it wants for its own processor, in a second or two."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from assay.errors import AssayError

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")
"""Sums are reordered only where the source says so, and nothing is assumed of NaN."""
DTYPES: Mapping[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1}
"""Precisions of stored numbers, and what ``BFLOAT16`` is for them."""
_OPENMP = re.compile(r"(/.*/lib(?:gomp|iomp5|omp)\b[^/\n]*\.so[^/\n]*)$", re.MULTILINE)
_TELLING = re.compile("error:|undefined reference")
LONGEST = 60
"""Seconds that a compiler may take."""
LANES = 16
"""Numbers that are computed with at once: heads are a multiple of them."""


class Unavailable(AssayError):
    """No kernels here; the message says why. Everything works without them."""


def compiler() -> list[str]:
    """The command that compiles C: ``$CC``, absent ``cc``."""
    return shlex.split(os.environ.get("CC") or "cc")


@cache
def build(name: str, **numbers: int) -> ctypes.CDLL:
    """The functions of ``name``.c in this folder, with macros of the given ``numbers``. Raises Unavailable."""
    runtime = _openmp()
    source = Path(__file__).with_name(f"{name}.c")
    with tempfile.TemporaryDirectory(prefix="assay-") as folder:
        library, compiled = f"{folder}/{name}.so", f"{folder}/{name}.o"
        macros = [f"-D{macro}={number}" for macro, number in numbers.items()]
        _run([*compiler(), *FLAGS, *macros, "-c", str(source), "-o", compiled])
        _run([*compiler(), "-shared", "-Wl,-z,defs", compiled, str(runtime), "-lm", "-o", library])
        try:
            return ctypes.CDLL(library)
        except OSError as error:
            raise Unavailable(f"what {compiler()[0]} has compiled cannot be loaded: {error}") from None


def why_not() -> str | None:
    """Why there are no kernels on this machine; ``None`` where there are."""
    try:
        build("draw", BFLOAT16=0, BLOCK=128)
    except Unavailable as reason:
        return str(reason)
    return None


def _openmp() -> Path:
    """The library of threads that torch works with: with another one beside it the two would contend for the cores.

    Other packages may have loaded one of their own; torch's is the one in its folders, or the only one.
    """
    try:
        loaded = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        raise Unavailable("kernels are compiled on Linux only") from None
    found = {Path(path) for path in _OPENMP.findall(loaded)}
    packages = Path(torch.__file__).resolve().parents[1]
    of_torch = [p for p in found if {packages / "torch", packages / "torch.libs"} & set(p.resolve().parents)]
    chosen = of_torch or list(found)
    if len(chosen) != 1:
        raise Unavailable("this torch has no OpenMP" if not found else "several OpenMP libraries are loaded")
    return chosen[0]


def addresses(dtype: torch.dtype, *tensors: Tensor) -> tuple[int, ...]:
    """Where the tensors' numbers lie. Raises ValueError unless they lie there one after the other, in ``dtype``."""
    for tensor in tensors:
        if tensor.dtype != dtype or tensor.device.type != "cpu" or not tensor.is_contiguous():
            what = f"{tensor.dtype} on {tensor.device} with strides {tensor.stride()}"
            raise ValueError(f"a kernel takes contiguous {dtype} on the CPU, not {what}")
    return tuple(tensor.data_ptr() for tensor in tensors)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    except FileNotFoundError:
        raise Unavailable(f"no C compiler ({command[0]}): install gcc, or name one in CC") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the C compiler does not run: {error}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it says nothing"]
        raise Unavailable(f"{command[0]} fails: {next(filter(_TELLING.search, said), said[0])}")
