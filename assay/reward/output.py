"""Does a program's output agree with what is expected? Line by line, blanks at ends of lines and of the text aside."""

from __future__ import annotations

import math


def outputs_agree(found: str, expected: str, tolerance: float = 0.0) -> bool:
    """Equal line by line; with a ``tolerance`` numbers may differ by it, absolutely or relative to the expected one.

    Blanks at the end of a line, blank lines at the end, and the kind of line ends do not count. All else does: order,
    case, missing or further lines.

    >>> outputs_agree("1 2 \\r\\n", "1 2"), outputs_agree("1\\n2", "1\\n2\\n3")
    (True, False)
    >>> outputs_agree("x 0.3333", "x 0.33333", 1e-3)
    True
    """
    ours, theirs = _lines(found), _lines(expected)
    if ours == theirs:
        return True
    if tolerance <= 0 or len(ours) != len(theirs):
        return False
    return all(_line_agrees(a, b, tolerance) for a, b in zip(ours, theirs, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.replace("\r\n", "\n").rstrip().split("\n")]


def _line_agrees(found: str, expected: str, tolerance: float) -> bool:
    ours, theirs = found.split(), expected.split()
    return len(ours) == len(theirs) and all(_word_agrees(a, b, tolerance) for a, b in zip(ours, theirs, strict=True))


def _word_agrees(found: str, expected: str, tolerance: float) -> bool:
    if found == expected:
        return True
    ours, theirs = _number(found), _number(expected)
    return ours is not None and theirs is not None and abs(ours - theirs) <= tolerance * max(1.0, abs(theirs))


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in word else None
