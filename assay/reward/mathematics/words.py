"""Answers in words: one spelling of many, and what counts as the same."""

from __future__ import annotations

import re

_SAME = {
    "no solution": ("no solutions", "no real solutions", "no real solution", "empty set", "none", "no roots"),
    "undefined": ("not defined", "does not exist", "dne", "doesn t exist"),
    "all real numbers": ("all reals", "real numbers", "reals", "every real number", "any real number"),
    "infinity": ("infinite", "infinitely many"),
}
_SMALL = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen",
)
_TENS = re.findall(r"\w+", "twenty thirty forty fifty sixty seventy eighty ninety")


def said(text: str) -> str:
    """The words in one spelling: lower case, without articles and punctuation.

    >>> said("The empty set."), said("Does not exist"), said("(B)")
    ('no solution', 'undefined', 'b')
    """
    text = re.sub(r"\b([ap])\.?\s?m\b\.?", r"\1m", text.lower())
    words = re.sub(r"[^\w\s:%/-]", " ", text.lower().replace("'", " ").replace("’", " "))
    kept = [word for word in words.split() if word not in ("the", "a", "an") or len(words.split()) == 1]
    spelling = " ".join(kept)
    return next((name for name, others in _SAME.items() if spelling in others), spelling)


def number_word(text: str) -> int | None:
    """The whole number below a hundred that a text spells out.

    >>> number_word("forty-two"), number_word("Seven"), number_word("seventh")
    (42, 7, None)
    """
    words = re.split(r"[\s-]+", text.lower().strip(" ."))
    if len(words) == 1 and words[0] in _SMALL:
        return _SMALL.index(words[0])
    if words[0] in _TENS and len(words) <= 2:
        tens = 10 * (_TENS.index(words[0]) + 2)
        if len(words) == 1:
            return tens
        if words[1] in _SMALL[1:10]:
            return tens + _SMALL.index(words[1])
    return None
