"""What the process is set to on its machine."""

from __future__ import annotations

import os
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


def given_back(**environment: str) -> list[int]:
    """Bytes that go back to the system when 200 MB in pieces are freed, and when it is asked for."""
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))} | environment
    told = subprocess.run([sys.executable, "-c", HOLES], env=alone, capture_output=True, check=True, text=True).stdout
    return [int(number) for number in told.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_holes_in_the_heap_are_given_back() -> None:
    """With something left between the pieces the library keeps them until it is asked."""
    by_itself, when_asked = given_back()
    assert by_itself < 20e6 < 150e6 < when_asked
    assert max(given_back(MALLOC_ARENA_MAX="4")) < 20e6, "a user's own settings stand"
