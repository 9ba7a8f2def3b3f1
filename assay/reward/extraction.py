r"""Where in a completion the answer stands: after the thinking, in a box, in a tag, on the last line.

Chosen here: only what follows the reasoning is an answer, so a box inside ``<think>`` never counts and an
answer whose thinking was never closed is none. Several boxes side by side are one answer of several values
(a spray of guesses then fails as a list); boxes with prose between them are corrections, and the last one
stands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from assay.reward.verifier import Case

Place = Literal["whole", "last_line", "tagged", "boxed"]
"""Where an answer is looked for."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>-?\d+(?:\.\d+)?)(?![\d.]*\w))")
_NEXT_QUESTION = re.compile(r"^\s*(?:#+\s*|\*\*)?(?:question|problem|q)\s*\d*\s*:", re.IGNORECASE | re.MULTILINE)
_BETWEEN_BOXES = re.compile(r"(?:[^\w\\]|\b(?:or|and)\b|\\[,;!]|\\quad|\\\\)*", re.IGNORECASE)


@dataclass(frozen=True)
class Extraction:
    """What was found: the text, or ``None`` and why not."""

    text: str | None
    why: str = ""


@dataclass(frozen=True)
class Box:
    r"""The content of one ``\boxed{...}`` and where the whole command stands."""

    content: str
    start: int
    end: int


def after_thinking(case: Case, opening: str = "<think>", closing: str = "</think>") -> Extraction:
    """The completion after its reasoning; nothing when the reasoning was opened (also by the prompt) and
    never closed.

    >>> after_thinking(Case(completion="<think>1+1</think> 2")).text
    ' 2'
    >>> after_thinking(Case(completion="1+1 is", prompt="What is 1+1?<think>")).why
    'the thinking was never closed'
    """
    text = case.completion
    if closing in text:
        spoken = text.rsplit(closing, 1)[1]
        return Extraction(None, "the thinking was never closed") if opening in spoken else Extraction(spoken)
    if opening in text or case.prompt.rstrip().endswith(opening):
        return Extraction(None, "the thinking was never closed")
    return Extraction(text)


def boxes(text: str) -> tuple[list[Box], bool]:
    r"""All boxes of a text in order, braces matched, and whether the last one was left open.

    >>> boxes(r"\boxed{\frac{1}{2}} so \boxed{3")
    ([Box(content='\\frac{1}{2}', start=0, end=19)], True)
    """
    found: list[Box] = []
    for match in _BOX.finditer(text):
        if found and match.start() < found[-1].end:  # a box inside a box belongs to the outer one
            continue
        if match["bare"]:  # \boxed 42
            found.append(Box(match["bare"], match.start(), match.end()))
            continue
        end = _closing_brace(text, match.end())
        if end is None:
            return found, True
        found.append(Box(text[match.end() : end], match.start(), end + 1))
    return found, False


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    position = start
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None


def boxed(text: str) -> list[str]:
    r"""The contents of the last box and of those standing directly before it, without repeats.

    >>> boxed(r"\boxed{16}. I forgot the corners. \boxed{18}"), boxed(r"\boxed{5} or \boxed{6}")
    (['18'], ['5', '6'])
    """
    found, left_open = boxes(text)
    if left_open or not found:
        return []
    run = [found[-1]]
    for box in reversed(found[:-1]):
        if not _BETWEEN_BOXES.fullmatch(text[box.end : run[0].start]):
            break
        run.insert(0, box)
    return list(dict.fromkeys(content for box in run if (content := box.content.strip())))


def tag_places(text: str, tag: str) -> list[Box]:
    """What stands in every ``<tag>...</tag>``, and where; in linear time, whatever the text.

    >>> [place.content for place in tag_places("<a>4</a> or <a> 5 </a> <a>", "a")]
    ['4', ' 5 ']
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    found: list[Box] = []
    start = text.find(opening)
    while start >= 0 and (end := text.find(closing, start)) >= 0:
        found.append(Box(text[start + len(opening) : end], start, end + len(closing)))
        start = text.find(opening, end)
    return found


def tagged(text: str, tag: str) -> list[str]:
    """The contents of every ``<tag>...</tag>``.

    >>> tagged("<answer>4</answer> or <answer> 5 </answer>", "answer")
    ['4', '5']
    """
    return [place.content.strip() for place in tag_places(text, tag)]


def before_next_question(text: str, start: int) -> str:
    r"""The text up to where a next question was made up, at a line like ``Question: ...`` after ``start``.

    >>> before_next_question("Answer: 4\nQuestion: What is 3+3?\nAnswer: 6", 6)
    'Answer: 4\n'
    """
    invented = _NEXT_QUESTION.search(text, start)
    return text[: invented.start()] if invented else text


def last_line(text: str) -> str | None:
    """The last line that is not blank."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def extract(case: Case, place: Place, tag: str = "answer") -> Extraction:
    """The one text that stands in ``place``, after the thinking; several different ones are none."""
    spoken = after_thinking(case)
    if spoken.text is None:
        return spoken
    if place == "whole":
        found, missing = [spoken.text.strip()], "the completion is empty"
    elif place == "last_line":
        found, missing = [last_line(spoken.text) or ""], "the completion is empty"
    elif place == "boxed":
        found, missing = boxed(spoken.text), r"no closed, filled \boxed{}"
    else:
        found, missing = tagged(spoken.text, tag), f"no <{tag}>...</{tag}>"
    different = list(dict.fromkeys(text for text in found if text))
    if len(different) > 1:
        return Extraction(None, f"{len(different)} different answers")
    return Extraction(different[0]) if different else Extraction(None, missing)


def place_answer(answer: str, place: str, tag: str = "answer") -> str:
    r"""Write an answer where ``extract`` finds it: the completion of a canary.

    >>> place_answer("7", "boxed"), place_answer("7", "tagged")
    ('\\boxed{7}', '<answer>7</answer>')
    """
    if place == "boxed":
        return rf"\boxed{{{answer}}}"
    return f"<{tag}>{answer}</{tag}>" if place == "tagged" else answer
