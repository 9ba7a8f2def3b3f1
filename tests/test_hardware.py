"""What the process is set to on its machine."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

HOLES = """
import os
from assay.hardware import give_back_memory
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
blocks = [(bytearray(b"x") * 100_000, bytearray(b"x") * 1_000) for _ in range(2_000)]
between = [small for _, small in blocks]
full = resident()
del blocks
freed = resident()
give_back_memory()
print(full - freed, freed - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_holes_in_the_heap_are_given_back() -> None:
    """200 MB in pieces with something left between them: the library keeps them until it is asked."""
    told = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, check=True, text=True).stdout
    by_itself, when_asked = map(int, told.split())
    assert by_itself < 20e6 < 150e6 < when_asked
