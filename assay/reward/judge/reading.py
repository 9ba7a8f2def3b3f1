"""A judge's words -> a score, or which of two is better. What cannot be read with certainty is not read at all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Winner = Literal["A", "B", "tie"]

_LABELLED = re.compile(
    r"\b(?:score|rating|grade)\b[\s\"'*_]*(?:is|of|[:=])?[\s\"'*_]*(-?\d+(?:\.\d+)?)"
    r"(?:\s*(?:/|out of)\s*(\d+(?:\.\d+)?))?",
    re.IGNORECASE,
)
_BARE = re.compile(r"(-?\d+(?:\.\d+)?)(?:\s*/\s*(\d+(?:\.\d+)?))?[.\s*]*")
_WINNER = re.compile(
    r"\[\[(A|B|C|tie)\]\]|\b(?:winner|verdict)\b[\s\"'*_]*(?:is|[:=])[\s\"'*_]*(A|B|tie)\b", re.IGNORECASE
)
_BARE_WINNER = re.compile(r"[\s\"'*_(]*(A|B|tie)[\s\"'*_).]*", re.IGNORECASE)


class Unreadable(ValueError):
    """The words hold no judgement, or two that differ; the message says which."""


@dataclass(frozen=True)
class Read:
    """What a judge said, and why."""

    value: Any
    reason: str = ""


def read_score(words: str, low: float, high: float) -> Read:
    """The score in [low, high]: of a JSON object with ``score``, else after the word, else the only word there is.

    Only what follows the judge's thinking is read. Raises :class:`Unreadable` without one, with two that differ, with
    one out of range, or one of another scale (``8/10`` where ``high`` is 5).

    >>> read_score('{"reason": "Nearly.", "score": 4}', 0, 5), read_score("**Score:** 8/10", 1, 10).value
    (Read(value=4.0, reason='Nearly.'), 8.0)
    >>> read_score("Score: 3. No, score: 4.", 0, 5)
    Traceback (most recent call last):
    assay.reward.judge.reading.Unreadable: two scores, 3 and 4
    """
    spoken = after_thinking(words)
    found = [
        (_number(entry["score"], None, high), _reason(entry)) for entry in _objects(spoken) if "score" in entry
    ] or [(_number(value, scale, high), "") for value, scale in _LABELLED.findall(spoken)]
    if not found and (bare := _BARE.fullmatch(spoken.strip())):
        found = [(_number(bare[1], bare[2], high), "")]
    value, reason = _only(found, "scores", lambda score: f"{score:g}")
    if not low <= value <= high:
        raise Unreadable(f"the score {value:g} is not from {low:g} to {high:g}")
    return Read(value, reason or _shortened(spoken))


def read_winner(words: str) -> Read:
    """``A``, ``B`` or ``tie``: of a JSON object with ``winner``, else ``[[A]]`` or after the word, else alone.

    Raises :class:`Unreadable` without one, or with two that differ.

    >>> read_winner('{"winner": "B"}').value, read_winner("A").value, read_winner("[[C]]").value
    ('B', 'A', 'tie')
    """
    spoken = after_thinking(words)
    found = [(_winner(entry["winner"]), _reason(entry)) for entry in _objects(spoken) if "winner" in entry] or [
        (_winner(first or second), "") for first, second in _WINNER.findall(spoken)
    ]
    if not found and (bare := _BARE_WINNER.fullmatch(spoken)):
        found = [(_winner(bare[1]), "")]
    value, reason = _only(found, "winners", str)
    return Read(value, reason or _shortened(spoken))


def after_thinking(words: str) -> str:
    """What follows the judge's own reasoning; nothing while that was not closed.

    >>> after_thinking("<think>score: 1</think>score: 2"), after_thinking("<think>score: 1")
    ('score: 2', '')
    """
    if "</think>" in words:
        return words.rpartition("</think>")[2]
    return "" if "<think>" in words else words


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """The JSON objects in a text, one after another."""
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            if isinstance(value, Mapping):
                yield value
        start = text.find("{", end)


def _only(found: list[tuple[T, str]], what: str, form: Callable[[T], str]) -> tuple[T, str]:
    """The one value there is, however often it is said, with its reason."""
    different = list(dict.fromkeys(value for value, _ in found))
    if not different:
        raise Unreadable(f"no {what.removesuffix('s')}")
    if len(different) > 1:
        raise Unreadable(f"two {what}, {form(different[0])} and {form(different[1])}")
    return found[-1]


def _number(value: Any, scale: Any, high: float) -> float:
    if isinstance(value, bool):
        raise Unreadable(f"the score is {value}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise Unreadable(f"the score is {str(value)[:40]!r}, no number") from None
    if not math.isfinite(number):
        raise Unreadable(f"the score is {number}")
    if scale and float(scale) != high:
        raise Unreadable(f"the score is out of {float(scale):g}, not {high:g}")
    return number


def _winner(value: Any) -> Winner:
    name = str(value).strip().upper()
    if name in ("A", "B"):
        return "A" if name == "A" else "B"
    if name in ("TIE", "C"):
        return "tie"
    raise Unreadable(f"the winner is {str(value)[:40]!r}, not A, B or tie")


def _reason(entry: Mapping[str, Any]) -> str:
    reason = entry.get("reason")
    return _shortened(reason) if isinstance(reason, str) else ""


def _shortened(text: str) -> str:
    return " ".join(text.split())[:300]
