"""Instructions beyond IFEval's own, as later collections have them (IFBench, Pyatkin et al. 2025, arXiv:2507.02833)."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from itertools import pairwise

from pydantic import Field, model_validator

from assay.recipe.schema import Section
from assay.reward.constraints.constraint import Relation, compare, constraint
from assay.reward.prose import count_phrase, plain, sentences, words

_VOWELS = frozenset("aeiou")


class WordRange(Section):
    """Between so many and so many words."""

    min_words: int = Field(ge=0)
    max_words: int = Field(ge=0)

    @model_validator(mode="after")
    def _is_a_range(self) -> WordRange:
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is above max_words {self.max_words}")
        return self


class Count(Section):
    """A number of things."""

    N: int = Field(ge=0)
    relation: Relation = "at least"


class ExactCount(Section):
    """An exact number of things."""

    N: int = Field(ge=0)
    relation: Relation = "exactly"


class SentenceKeyword(Section):
    """A word in the n-th sentence."""

    word: str = Field(min_length=1)
    N: int = Field(ge=1)


class Repeats(Section):
    """How often any word may stand at most."""

    small_n: int = Field(ge=1)


@constraint("ratio:sentence_words")
def sentence_words(text: str, asked: Section) -> str:
    """Three sentences of equally many characters, and no word stands twice."""
    found = sentences(text)
    if len(found) != 3:
        return f"{len(found)} sentences, not 3"
    if len(lengths := {len(sentence) for sentence in found}) > 1:
        return f"sentences of {', '.join(map(str, sorted(lengths)))} characters"
    said = Counter(word.casefold() for word in words(text))
    twice = [word for word, times in said.items() if times > 1]
    return f"{twice[0]!r} stands twice" if twice else ""


@constraint("count:word_count_range", WordRange)
def word_count_range(text: str, asked: WordRange) -> str:
    """At least and at most so many words."""
    count = len(words(text))
    return compare(count, "at least", asked.min_words, "words") or compare(count, "at most", asked.max_words, "words")


@constraint("count:unique_word_count", Count)
def unique_word_count(text: str, asked: Count) -> str:
    """So many different words, whatever their case."""
    return compare(len({word.casefold() for word in words(text)}), asked.relation, asked.N, "different words")


@constraint("count:numbers", ExactCount)
def numbers(text: str, asked: ExactCount) -> str:
    """So many numbers written in digits."""
    found = re.findall(r"(?<![\w.])\d+(?:[.,]\d+)*(?![\w])", plain(text))
    return compare(len(found), asked.relation, asked.N, "numbers")


@constraint("sentence:keyword", SentenceKeyword)
def sentence_keyword(text: str, asked: SentenceKeyword) -> str:
    """The n-th sentence has the word."""
    found = sentences(text)
    if len(found) < asked.N:
        return f"{len(found)} sentences, none of them number {asked.N}"
    return "" if count_phrase(found[asked.N - 1], asked.word) else f"sentence {asked.N} lacks {asked.word!r}"


@constraint("words:repeats", Repeats)
def repeats(text: str, asked: Repeats) -> str:
    """No word stands more often than so."""
    said = Counter(word.casefold() for word in words(text))
    worst = max(((times, word) for word, times in said.items()), default=(0, ""))
    return compare(worst[0], "at most", asked.small_n, f"times {worst[1]!r}")


@constraint("words:alphabet")
def alphabet(text: str, asked: Section) -> str:
    """Each word begins with the letter after the one that the word before began with; a follows z."""
    initials = [word[0].casefold() for word in words(text)]
    for before, here in pairwise(initials):
        if not (before.isascii() and before.isalpha()) or here != ("a" if before == "z" else chr(ord(before) + 1)):
            return f"{here!r} follows {before!r}"
    return "" if initials else "no words"


@constraint("words:no_consecutive")
def no_consecutive(text: str, asked: Section) -> str:
    """No two words in a row begin with the same letter."""
    initials = [word[0].casefold() for word in words(text)]
    twice = [one for one, other in pairwise(initials) if one == other]
    return f"two words in a row begin with {twice[0]!r}" if twice else ""


@constraint("words:vowel")
def vowel(text: str, asked: Section) -> str:
    """No word has more than three different kinds of vowels: the whole text uses at most three."""
    used = sorted(_VOWELS & set(text.casefold()))
    return f"{len(used)} kinds of vowels" if len(used) > 3 else ""


@constraint("words:palindrome")
def palindrome(text: str, asked: Section) -> str:
    """At least ten single-word palindromes, each of five letters or more."""
    found = [word for word in words(text) if len(word) >= 5 and word.casefold() == word.casefold()[::-1]]
    return compare(len(found), "at least", 10, "palindromes")


@constraint("format:title_case")
def title_case(text: str, asked: Section) -> str:
    """Each word that begins with a letter begins with a capital one."""
    small = [word for word in words(text) if word[0].islower()]
    return f"{small[0]!r} begins small" if small else ""


@constraint("format:no_whitespace")
def no_whitespace(text: str, asked: Section) -> str:
    """No blank, tab or line break inside the text."""
    return "white space" if re.search(r"\s", text.strip()) else ""


@constraint("format:emoji")
def emoji(text: str, asked: Section) -> str:
    """Each sentence ends with an emoji (before or after its stop)."""
    lines = [line.strip() for line in re.split(r"(?<=[.!?])\s+(?=[A-Z])|\n+", text) if line.strip()]
    for line in lines:
        last = line.rstrip(".!?\ufe0f\u200d ")
        if not last or unicodedata.category(last[-1]) not in ("So", "Sk"):
            return f"no emoji at the end of {line[:40]!r}"
    return "" if lines else "no sentences"


@constraint("punctuation:punctuation_dot")
def punctuation_dot(text: str, asked: Section) -> str:
    """No full stop."""
    return "a full stop" if "." in text else ""


@constraint("punctuation:punctuation_exclamation")
def punctuation_exclamation(text: str, asked: Section) -> str:
    """No exclamation mark."""
    return "an exclamation mark" if re.search("[!\uff01]", text) else ""


@constraint("detectable_format:square_brackets")
def square_brackets(text: str, asked: Section) -> str:
    """Each word stands in square brackets."""
    bare = words(re.sub(r"\[[^\[\]]*\]", " ", text))
    return f"{bare[0]!r} stands outside of brackets" if bare else "" if words(text) else "no words"
