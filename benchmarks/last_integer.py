"""The reward of the training benchmarks, one function for both sides: is the last integer of the completion the answer?

TRL's signature, which Assay's recipes take too.
"""

from __future__ import annotations

import re
from typing import Any


def last_integer(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """1 where the last integer is the answer, else 0.

    >>> last_integer(["3 + 4 = 7.", [{"role": "assistant", "content": "It is 8"}], "none"], ["7", "-8", "1"])
    [1.0, 0.0, 0.0]
    """
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [float(right(text, gold)) for text, gold in zip(texts, answer, strict=True)]


def right(text: str, answer: str) -> bool:
    """Is the last integer of the text the answer?"""
    found = re.findall(r"-?\d+", text)
    return bool(found) and int(found[-1]) == int(answer)
