"""A long mixture of verdicts with bombs in it, while workers are killed at random: all answered, each for its own.

300 verdicts in an ordinary run; ``make soak`` asks for 5,000 by ``ASSAY_SOAK``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from reward_helpers import MAX_TOKENS, is_running, prompt, recipe, rollouts, wait_until, write

from assay.recipe.schema import RewardPart
from assay.records import Verdict
from assay.reward.scorer import Scorer

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs are isolated on Linux only")

COUNT = int(os.environ.get("ASSAY_SOAK", "300"))
AT_ONCE = 40
BOMB_SHARE = 0.02
ANSWERS_PER_KILL = 100
FUNCTION = """
import os
def f(data_source, solution_str, ground_truth):
    if "hang" in solution_str:
        while True: pass
    if "exit" in solution_str: os._exit(3)
    return float(solution_str == ground_truth)
"""
PARTS = [
    RewardPart(verifier="number", rows=["number"]),
    RewardPart(verifier="math", rows=["math"]),
    RewardPart(verifier="exact", rows=["exact"]),
    RewardPart(verifier="code", rows=["code"], options={"timeout_s": 2.0, "memory_mb": 64}),
    RewardPart(verifier="program", rows=["program"], options={"timeout_s": 2.0}),
]
BOMBS = {
    "hang": ("function", "hang", (0.0, "unverifiable")),
    "exit": ("function", "exit", (0.0, "unverifiable")),
    "endless program": ("program", "```python\nwhile True: pass\n```", (0.0, "program_timeout")),
    "fork bomb": ("code", "```python\nimport os\nwhile True: os.fork()\n```", (0.0, "program_crash")),
    "memory bomb": (
        "code",
        "```python\nkept = [bytearray(1 << 20) for _ in range(10**6)]\n```",
        (0.0, "program_crash"),
    ),
}


@dataclass(frozen=True)
class Item:
    """A question that tells its number, an answer, and what must be found of it."""

    kind: str
    gold: str
    completion: str
    expected: tuple[float, str]
    answer: str | None = None


def items(count: int) -> Iterator[Item]:
    chance = random.Random(0)
    for i in range(count):
        if chance.random() < BOMB_SHARE or i in range(10, 15):
            kind, completion, expected = BOMBS[list(BOMBS)[i % len(BOMBS)]]
            yield Item(kind, str(i), completion, expected)
            continue
        kind, right = chance.choice(["number", "math", "exact", "function", "code", "program"]), chance.random() < 0.5
        said = str(i if right else i + 1)
        shown = {
            "math": rf"\boxed{{{said}}}",
            "code": f"```python\nprint({said})\n```",
            "program": f"```python\nprint({said})\n```",
        }.get(kind, said)
        answer = said if kind in ("number", "math", "exact", "program") else None
        yield Item(kind, str(i), shown, (float(right), "scored"), answer)


@contextlib.contextmanager
def killer(scorer: Scorer, due: queue.SimpleQueue[bool], kills: list[int]) -> Iterator[None]:
    """Kills a worker, taken at random, each time that one is due; all are dead when it ends."""
    chance = random.Random(1)

    def kill() -> bool:
        with contextlib.suppress(ProcessLookupError, IndexError):  # none is running at this moment
            victim = chance.choice(scorer.processes())
            os.kill(victim, signal.SIGKILL)
            kills.append(victim)
            return True
        return False

    def work() -> None:
        while due.get():
            wait_until(kill)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        due.put(False)
        thread.join()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_long_mixture_is_answered_whatever_dies(tmp_path: Path) -> None:
    function = RewardPart(verifier=f"{write(tmp_path, FUNCTION)}:f", rows=["function"])
    asked = list(items(COUNT))
    due, kills, sizes = queue.SimpleQueue(), [], []
    room = asyncio.Semaphore(AT_ONCE)

    async def ask(scorer: Scorer, number: int, item: Item) -> Verdict:
        tests = {"stdio": [{"stdin": "", "stdout": item.gold}]}
        async with room:
            (verdict,) = await scorer.score(prompt(item.gold, kind=item.kind, tests=tests), rollouts(item.completion))
        if number % ANSWERS_PER_KILL == ANSWERS_PER_KILL // 2:
            due.put(True)
        if number in (COUNT // 3, COUNT - 1):
            sizes.append(resident())
        return verdict

    async def ask_all(scorer: Scorer) -> list[Verdict]:
        return await asyncio.gather(*(ask(scorer, i, item) for i, item in enumerate(asked)))

    scoring = recipe(*PARTS, function, verifier_column="kind", timeout_s=5.0, workers=2)
    with Scorer(scoring, MAX_TOKENS) as scorer, killer(scorer, due, kills):
        found = asyncio.run(ask_all(scorer))
        workers = scorer.processes()
    assert len(found) == COUNT
    wrong = [
        (number, item, verdict)
        for number, (item, verdict) in enumerate(zip(asked, found, strict=True))
        if (verdict.reward, verdict.outcome) != item.expected or (item.answer and verdict.answer != item.answer)
    ]
    assert wrong == []
    assert len(kills) >= COUNT // ANSWERS_PER_KILL
    assert sizes[-1] - sizes[0] < 32 << 20
    assert not any(is_running(pid) for pid in {*workers, *kills})
    outcomes = Counter(verdict.outcome for verdict in found)
    assert {"scored", "unverifiable", "program_timeout", "program_crash"} <= set(outcomes)
