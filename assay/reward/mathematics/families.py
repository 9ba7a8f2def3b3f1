r"""Solutions with an integer in them: ``x = \frac{\pi}{4} + k\pi, k \in \mathbb{Z}`` stands for a number for each k.

Two families are the same when every member of one near zero is a member of the other: ``-\frac{3\pi}{4} + n\pi`` is
the family above.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from assay.reward.mathematics.numbers import DIGITS
from assay.reward.mathematics.tree import Node, symbols
from assay.reward.mathematics.value import Evaluator

_MEMBER = re.compile(
    r"[,;]?\s*\(?\s*(?:\\text\s*\{[^{}]*\}|where|for|with|any|all|every|integers?|\s)*\b(?P<letter>[a-zA-Z])\s*"
    r"(?:\\in\s*\\mathbb\s*\{?\s*Z\s*\}?|\\text\s*\{[^{}]*integer[^{}]*\}|(?:is|be)\s+(?:an\s+|any\s+)?integer)\s*\)?\s*$"
)
_NEAR, _FAR = 8, 60
_SCALE = 10**30


def split_family(text: str) -> tuple[str, str]:
    r"""The text without "k is an integer", and the letter.

    >>> split_family(r"x=k\pi, k\in\mathbb{Z}"), split_family("k+1")
    (('x=k\\pi', 'k'), ('k+1', ''))
    """
    found = _MEMBER.search(text)
    if found is None or not text[: found.start()].strip():
        return text, ""
    return text[: found.start()].strip(), found["letter"]


def same_family(golds: Sequence[Node], gold_letter: str, answers: Sequence[Node], answer_letter: str) -> bool:
    """Do both lists of formulas give the same numbers? Formulas with further unknowns are not compared."""
    sides = ((golds, gold_letter), (answers, answer_letter))
    near, far = ([_members(nodes, letter, reach) for nodes, letter in sides] for reach in (_NEAR, _FAR))
    for mine, theirs in ((near[0], far[1]), (near[1], far[0])):
        if not mine or theirs is None or not mine <= theirs:
            return False
    return True


def _members(nodes: Sequence[Node], letter: str, reach: int) -> set[int] | None:
    found = set()
    for node in nodes:
        if not symbols(node) <= {letter}:
            return None
        for k in range(-reach, reach + 1):
            try:
                value = Evaluator(DIGITS[0], {letter: Fraction(k)})(node)
            except ArithmeticError:
                continue
            if not isinstance(value, Fraction) and value.imag:
                return None
            found.add(round(value * _SCALE) if isinstance(value, Fraction) else int(value.context.nint(value * _SCALE)))
    return found
