"""Instructions about words and letters: existence, absence, how often."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from assay.recipe.schema import Section
from assay.reward.constraints.constraint import Relation, compare, constraint
from assay.reward.prose import count_phrase, plain, words


def _phrases(given: list[str]) -> list[str]:
    if not given or not all(phrase.strip() for phrase in given):
        raise ValueError("must name at least one word, and no empty one")
    return given


class Keywords(Section):
    """Words that must stand in the text."""

    keywords: list[str]
    _filled = field_validator("keywords")(_phrases)


class Forbidden(Section):
    """Words that must not stand in the text."""

    forbidden_words: list[str]
    _filled = field_validator("forbidden_words")(_phrases)


class Frequency(Section):
    """How often a word stands in the text."""

    keyword: str = Field(min_length=1)
    frequency: int = Field(ge=0)
    relation: Relation


class LetterFrequency(Section):
    """How often a letter or sign stands in the text."""

    letter: str = Field(min_length=1, max_length=1)
    let_frequency: int = Field(ge=0)
    let_relation: Relation


class CapitalFrequency(Section):
    """How many words are written in capitals."""

    capital_frequency: int = Field(ge=0)
    capital_relation: Relation


@constraint("keywords:existence", Keywords)
def existence(text: str, asked: Keywords) -> str:
    """Each word is there as a whole word, in any case."""
    missing = [word for word in asked.keywords if not count_phrase(text, word)]
    return f"{missing[0]!r} is missing" if missing else ""


@constraint("keywords:forbidden_words", Forbidden)
def forbidden_words(text: str, asked: Forbidden) -> str:
    """None of the words is there as a whole word, in any case."""
    found = [word for word in asked.forbidden_words if count_phrase(text, word)]
    return f"{found[0]!r} is forbidden" if found else ""


@constraint("keywords:frequency", Frequency)
def frequency(text: str, asked: Frequency) -> str:
    """The word is there so often as a whole word, in any case."""
    return compare(count_phrase(text, asked.keyword), asked.relation, asked.frequency, f"times {asked.keyword!r}")


@constraint("keywords:letter_frequency", LetterFrequency)
def letter_frequency(text: str, asked: LetterFrequency) -> str:
    """The letter is there so often, in any case; a sign as it is."""
    count = plain(text).casefold().count(plain(asked.letter).casefold())
    return compare(count, asked.let_relation, asked.let_frequency, f"times {asked.letter!r}")


@constraint("change_case:capital_word_frequency", CapitalFrequency)
def capital_word_frequency(text: str, asked: CapitalFrequency) -> str:
    """So many words have letters, and all of them capital."""
    count = sum(word.isupper() for word in words(text))
    return compare(count, asked.capital_relation, asked.capital_frequency, "words in capitals")


@constraint("change_case:english_capital")
def english_capital(text: str, asked: Section) -> str:
    """Latin letters, all of them capital; digits and signs are free."""
    return _cased(text, small=False)


@constraint("change_case:english_lowercase")
def english_lowercase(text: str, asked: Section) -> str:
    """Latin letters, none of them capital; digits and signs are free."""
    return _cased(text, small=True)


def _cased(text: str, *, small: bool) -> str:
    letters = [letter for letter in text if letter.isalpha()]
    if not letters:
        return "no letters"
    if strange := [letter for letter in letters if not re.match(r"[A-Za-z\u00aa-\u024f\u1e00-\u1eff]", letter)]:
        return f"{strange[0]!r} is no letter of English"
    wrong = [letter for letter in letters if (letter.lower() if small else letter.upper()) != letter]
    return f"{len(wrong)} letters in the other case" if wrong else ""
