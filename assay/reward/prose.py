"""Words, sentences and paragraphs of a text, counted the way a careful reader would.

Chosen here: a word is a run between blanks or dashes that holds a letter or digit ("don't", "well-known" and
"3.14" are one word each); each Chinese, Japanese or Thai letter is a word. A sentence ends at ``.``, ``!``,
``?`` or ``…`` before a blank and at a blank line; the stop of an abbreviation, an initial or a number ends
none.
"""

from __future__ import annotations

import re
import unicodedata


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ABBREVIATIONS = _set(
    "mr mrs ms dr prof sr jr st mt rev hon gen col capt lt sgt gov sen rep pres messrs mme mlle fr hr vs "
    "etc eg ie cf al approx dept est fig figs no nos vol vols ed eds pp op ca inc ltd co corp bros jan "
    "feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat ave blvd rd min "
    "max avg misc ext tel"
)
_ENDS_BOTH_WAYS = _set("etc inc ltd co corp jr sr al est no st min max mar sat ed ext fig")
"""Abbreviations that may also end a sentence: they do when a capital letter follows."""
_BEFORE_NUMBERS = _set("no fig figs vol st mar sat min max est ed ext")
"""Of these, the ones that stand before a number."""
_STARTERS = _set("it the he she we they this that these those i in but and then there you so a an my our his her")
"""Words that begin a sentence after what looks like initials."""
_CHUNK = re.compile(r"[^\s\u2013\u2014]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e00-\u0e7f]")
_END = re.compile(
    r"(?:(?<![.!?\u2026\u0964\u061f])[.!?\u2026\u0964\u061f]+[\"'\u2019\u201d)\]*_]*(?=\s|$))|[\u3002\uff01\uff1f]+"
)
_WINDOW = 60
"""Characters around a stop that decide whether it ends a sentence."""
_BLANK_LINE = re.compile(r"\n[ \t]*\n\s*")
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " ", "\u202f": " "})
_UNSEEN = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Characters that no reader sees: zero-width and filler ones, marks of direction, controls."""


def visible(text: str) -> str:
    """The text without the characters that no reader sees: they are no content, and part no word.

    >>> visible("a\\u200bb\\u2800"), visible("\\u3164\\ufeff")
    ('ab', '')
    """
    return _UNSEEN.sub("", text)


def plain(text: str) -> str:
    """The visible text in composed Unicode with straight quotes and plain blanks, for comparisons.

    >>> plain("It’s “so”")
    'It\\'s "so"'
    """
    return unicodedata.normalize("NFC", visible(text)).translate(_QUOTES)


def words(text: str) -> list[str]:
    """The words of a text, without the punctuation around them.

    >>> words("Red, blue — don't! 3.14 & a well-known -- one."), len(words("你好 world"))
    (['Red', 'blue', "don't", '3.14', 'a', 'well-known', 'one'], 3)
    """
    found: list[str] = []
    for chunk in _CHUNK.findall(_UNSPACED.sub(lambda letter: f" {letter[0]} ", plain(text))):
        for piece in re.split(r"-{2,}|\.{3,}", chunk):
            word = piece.strip("".join({c for c in piece if not c.isalnum()}))
            if word:
                found.append(word)
    return found


def sentences(text: str) -> list[str]:
    """The sentences of a text.

    >>> sentences('Dr. Lee paid $3.50. "Why?" he asked. J. R. Doe left at 5 p.m. Fine!')
    ['Dr. Lee paid $3.50.', '"Why?" he asked.', 'J. R. Doe left at 5 p.m.', 'Fine!']
    """
    found: list[str] = []
    for block in _BLANK_LINE.split(plain(text).strip()):
        start = 0
        for match in _END.finditer(block):
            if _ends(block, match):
                found.append(block[start : match.end()])
                start = match.end()
        found.append(block[start:])
    return [one for sentence in found if (one := sentence.strip()) and any(c.isalnum() for c in one)]


def _ends(block: str, match: re.Match[str]) -> bool:
    # Windows, not slices to the ends: a text of nothing but stops must not take quadratic time.
    before = block[max(0, match.start() - _WINDOW) : match.start()]
    mark, after = match.group(), block[match.end() : match.end() + _WINDOW].lstrip()
    if not after:
        return True
    if after[0].islower():  # "Why?" he asked; e.g. this; wait... what
        return False
    if mark[0] != "." or mark.startswith(".."):
        return True
    word = re.search(r"[^\s(\"'\[]*$", before)
    last = word.group() if word else ""
    bare = last.replace(".", "").casefold()
    if re.fullmatch(r"(?:[-*#]\s*)?\d{1,3}", before.rpartition("\n")[2].strip()):
        return False  # "1. First" numbers a list
    if re.fullmatch(r"[A-Z](?:\.[A-Z])*", last) and last != "I":  # J. Doe, the U.S. Army; but: Plan B. It failed.
        return after.split()[0].casefold().strip(".,") in _STARTERS
    if bare in _ENDS_BOTH_WAYS:
        return not (bare in _BEFORE_NUMBERS and after[0].isdigit())
    return bare not in _ABBREVIATIONS


def paragraphs(text: str) -> list[str]:
    """The blocks between blank lines.

    >>> paragraphs("\\n\\nOne.\\n \\nTwo.\\n")
    ['One.', 'Two.']
    """
    return [block.strip() for block in _BLANK_LINE.split(visible(text).replace("\r\n", "\n").strip()) if block.strip()]


def count_phrase(text: str, phrase: str) -> int:
    """How often a phrase stands in a text as whole words, whatever its case and line breaks.

    >>> count_phrase("Art is start; ART\\nis art.", "art"), count_phrase("new  York", "New York")
    (3, 1)
    """
    sought = plain(phrase).strip()
    inside = r"\s+".join(map(re.escape, sought.split()))
    left = r"(?<!\w)" if sought[:1].isalnum() else ""
    right = r"(?!\w)" if sought[-1:].isalnum() else ""
    return len(re.findall(f"{left}{inside}{right}", plain(text), re.IGNORECASE))
