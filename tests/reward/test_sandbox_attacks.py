"""Programs that attack the sandbox, the tests or the machine: each contained, each judged, and nothing left of it.

All of it runs on the path that rewards take: one template process that is forked for every program.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from assay.reward.sandbox.limits import Limits
from assay.reward.sandbox.sandbox import Ran, Sandbox
from assay.reward.verifier import Case, Judgement, verifiers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs are isolated on Linux only")
DATA = Path(__file__).parents[1] / "data"
LIMITS = Limits(seconds=1.0, memory_mb=128, processes=8, output_bytes=100_000, scratch_mb=4)
PATIENT = replace(LIMITS, seconds=20.0)
"""For what ends by itself: on a busy machine a second may pass before a program begins."""
TESTS = "assert add(2, 3) == 5\nassert add(-1, 1) == 0\nassert add(10, 7) == 17"
SECRET = "an-answer-that-only-the-tests-know"


@pytest.fixture(scope="module")
def place() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        sandbox.run_script("", b"", LIMITS)
        verdict("print(7)", stdio=[{"stdin": "", "stdout": "7"}])  # the verifier's own place is there, too
        yield sandbox


@pytest.fixture(autouse=True)
def _all_is_well_afterwards(place: Sandbox) -> Iterator[None]:
    """No process more than before, the same template, and the next program finds an empty place."""
    template, before = place._template, below(os.getpid())
    yield
    assert below(os.getpid()) == before
    look = "import os; print(os.listdir('/tmp'), os.listdir('/dev/shm'), os.listdir('/proc/self/fd')[:3], os.getpid())"
    assert run(place, look) == "['solution.py'] [] ['0', '1', '2'] 1"
    assert place._template is template


def below(pid: int) -> set[int]:
    """Process ids of all descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def ran(place: Sandbox, source: str, limits: Limits = LIMITS) -> Ran:
    return place.run_script(source, b"", limits)


def run(place: Sandbox, source: str) -> str:
    found = ran(place, source, PATIENT)
    assert (found.end, found.status) == ("exit", 0), found
    return found.output.decode().strip()


def result(place: Sandbox, source: str, limits: Limits = LIMITS) -> str:
    return place.run_tests(source, TESTS, "add", limits).result


