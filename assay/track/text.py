"""Completions are strangers' text: made fit to be shown and stored."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def storable(text: str) -> str:
    """Write lone surrogates, which no UTF-8 file can hold, as escapes; leave all else alone.

    >>> storable("a\\ud800b") == "a" + chr(92) + "ud800b"
    True
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def visible(text: str) -> str:
    r"""Show what could steer a terminal or turn text around as ``\x1b``, ``\x0d``, ``\u202e``.

    Line feeds and tabs stay.

    >>> print(visible("\x1b[2Jhi\r"))
    \x1b[2Jhi\x0d
    """

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _CONTROL.sub(escape, text)


def count_numbers(text: str) -> int:
    """How many numbers stand in a text, signs aside: the guesses of a completion that lists them.

    >>> count_numbers("3 + 4 = 7, or 1,250.5?")
    4
    """
    return len(_NUMBER.findall(text))


def one_line(text: str, width: int) -> str:
    """Put text on one line of at most ``width`` characters, its end cut with an ellipsis.

    >>> one_line("It is\\n  12, I think.", 12)
    'It is ⏎ 12,…'
    """
    flat = " ⏎ ".join(" ".join(line.split()) for line in visible(text).strip().split("\n") if line.strip())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
