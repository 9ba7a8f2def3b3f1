"""What a request in words says of the JSON it wants: where it may stand, and how it is compared."""

from __future__ import annotations

import re
from typing import Any

from assay.reward.strict_json import Place

_NO_FENCE = re.compile(
    r"\b(?:no|without|not|never)\b[^.;:,]{0,30}(?:fence|code block|markdown|backtick)", re.IGNORECASE
)
_FENCE = re.compile(r"(?:fence|code block|markdown|```|backtick)", re.IGNORECASE)
_MAY = re.compile(r"\b(?:fine|may|allowed|ok|okay|can|optional|accepted|permitted|either|or)\b", re.IGNORECASE)
_ALONE = re.compile(
    r"nothing else|no other text|\bonly\b|no prose|no explanation|without (?:any )?(?:prose|text)", re.IGNORECASE
)
_PROSE = re.compile(
    r"(?:prose|text|explanation|explain|comment\w*|reason\w*|sentence)[^.;]{0,40}\b(?:fine|may|allowed|ok|okay|permitted)\b"
    r"|\b(?:explain|think|reason|describe|comment)\b[^.;]{0,40}\b(?:then|before|first|after)\b"
    r"|\bfirst\b[^.;]{0,30}\b(?:explain|think|reason|describe)\b|\banywhere\b",
    re.IGNORECASE,
)  # fmt: skip
_ANY_ORDER = re.compile(
    r"order[^.;,]{0,30}(?:ignored|irrelevant|not matter|free)|(?:any|ignor\w+|regardless of)[^.;,]{0,15}order"
)
_SUBSET = re.compile(
    r"\bsubset\b|(?:extra|further|other|additional) keys (?:are |may be )?(?:fine|allowed|ok|ignored|there)"
)
_KIND = re.compile(r"\bjson (object|array|list)\b", re.IGNORECASE)
_TAG = re.compile(r"<(\w+)>")


def place_asked(instruction: str) -> tuple[Place, str]:
    """Where the words of a request put the JSON, and the tag if it is inside one.

    >>> place_asked("One JSON object and nothing else: no code fence.")[0]
    'bare'
    >>> place_asked("Reply with one JSON object. A fenced json block is fine.")[0]
    'either'
    >>> place_asked("Explain first, then give the JSON in a fence.")[0], place_asked("JSON in <out> tags.")
    ('prose', ('tagged', 'out'))
    """
    if tag := _TAG.search(instruction):
        return "tagged", tag[1]
    if _PROSE.search(instruction) and not _ALONE.search(instruction):
        return "prose", "answer"
    if _NO_FENCE.search(instruction):
        return "bare", "answer"
    if _FENCE.search(instruction):
        return ("either" if _MAY.search(instruction) else "fence"), "answer"
    return ("bare" if _ALONE.search(instruction) else "either"), "answer"


def type_asked(instruction: str) -> dict[str, Any] | None:
    """A schema of the type that a request names: object or array; ``None`` where it names neither, or both.

    >>> type_asked("Reply with one JSON object."), type_asked("Reply in JSON.")
    ({'type': 'object'}, None)
    """
    found = {"object" if kind.casefold() == "object" else "array" for kind in _KIND.findall(instruction)}
    return {"type": found.pop()} if len(found) == 1 else None


def comparison_asked(compare: str) -> dict[str, Any]:
    """The options of ``json`` for how the gold value is compared, from words.

    >>> comparison_asked("equal to gold as JSON values")
    {'match': 'equal', 'any_order': False}
    >>> comparison_asked("gold is a subset, array order is ignored")
    {'match': 'subset', 'any_order': True}
    """
    said = compare.casefold()
    any_order = bool(
        re.search(
            r"order[^.;,]{0,30}(?:ignored|irrelevant|not matter|free)|(?:any|ignor\w+|regardless of)[^.;,]{0,15}order",
            said,
        )
    )
    subset = bool(_SUBSET.search(said))
    return {"match": "subset" if subset else "equal", "any_order": any_order and "key order" not in said}
