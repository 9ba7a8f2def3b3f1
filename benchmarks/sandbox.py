"""Programs a second in the sandbox, beside a cold `bwrap python` for each. Goals: 50 a second, and 5 times the other.

Each side runs the same trivial program (read two numbers, print their sum) and checks what it printed, on all cores,
one worker thread a core. A template's worker has a sandbox of its own, as a reward worker has; the cold side starts
bubblewrap and Python anew with the same view of the machine.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import harness

from assay.reward.sandbox import jail
from assay.reward.sandbox.limits import Limits
from assay.reward.sandbox.sandbox import Sandbox

PROGRAM = "a, b = map(int, input().split())\nprint(a + b)"
TESTS = "assert add(2, 3) == 5\nassert add(-1, 1) == 0"
FUNCTION = "def add(a, b):\n    return a + b"


def main() -> None:
    """Measure the sides and print the ratio last."""
    parser = harness.arguments(__doc__ or "", rounds=5)
    parser.add_argument("--programs", type=int, default=100, help="programs of a round, on each side")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="programs at one time")
    chosen = parser.parse_args()
    places = [Sandbox() for _ in range(chosen.workers)]

    def rate(once: Callable[[Sandbox, int], None], share: int = 1) -> Callable[[int], float]:
        each = max(1, chosen.programs // share // chosen.workers)

        def work(place: Sandbox) -> None:
            for number in range(each):
                once(place, number)

        def side(_: int) -> float:
            began = time.perf_counter()
            with ThreadPoolExecutor(chosen.workers) as threads:
                list(threads.map(work, places))
            return each * chosen.workers / (time.perf_counter() - began)

        return side

    rate(script)(0)  # warm up
    sides = harness.alternate(
        {"template": rate(script), "tests": rate(tests), "cold": rate(cold, share=5)}, chosen.rounds, "programs/s"
    )
    for place in places:
        place.close()
    ratio = harness.median_ratio(sides["template"], sides["cold"])
    print(f"programs_per_second={sides['template'].median:.1f}")
    harness.finish("sandbox", ratio, sides, {"programs": chosen.programs, "workers": chosen.workers}, chosen.save)


def script(place: Sandbox, number: int) -> None:
    """A program with its input."""
    ran = place.run_script(PROGRAM, f"{number} 2\n".encode(), Limits())
    if ran.output != f"{number + 2}\n".encode():
        raise RuntimeError(f"a program failed: {ran}")


def tests(place: Sandbox, number: int) -> None:
    """A function with two asserts in another process."""
    found = place.run_tests(FUNCTION, TESTS, "add", Limits())
    if found.result != "passed":
        raise RuntimeError(f"tests failed: {found}")


def cold(_: Sandbox, number: int) -> None:
    """The same program in a jail and an interpreter of its own."""
    line = [*jail.jail_command(()), "--", str(jail.interpreter()), "-I", "-c", PROGRAM]
    ran = subprocess.run(line, input=f"{number} 2\n".encode(), capture_output=True, env=jail.environment(True))
    if ran.stdout != f"{number + 2}\n".encode():
        raise RuntimeError(f"a program failed: {ran.stderr.decode()}")


if __name__ == "__main__":
    main()
