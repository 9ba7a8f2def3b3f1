"""Instructions about how much there is: words, sentences, paragraphs."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from assay.recipe.schema import Section
from assay.reward.constraints.constraint import Relation, compare, constraint
from assay.reward.prose import paragraphs, plain, sentences, visible, words

_DIVIDER = re.compile(r"(?<![*\w])\*\*\*(?![*\w])")


class Words(Section):
    """A number of words."""

    num_words: int = Field(ge=0)
    relation: Relation


class Sentences(Section):
    """A number of sentences."""

    num_sentences: int = Field(ge=0)
    relation: Relation


class Paragraphs(Section):
    """A number of paragraphs, divided by ``***``."""

    num_paragraphs: int = Field(ge=1)
    relation: Relation = "exactly"


class FirstWord(Section):
    """The first word of one of so many paragraphs, divided by blank lines."""

    num_paragraphs: int = Field(ge=1)
    nth_paragraph: int = Field(ge=1)
    first_word: str = Field(min_length=1)

    @model_validator(mode="after")
    def _is_there(self) -> FirstWord:
        if self.nth_paragraph > self.num_paragraphs:
            raise ValueError(f"paragraph {self.nth_paragraph} of {self.num_paragraphs}")
        return self


@constraint("length_constraints:number_words", Words)
def number_words(text: str, asked: Words) -> str:
    """So many words; punctuation is none."""
    return compare(len(words(text)), asked.relation, asked.num_words, "words")


@constraint("length_constraints:number_sentences", Sentences)
def number_sentences(text: str, asked: Sentences) -> str:
    """So many sentences; the stop of an abbreviation ends none."""
    return compare(len(sentences(text)), asked.relation, asked.num_sentences, "sentences")


@constraint("length_constraints:number_paragraphs", Paragraphs)
def number_paragraphs(text: str, asked: Paragraphs) -> str:
    """So many paragraphs with a divider ``***`` between each two, none of them empty."""
    blocks = [block.strip() for block in _DIVIDER.split(visible(text))]
    if any(not block for block in blocks[1:-1]):
        return "an empty paragraph"
    return compare(sum(map(bool, blocks)), asked.relation, asked.num_paragraphs, "paragraphs")


@constraint("length_constraints:nth_paragraph_first_word", FirstWord)
def nth_paragraph_first_word(text: str, asked: FirstWord) -> str:
    """Exactly so many paragraphs, and the n-th begins with the word, in any case."""
    blocks = paragraphs(text)
    if len(blocks) != asked.num_paragraphs:
        return f"{len(blocks)} paragraphs, not {asked.num_paragraphs}"
    first, wanted = words(blocks[asked.nth_paragraph - 1])[:1], words(asked.first_word)
    if [word.casefold() for word in first] == [plain(word).casefold() for word in wanted]:
        return ""
    return f"paragraph {asked.nth_paragraph} begins with {first[0] if first else 'no word'!r}"
