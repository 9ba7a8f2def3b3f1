"""Prompts, rollouts, recipes and reward files for the tests of this folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.recipe.schema import RewardPart, RewardRecipe
from assay.records import Finish, Prompt, Rollout, Segment

MAX_TOKENS = 20


def prompt(answer: Any = "4", text: str = "2+2?", **columns: Any) -> Prompt:
    return Prompt(
        "p", ({"role": "user", "content": text},), text, (1, 2), {"prompt": text, "answer": answer, **columns}
    )


def rollout(index: int, text: str, tokens: int = 3, finish: Finish = "stop") -> Rollout:
    segment = Segment("policy", tuple(range(tokens)), (-0.5,) * tokens, (0,) * tokens)
    return Rollout("p", index, (segment,), finish, text)


def rollouts(*texts: str) -> list[Rollout]:
    return [rollout(index, text) for index, text in enumerate(texts)]


def recipe(*verifiers: str | RewardPart, **settings: Any) -> RewardRecipe:
    parts = [v if isinstance(v, RewardPart) else RewardPart(verifier=v) for v in verifiers]
    return RewardRecipe(parts=parts, **settings)


def write(folder: Path, source: str, name: str = "rewards.py") -> str:
    path = folder / name
    path.write_text(source)
    return str(path)


def is_running(pid: int) -> bool:
    """Is there such a process, and not merely its entry waiting to be reaped?"""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            if stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
                return True
            # A leader that is dead while a thread of it still ends: its files are open until then.
            return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
        except (FileNotFoundError, ProcessLookupError):
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Poll until the condition holds; False when the deadline passes first."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