BOMBS = {
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", {"processes", "timeout"}),
    "memory bomb": ("kept = []\nwhile True: kept.append(bytearray(1 << 20))", {"exit"}),
    "memory bomb of many": (
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0: kept = bytearray(60 << 20); time.sleep(60)\n"
        "time.sleep(60)",
        {"memory"},
    ),
    "loop": ("while True: pass", {"timeout"}),
    "sleep": ("import time\ntime.sleep(600)", {"timeout"}),
    "deaf to signals": (
        "import signal\nfor s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        {"timeout"},
    ),
    "output": ("while True: print('x' * 10000)", {"exit"}),
    "disk": ("for i in range(1000): open(f'/tmp/{i}', 'wb').write(bytes(90_000))", {"exit"}),
    "one large file": ("open('/tmp/a', 'wb').write(bytes(200_000))", {"exit"}),
    "descriptors": ("kept = [open('/dev/null') for _ in range(1000)]", {"exit"}),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\nf = lambda n: str([f(n + 1)])\nf(0)",
        {"exit", "memory", "timeout"},  # by how far the interpreter comes before the memory is looked at
    ),
    "segmentation fault": ("import ctypes\nctypes.string_at(0)", {"exit"}),
    "abort": ("import os\nos.abort()", {"exit"}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_at_their_limits(place: Sandbox, name: str) -> None:
    source, ends = BOMBS[name]
    found = ran(place, source, LIMITS if "timeout" in ends else PATIENT)
    assert found.end in ends
    assert found.status != 0
    assert len(found.output) <= LIMITS.output_bytes
    assert found.seconds < 10


@pytest.mark.parametrize(
    "child",
    [
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
        "os.fork() or time.sleep(600)",
        "os.fork() or (os.setsid(), os.fork() or time.sleep(600))",
        "os.fork() or os._exit(0)",  # a zombie that nobody reaps
    ],
)
@pytest.mark.parametrize("then", ["print('done', flush=True); os._exit(0)", "\nwhile True: pass"])
def test_children_end_with_their_program(place: Sandbox, child: str, then: str) -> None:
    limits = LIMITS if "while" in then else PATIENT
    found = ran(place, f"import os, subprocess, sys, time\n{child}\n{then}", limits)
    assert found.end == ("timeout" if "while" in then else "exit")


def test_there_is_no_network(place: Sandbox) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = server.getsockname()
        source = f"""
import socket
for address in ({address}, ("1.1.1.1", 53)):
    try: socket.create_connection(address, timeout=0.3)
    except OSError as error: print("refused")
socket.socket(socket.AF_UNIX).bind("\\0assay")
"""
        assert run(place, source) == "refused\nrefused"
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_nothing_of_the_host_is_in_sight(place: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_TEST_SECRET", SECRET)
    (tmp_path / "secret").write_text(SECRET)
    source = f"""
import os, pathlib
for path in ("/etc/passwd", "/etc/hostname", {str(tmp_path / "secret")!r}, {__file__!r}, "/sys", "/bin/sh"):
    print(os.path.exists(path))
print(sorted(p for p in os.listdir("/proc") if p.isdigit()), os.getcwd())
try: print("SECRET" in repr(os.environ) + open("/proc/1/environ").read())
except PermissionError: print(False)
"""
    lines = run(place, source).splitlines()
    assert lines == ["False"] * 6 + ["['1'] /tmp", "False"]


def test_nothing_outside_can_be_written(place: Sandbox, tmp_path: Path) -> None:
    source = f"""
import os, sys
os.symlink("/", "/tmp/root")
os.symlink({str(tmp_path)!r}, "/tmp/host")
for path in ("/a", "../a", "/tmp/root/a", "/tmp/host/a", "/usr/lib/a", "/assay/guest/a", "/dev/a", "/run/a",
             os.__file__, os.path.dirname(os.__file__) + "/a", "/proc/self/mem/../a", {str(tmp_path / "a")!r}):
    try: open(path, "w").write("out")
    except OSError: continue
    print("wrote", path)
"""
    assert run(place, source) == ""
    assert list(tmp_path.iterdir()) == []


def test_privileges_cannot_be_regained(place: Sandbox) -> None:
    source = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print([line.split()[1].strip("0") for line in open("/proc/self/status") if line.startswith("Cap")])
print([libc.unshare(kind) for kind in (0x10000000, 0x20000, 0x40000000)])
print(libc.mount(b"a", b"/tmp", b"tmpfs", 0, None))
clone = 56 if os.uname().machine == "x86_64" else 220
print(libc.syscall(clone, 0x10000000 | 17, 0, 0, 0, 0), libc.ptrace(16, 1, 0, 0))
print(libc.umount(b"/tmp"), libc.shmget(1, 9, 0o1600))
for call in (lambda: os.setuid(0), lambda: os.chroot("/tmp"), lambda: os.setgroups([0])):
    try: print("did", call() or os.getuid())
    except OSError: pass
"""
    lines = run(place, source).splitlines()
    assert lines[:5] == ["['', '', '', '', '']", "[-1, -1, -1]", "-1", "-1 -1", "-1 -1"]
    assert [line for line in lines[5:] if line.startswith("did")] in ([], ["did 0"])  # root already, of nothing


def test_killing_the_parent_and_everybody(place: Sandbox) -> None:
    source = """
import os
for pid in (os.getppid(), 1, 2, 3, -1):
    try: os.kill(pid, 9)
    except OSError: pass
"""
    found = ran(place, source)
    assert found.end == "exit"


def test_what_one_program_leaves_the_next_does_not_find(place: Sandbox) -> None:
    leave = """
import builtins, os, sys, math, json
open("/tmp/left", "w").write("x"); open("/dev/shm/left", "w").write("x")
math.pi = 3; builtins.left = 1; sys.modules["left"] = math; json.dumps = None
os.environ["LEFT"] = "1"; sys.path.insert(0, "/left")
"""
    assert run(place, leave) == ""
    look = """
import builtins, json, math, os, sys
print(math.pi > 3.1, hasattr(builtins, "left"), "left" in sys.modules, json.dumps(1))
print("LEFT" in os.environ, "/left" in sys.path)
"""
    assert run(place, look) == "True False False 1\nFalse False"


CHEATS = dict(
    re.findall(r"^## (.+?)\n\n```python\n(.+?)\n```$", (DATA / "cheats.md").read_text(), re.DOTALL | re.MULTILINE)
)


def test_the_cheats_are_all_read() -> None:
    assert len(CHEATS) > 20
    assert all("def add" in source for source in CHEATS.values())


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_do_not_pass(place: Sandbox, name: str) -> None:
    assert result(place, CHEATS[name]) in ("failed", "crashed", "timeout")


def test_the_same_tests_pass_an_honest_program(place: Sandbox) -> None:
    assert result(place, "def add(a, b): return a + b", PATIENT) == "passed"


def verdict(completion: str, **tests: object) -> Judgement:
    case = Case(completion=f"```python\n{completion}\n```", columns={"tests": tests})
    patience = 1.0 if "while True: pass" in completion else 20.0
    return verifiers["code"]({"timeout_s": patience, "memory_mb": 128, "max_procs": 8})(case)


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("while True: pass", "program_timeout"),
        ("import os\nos.abort()", "program_crash"),
        ("kept = []\nwhile True: kept.append(bytearray(1 << 20))", "program_crash"),
        ("print(7)\nraise SystemExit(1)", "program_crash"),
        ("while True: print('x' * 10000)", "program_crash"),
        ("print(8)", "scored"),
    ],
)
def test_attacks_have_the_policys_verdict(source: str, outcome: str) -> None:
    found = verdict(source, stdio=[{"stdin": "", "stdout": "7"}])
    assert (found.score, found.outcome) == (0.0, outcome)
