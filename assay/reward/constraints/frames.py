"""Instructions about the whole text: how it begins and ends, its language, two answers, the repeated request."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from assay.errors import UserError
from assay.recipe.schema import Section
from assay.reward.constraints.constraint import constraint
from assay.reward.language_guess import guess, is_in, language_code
from assay.reward.prose import plain, words

_SIX_STARS = re.compile(r"(?<!\*)\*{6}(?!\*)")


def _language(name: str) -> str:
    try:
        return language_code(name)
    except UserError as error:
        raise ValueError(str(error)) from None


class ResponseLanguage(Section):
    """The language of the whole text, by code or English name."""

    language: Annotated[str, AfterValidator(_language)]


class Start(Section):
    """What the text begins with."""

    start_phrase: str = Field(min_length=1)


class End(Section):
    """What the text ends with."""

    end_phrase: str = Field(min_length=1)


class Repeat(Section):
    """The request to be repeated before the answer."""

    prompt_to_repeat: str = Field(min_length=1)


@constraint("language:response_language", ResponseLanguage)
def response_language(text: str, asked: ResponseLanguage) -> str:
    """Nine tenths of the letters in the language's script, and no other language more likely by its words."""
    return "" if is_in(text, asked.language) else f"not {asked.language}, but {guess(text) or 'another language'}"


@constraint("startend:start_checker", Start)
def start_checker(text: str, asked: Start) -> str:
    """The first words are the phrase, in any case."""
    return "" if _begins(text, asked.start_phrase) else f"does not begin with {asked.start_phrase[:60]!r}"


@constraint("startend:end_checker", End)
def end_checker(text: str, asked: End) -> str:
    """The last words are the phrase, in any case; a closing quotation mark may follow."""
    ending, phrase = _squeezed(text).rstrip('"').rstrip(), _squeezed(asked.end_phrase).strip('"')
    before = ending[: -len(phrase)]
    cut_word = phrase[:1].isalnum() and before[-1:].isalnum()
    return "" if ending.endswith(phrase) and not cut_word else f"does not end with {asked.end_phrase[:60]!r}"


@constraint("startend:quotation")
def quotation(text: str, asked: Section) -> str:
    """The whole text stands in double quotation marks, with words inside."""
    stripped = plain(text).strip()
    wrapped = len(stripped) > 2 and stripped[0] == stripped[-1] == '"'
    return "" if wrapped and words(stripped) else "not in double quotation marks"


@constraint("combination:two_responses")
def two_responses(text: str, asked: Section) -> str:
    """Two different texts, parted by six asterisks."""
    responses = [part.strip() for part in _SIX_STARS.split(text)]
    responses = [part for place, part in enumerate(responses) if part or 0 < place < len(responses) - 1]
    if len(responses) != 2 or not all(map(words, responses)):
        return f"{len(responses)} responses parted by ******"
    return "" if _squeezed(responses[0]) != _squeezed(responses[1]) else "twice the same response"


@constraint("combination:repeat_prompt", Repeat)
def repeat_prompt(text: str, asked: Repeat) -> str:
    """The request comes first, word for word, then an answer."""
    if not _begins(text, asked.prompt_to_repeat):
        return "the request is not repeated first"
    rest = _squeezed(text)[len(_squeezed(asked.prompt_to_repeat)) :]
    return "" if words(rest) else "no answer after the request"


@constraint("punctuation:no_comma")
def no_comma(text: str, asked: Section) -> str:
    """No comma of any script."""
    count = len(re.findall("[,\uff0c\u3001\u060c]", text))
    return f"{count} comma{'s' * (count > 1)}" if count else ""


def _squeezed(text: str) -> str:
    return " ".join(plain(text).split()).casefold()


def _begins(text: str, phrase: str) -> bool:
    whole, sought = _squeezed(text), _squeezed(phrase)
    return whole.startswith(sought) and not (sought[-1:].isalnum() and whole[len(sought) :][:1].isalnum())
