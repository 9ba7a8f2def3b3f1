"""Which language a text is in, from its letters and its commonest words: no model, no download, no chance.

A language with a script of its own (Thai, Korean, Greek, ...) is known by its letters. Those that share a
script (Latin, Cyrillic, Arabic, Devanagari, Chinese letters) are told apart by common words and by letters
that only some of them use. Left out: telling very close ones apart in a short text; then nothing is claimed.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache

from assay.errors import UserError, nearest
from assay.reward.languages import LANGUAGES
from assay.reward.prose import plain

_OTHER_NAMES = {"mandarin": "zh", "farsi": "fa", "nb": "no", "bangla": "bn", "castilian": "es"}
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")


def language_code(name: str) -> str:
    """The code of a language named by code or English name; UserError for one that is not known here.

    >>> language_code("German"), language_code("zh-CN"), language_code("EN")
    ('de', 'zh', 'en')
    """
    sought = name.strip().casefold().replace("_", "-")
    names = {language.name: code for code, language in LANGUAGES.items()}
    code = _OTHER_NAMES.get(sought) or names.get(sought) or sought.partition("-")[0]
    if code not in LANGUAGES:
        raise UserError(
            f"unknown language {name!r}{nearest(sought, [*names, *LANGUAGES])}; known: {', '.join(LANGUAGES)}"
        )
    return code


@cache
def script(letter: str) -> str:
    """The script of a letter: the first word of its Unicode name; empty for what is no letter.

    >>> script("a"), script("я"), script("5")
    ('LATIN', 'CYRILLIC', '')
    """
    if not (letter.isalpha() or unicodedata.category(letter) in ("Mn", "Mc")):
        return ""
    name = unicodedata.name(letter, "").split(" ")[0]
    return "LATIN" if name in ("FULLWIDTH", "MODIFIER") else "" if name == "COMBINING" else name


def script_share(text: str, code: str) -> float:
    """The share of a text's letters that belong to a language's scripts; 1 for a text without letters.

    >>> script_share("ab яю", "ru"), script_share("12", "ru")
    (0.5, 1.0)
    """
    counted = Counter(found for letter in unicodedata.normalize("NFC", text) if (found := script(letter)))
    total = sum(counted.values())
    return sum(counted[name] for name in LANGUAGES[code].scripts) / total if total else 1.0


def evidence(text: str) -> dict[str, float]:
    """Per language of the text's main script: how much speaks for it, in words; 0 where nothing does.

    >>> found = evidence("Der Hund ist nicht im Haus.")
    >>> max(found, key=found.get)
    'de'
    """
    lowered = plain(text).casefold()
    counted = Counter(found for letter in lowered if (found := script(letter)))
    if not counted:
        return {}
    if {"HIRAGANA", "KATAKANA"} & set(counted):
        kana = counted["HIRAGANA"] + counted["KATAKANA"]
        return {"ja": float(kana)} if kana * 20 > counted["CJK"] else {"zh": float(counted["CJK"])}
    main = counted.most_common(1)[0][0]
    if main == "CJK":
        return {"zh": float(counted["CJK"])}
    found = Counter(_WORD.findall(lowered))
    if main in ("DEVANAGARI", "ARABIC"):  # vowel signs split the words of a plain pattern
        found = Counter(re.findall(r"[^\s\u0964.,!?:;()\"\u060c\u061f]+", lowered))
    alike = {code: language for code, language in LANGUAGES.items() if main in language.scripts}
    if len(alike) == 1:
        return dict.fromkeys(alike, float(counted[main]))
    return {
        code: sum(times for word, times in found.items() if word in language.common)
        + 1.5 * sum(times for word, times in found.items() if any(letter in language.own for letter in word))
        for code, language in alike.items()
    }


def guess(text: str) -> str | None:
    """The language of a text where the evidence is clear, else ``None``.

    >>> guess("what is in the box?"), guess("Привет, как это было?"), guess("Oslo Berlin Paris")
    ('en', 'ru', None)
    """
    found = sorted(evidence(text).items(), key=lambda item: -item[1])
    if not found or found[0][1] < 1:
        return None
    return found[0][0] if len(found) == 1 or found[0][1] > found[1][1] else None


def is_in(text: str, code: str) -> bool:
    """Is a text in a language: nine tenths of its letters in its script, and no other language more likely?

    A text that shows no language's marks at all (names only) is taken for what it should be when its script
    belongs to several languages, since nothing speaks against it.

    >>> is_in("Guten Tag, das ist gut.", "de"), is_in("This is not the language.", "de"), is_in("", "de")
    (True, False, False)
    """
    if not any(script(letter) for letter in text) or script_share(text, code) < 0.9:
        return False
    found = evidence(text)
    best = max(found.values(), default=0.0)
    return found.get(code, 0.0) >= best
