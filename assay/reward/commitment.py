r"""Which of the answers that a completion gives does it stand by?

A later answer replaces an earlier one, as when a mistake is corrected or a part is boxed before the whole. It does not
where the text only lists guesses: answers side by side, joined by "or" and "maybe", or each under a label of its own
("Answer: 5, Answer: 6"). Those are one answer of several values, which then fails as a spray. An answer that the text
takes back ("wait, that is wrong") with nothing in its place is none that counts; one that is denied beside another
("42, not 41") is not offered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from assay.reward.extraction import Box

_BESIDE = re.compile(
    r"(?:[^\w\\]|\b(?:or|and|also|either)\b|\\[,;!]|\\quad|\\\\|\\text\s*\{\s*,?\s*(?:or|and)\s*\}"
    r"|(?<![A-Za-z])[A-Za-z](?:_\{?\w\}?)?\s*=)*",
    re.IGNORECASE,
)
_HEDGE = re.compile(
    r"\b(?:or|maybe|perhaps|possibly|alternatively|otherwise|might|may (?:also )?be|could (?:also )?be|can also be|"
    r"not sure|unsure|either|another (?:option|possibility|candidate|guess|answer)|if (?:not|that)|guess|also)\b",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"[\W_]*(?:\b(?:the|my|final|answers?|result|option|guess|candidate|attempt|solution|possibility|choice|try|is|or|"
    r"and|so|first|second|third|next|last|number|no|one|two|three|four|\d+|[a-z])\b[\W_]*)*",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(r"\bso\b.*[+=]", re.IGNORECASE | re.DOTALL)
_CORRECTED = re.compile(
    r"\b(?:wait|hold on|scratch that|never mind|oops|correct(?:ed|ion|ing)|mistake|mistaken|incorrect|wrong|error|"
    r"forgot|overlooked|missed|redo|on second thought|i take (?:it|that) back|let me (?:fix|redo|correct|re-?\w+)|"
    r"actually|instead|disregard|miscounted|recount\w*|recheck\w*)\b",
    re.IGNORECASE,
)
_FINAL = re.compile(r"\bfinal(?:ly)?\b", re.IGNORECASE)
_WITHDRAWN = re.compile(
    r"\b(?:wait|hold on|scratch that|never mind|oops|on second thought|disregard (?:that|this))\b"
    r"|\bi take (?:it|that) back\b|\b(?:that|this|it|which|answer|result|above|value)\s*"
    r"(?:'s|\u2019s|is|was|seems|looks|must be|can(?:no|')t be|isn't|wasn't|is not|was not)\s+"
    r"(?:\w+\s+)?(?:wrong|incorrect|not right|not correct|mistaken|a mistake|right|correct)\b"
    r"|\bi (?:made|had|see) (?:a|an|my) (?:\w+ )?(?:mistake|error)|\bi (?:forgot|miscounted|misread|overlooked)\b"
    r"|\bshould (?:actually )?(?:be|have been)\s+\W*[\d\\-]|\bcorrection\b|\bactually,? (?:no|it|the|that)\b"
    r"|^\W*(?:is|was)\s+(?:\w+\s+)?(?:wrong|incorrect|not)\b|^\W*(?:no|nope)\b[,.!]",
    re.IGNORECASE,
)
_AFFIRMED = re.compile(
    r"\b(?:yes|yep|indeed|confirmed|checks out|is (?:indeed |in fact )?(?:correct|right|fine|consistent)|"
    r"(?:it|that) holds|still holds|all good|(?:answer|result) stands)\b",
    re.IGNORECASE,
)
_NOT = re.compile(
    r"(?:\bnot|n't|n\u2019t|\bcannot be|\bnever|\brather than|\binstead of)\s*(?:equal to\s*|be\s*|just\s*)?\W*\Z",
    re.IGNORECASE,
)
_NOT_DENIED = re.compile(r"\b(?:if|why|or|whether|is (?:it|that|this)) not\s+\W*\Z", re.IGNORECASE)
"""Words with a "not" that offer what follows."""
_CASE = re.compile(r"(?:if|when|in case|case|assuming|suppose|supposing|provided)\b", re.IGNORECASE)
_COUNTED = re.compile(r"\b(?:\d+|[a-e]|one|two|three|four|first|second|third|fourth|last|next|other)\b")
_RULED_OUT = re.compile(
    r"\b(?:fails?|failed|miscounts?|double.?counts?|rul(?:ed|es) (?:it )?out|rejected|impossible|"
    r"invalid|contradict\w*|extraneous)\b",
    re.IGNORECASE,
)
_PARTS = re.compile(r"\b(?:parts?|steps?|stages?)\b")
_NEGATED_VERDICT = re.compile(
    r"(?:isn't|wasn't|is not|was not|not|can(?:no|')t be)\s+(?:\w+\s+)?(?:right|correct)", re.I
)
_ALSO = re.compile(
    r"^[\s$.,;:)*\\\]]*(?:\(\s*)?(?:and/or|or)\s+(?:maybe|possibly|perhaps|even|else|is it|it is|it's)?\s*\$?"
    r"(?P<value>[-+]?(?:\d|\\frac|\\sqrt)[^\s,;.?!)$]*)",
    re.IGNORECASE,
)
_MAYBE = re.compile(
    r"\b(?:it|this|that|answer|result|value)\s+(?:could|might|may|can)\s+(?:(?:also|well|instead|even|just)\s+)+be\s+\W{0,4}"
    r"(?P<value>[-+]?\d[\d,/]*(?:\.\d+)?)",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"(?<![\d.,])(?P<one>\d[\d.,]{0,60})\W{1,9}(?:[a-z]+\W{1,9})?(?:or|maybe|perhaps|possibly|alternatively)\s+"
    r"(?:maybe |perhaps |possibly )?"
    r"\W*(?P<two>\d[\d.,]*)",
    re.IGNORECASE,
)
_BEFORE = re.compile(
    r"(?P<value>[-+]?\d[\d.,/]*)\s*\$?\s*,?\s*(?:or|and/or)\s+(?:maybe |perhaps |possibly )?[\s$*(\\\[]*\Z"
)


@dataclass(frozen=True)
class Commitment:
    """The answers that stand, of which several are a spray, or why none does."""

    answers: tuple[str, ...]
    withdrawn: bool = False
    """Was the only answer taken back?"""
    rest: str = ""
    """What follows the last answer."""


def committed(text: str, places: Sequence[Box]) -> Commitment:
    r"""What a text commits to, of the answers that stand in the given places, in order.

    >>> from assay.reward.extraction import boxes
    >>> def stands(text): return committed(text, boxes(text)[0]).answers
    >>> stands(r"\boxed{16}. I forgot the corners. \boxed{18}"), stands(r"\boxed{5}, or maybe it is \boxed{6}")
    (('18',), ('5', '6'))
    >>> committed(r"\boxed{16}. Wait, that is wrong.", boxes(r"\boxed{16}. Wait, that is wrong.")[0]).withdrawn
    True
    """
    places = [place for place in places if place.content.strip()]
    if not places:
        return Commitment(())
    places = [place for place in places if not _denied(text, place)] or places
    run = [places[-1]]
    for place in reversed(places[:-1]):
        before = text[max(place.start - 120, 0) : place.start]
        if not _beside(text[place.end : run[0].start], before):
            break
        run.insert(0, place)
    rest = text[run[-1].end :]
    if _taken_back(text[: run[-1].start], rest):
        return Commitment(tuple(_distinct(run)), withdrawn=True, rest=rest)
    found = _distinct(run)
    if also := _ALSO.match(rest):
        found.append(also["value"])
    elif maybe := _MAYBE.search(rest[:200]):
        found.append(maybe["value"])
    if earlier := _BEFORE.search(text[max(run[0].start - 60, 0) : run[0].start]):
        found.insert(0, earlier["value"])
    return Commitment(tuple(dict.fromkeys(found)), rest=rest)


def hedges(text: str) -> list[tuple[str, str]]:
    """The numbers that a text offers as alternatives of each other, in pairs, and where the last pair ends.

    >>> hedges("750 or 751"), hedges("6 apples, maybe 7"), hedges("6 and 7")
    ([('750', '751')], [('6', '7')], [])
    """
    return [(match["one"].rstrip(".,"), match["two"].rstrip(".,")) for match in _HEDGED.finditer(text)]


def _denied(text: str, place: Box) -> bool:
    """Does a "not" stand directly before the place, and no question mark after it?"""
    before = text[max(place.start - 40, 0) : place.start]
    return bool(_NOT.search(before)) and not _NOT_DENIED.search(before) and text[place.end : place.end + 1] != "?"


def _distinct(run: Sequence[Box]) -> list[str]:
    return list(dict.fromkeys(place.content.strip() for place in run))


def _beside(between: str, before: str) -> bool:
    """Are two answers guesses of one list, rather than an answer and what replaces it?"""
    if _BESIDE.fullmatch(between) or _are_cases(before, between):
        return True
    if _CORRECTED.search(between):
        return False
    if _FINAL.search(between):
        return bool(_LABEL.fullmatch(between) and _FINAL.search(before.rpartition("\n")[2]))
    if _LABEL.fullmatch(between):
        return not _CONCLUDES.search(between)
    return len(between) < 200 and bool(_HEDGE.search(between))


def _are_cases(before: str, between: str) -> bool:
    """Are two answers led in alike: "if n is even:" and "if n is odd:", "trial A gives" and "trial B gives"?"""
    one, other = (
        " ".join(re.split(r"[\n.;!?]", lead)[-1].lower().split()).strip(" ,:$*-") for lead in (before, between)
    )
    if not one or not other or _PARTS.search(other) or _RULED_OUT.search(between) or _CORRECTED.search(between):
        return False
    if _CASE.match(one) and _CASE.match(other):
        return True
    return one != other and _COUNTED.sub("1", one) == _COUNTED.sub("1", other)


def _taken_back(before: str, rest: str) -> bool:
    if _NOT.search(before[-40:]):
        return True
    found = list(_WITHDRAWN.finditer(rest))
    real = [
        m for m in found if not re.search(r"(?:right|correct)$", m.group(), re.I) or _NEGATED_VERDICT.search(m.group())
    ]
    if not real:
        return False
    after = _NEGATED_VERDICT.sub("", rest[real[-1].end() :])
    return not _AFFIRMED.search(after)
