"""What the process is set to on its machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from assay.hardware import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def fill(n=1 << 28):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(n)[::4096] = b"x" * (n // 4096)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
fill()
print(fill())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_used_again_without_faults() -> None:
    """A second array of 256 MiB: its pages are there already, where the library kept them."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}

    def faults(how: str, **more: str) -> int:
        command = [sys.executable, "-c", FAULTS, how]
        return int(subprocess.run(command, env=environment | more, capture_output=True, check=True, text=True).stdout)

    assert faults("keep") < faults("leave") / 4
    assert faults("keep", MALLOC_ARENA_MAX="4") > faults("keep"), "a user's own settings stand"
