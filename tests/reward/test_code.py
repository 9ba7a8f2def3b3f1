"""Programs against their tests: what may stand for a pass, whose fault a failure is, and where programs cannot run."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from assay.errors import UserError
from assay.reward.sandbox import jail
from assay.reward.sandbox.limits import Limits
from assay.reward.sandbox.sandbox import Sandbox, shared_sandbox
from assay.reward.verifier import Case, Judgement, verifiers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs are isolated on Linux only")


def judged(source: str, test_code: str, entry_point: str = "area", **options: object) -> Judgement:
    tests = {"entry_point": entry_point, "test_code": test_code}
    case = Case(completion=f"```python\n{source}\n```", columns={"tests": tests})
    patience = 1.0 if "while True" in source + test_code else 20.0  # the rest ends by itself
    return verifiers["code"]({"timeout_s": patience, **options})(case)


ALWAYS = """
class Always:
    def __init__(self, *a): pass
    def __sub__(self, other): return 0.0
    def __lt__(self, other): return True
    def __gt__(self, other): return True
    def __le__(self, other): return True
    def __ge__(self, other): return True
    def __contains__(self, item): return True
    def __abs__(self): return 0.0
    def __round__(self, n=0): return self
    def __float__(self): return 0.0
"""


@pytest.mark.parametrize("how", ["def area(x): return Always()", "area = Always", "class area(Always): pass"])
@pytest.mark.parametrize(
    "test",
    [
        "assert abs(area(2) - 4) < 1e-6",
        "assert area(2) - 4 < 1e-6",
        "assert 3 < area(2) < 5",
        "assert 4 in area(2)",
        "assert round(area(2), 2) == 4",
        "import math\nassert math.isclose(area(2), 4)",
        "assert area(2) in (4, 5)",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertAlmostEqual(area(2), 4)",
    ],
)
def test_an_object_that_agrees_to_everything_is_no_number(how: str, test: str) -> None:
    found = judged(ALWAYS + how, test)
    assert (found.score, found.outcome) == (0.0, "scored")
    assert judged("def area(x): return x * x", test.replace("4 in area(2)", "area(2) == 4")).score == 1.0


@pytest.mark.parametrize(
    "source",
    [
        "area = 5",
        "area = None",
        "class area(Exception): pass",
        "import os, struct, json\nd = json.dumps({'loaded': True}).encode()\n"
        "os.write(3, struct.pack('>I', len(d)) + d)\nwhile True: pass",
        "def area(x):\n    while True: pass",
        "raise ImportError('helper')",
        "def area(x): raise ImportError('helper')",
        "def area(x): raise NameError('helper')",
        "class SkipTest(Exception): pass\ndef area(x): raise SkipTest",
        "def area(x):\n    v = [4]\n    for _ in range(400): v = [v]\n    return v",
    ],
)
@pytest.mark.parametrize("test", ["assert area(area(2)) == 16", "assert area(2) == 4"])
def test_no_program_makes_its_failure_the_tests_fault(source: str, test: str) -> None:
    assert judged(source, test).score == 0.0


def test_classes_under_their_own_name_have_their_operators() -> None:
    source = """
class Vector:
    def __init__(self, x): self.x = x
    def __add__(self, o): return Vector(self.x + o.x)
    def __mul__(self, k): return Vector(self.x * k)
    def __eq__(self, o): return self.x == o.x
    def __contains__(self, k): return k == self.x
"""
    tests = (
        "v = Vector(1) + Vector(2)\nassert v == Vector(3)\nassert (v * 2).x == 6\nassert 3 in v\nassert v != Vector(4)"
    )
    assert judged(source, tests, "Vector").score == 1.0
    assert judged(source.replace("k == self.x", "False"), tests, "Vector").score == 0.0


def test_packages_are_shown_only_where_asked_for() -> None:
    source, tests = "import numpy\ndef area(x): return numpy.float64(x) ** 2", "assert area(2) == 4"
    assert judged(source, tests).outcome == "program_crash"
    shown = judged(source, tests, packages=("numpy",), timeout_s=20.0, memory_mb=1024)
    assert (shown.score, shown.message) == (1.0, "")
    with pytest.raises(UserError, match="no installed package 'nowhere_to_be_found'"):
        verifiers["code"]({"packages": ["nowhere_to_be_found"]})


def test_without_namespaces_programs_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(jail, "bubblewrap", lambda: str(broken))
    with pytest.raises(jail.NoSandbox, match=r"No permissions to create new namespace.*sandbox: none") as error:
        Sandbox()
    assert "\n" not in str(error.value)
    with Sandbox("none") as trusted:  # needs none
        assert trusted.run_script("print(1)", b"", Limits()).output == b"1\n"


def test_elsewhere_than_on_linux_programs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_sandbox.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(jail.NoSandbox, match="Linux only, not on darwin"):
        verifiers["program"]({})


def test_trusted_programs_leave_no_process_and_no_file_either(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    source = f"""
import os, time
open("left", "w").write("x")
if os.fork() == 0:
    os.setsid()
    open({str(mark)!r}, "w").write(f"{{os.getpid()}} {{os.getcwd()}}")
    time.sleep(600)
while not os.path.exists({str(mark)!r}) or not open({str(mark)!r}).read(): pass
"""
    with Sandbox("none") as trusted:
        assert trusted.run_script(source, b"", Limits()).status == 0
        pid, folder = mark.read_text().split()
        assert not Path(f"/proc/{pid}").exists()
        assert not Path(folder).exists()
