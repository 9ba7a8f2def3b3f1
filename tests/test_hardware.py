"""What the process is set to on its machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from assay.hardware import PRIMITIVES

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


SHAPES = """
import ctypes, torch
from assay.hardware import prepare_torch
from assay.recipe.schema import RunRecipe
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "b", "c", "d", "e", "f", "g", "used", "free", "cost")]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
prepare_torch(RunRecipe())
x, weight = torch.ones(600, 64, dtype=torch.bfloat16), torch.ones(64, 64, dtype=torch.bfloat16)
x @ weight
before = library.mallinfo2().used
for rows in range(100, 600):
    x[:rows] @ weight
print(library.mallinfo2().used - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_products_of_ever_other_shapes_do_not_fill_the_memory() -> None:
    """oneDNN keeps what it has made ready for each shape; by itself a thousand of them."""
    told = {}
    for capacity in (None, "1024"):
        chosen = {} if capacity is None else dict.fromkeys(PRIMITIVES, capacity)
        alone = {k: v for k, v in os.environ.items() if k not in PRIMITIVES} | chosen
        run = subprocess.run([sys.executable, "-c", SHAPES], env=alone, capture_output=True, check=True, text=True)
        told[capacity] = int(run.stdout)
    if told["1024"] < 50e6:
        pytest.skip("this processor's bfloat16 products are not oneDNN's")
    assert told[None] < told["1024"] / 2, "and what a user has set stands"
