r"""``choice``: an option of a multiple-choice question, by its letter or by its text.

Looked for in this order, and the first place that states an option decides: boxes, ``<answer>``, statements such as
``Answer: B``, ``the answer is (B)``, ``I would pick B``, ``B is correct``; then lines that begin with the letter
alone (``B``, ``(B)``, ``B. 12``), letters in brackets, and the text of an option, if all of those agree. Several
options in an answer's place ("A or B") are a wrong answer, and so are a letter with another option's text and an
answer taken back; letters elsewhere that disagree are no answer. A denied option ("not B") is not stated. A letter
inside a word, the article "a" and the pronoun "I" are not options.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import field_validator

from assay.recipe.schema import Section
from assay.reward.commitment import committed
from assay.reward.extraction import Box, after_thinking, before_next_question, boxes, tag_places
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error

_OPEN = r"[\s$*_(\[{\"'`“]{0,20}"
_LETTER = (
    r"(?<![A-Za-z\\])(?:\\(?:text|textbf|mathrm|mathbf|textit)\s*\{\s*\(?)?([A-Za-z])(?![A-Za-z+#]|['\u2019][A-Za-z])"
)
_WORD = r"(?:(?i:both|either|option|choice|letter|answer)\s+)?"
_STATED = re.compile(
    r"(?i:\b(?:answer|ans|antwort|solution|respuesta|r[ée]ponse|risposta|resposta|correct\s+(?:option|choice|letter)|"
    r"(?:best|final|right)\s+(?:option|choice))\b[*_\s\"']*"
    r"(?:[:=\-–]|(?:is|would\s+be|must\s+be|should\s+be|has\s+to\s+be|seems\s+to\s+be|will\s+be)\b)|(?:答案|答え|正解|정답|답|[Оо]твет)(?:是|为|は|은|：)?)"
    r"[*_\s]*:?"
)
_PICKED = re.compile(r"(?i:\b(?:pick|choose|select|go(?:ing)?\s+with|choice\s+is|opt\s+for)\b)")
_SUBJECT = re.compile(
    rf"{_WORD}{_OPEN}{_LETTER}[)\]}}*]*\s+(?:is|must be|has to be)\s+(?:clearly\s+)?(?:the\s+)?(?:only\s+)?"
    r"(?:correct|right|best|true)(?:\s+(?:answer|option|choice|one))?(?=[\s*]*(?:[.,;!]|$|because|since|as\b))"
)
_ALONE = re.compile(rf"(?i:(?:option|choice)\s+)?{_OPEN}{_LETTER}(?:\s*(?:[)\]}}.:*\"'$`]|-\s)[^\n]*)?")
_BRACKETED = re.compile(r"\(([A-Za-z])\)")
_ALSO = re.compile(
    rf"[\s*)\]}}$]*(?:,|/|\||&|\+|\\text\s*\{{\s*(?:or|and)\s*\}}|\(?\s*\bor\b|\band\b)\s*"
    rf"(?:(?:or|and|maybe|perhaps|possibly|even|also)\s+)*(?:(?i:option|choice)\s+)?{_OPEN}{_LETTER}"
)
_DENIED = re.compile(
    r"[\s*_]*(?:(?:definitely|certainly|clearly|probably|surely)\s+)?(?:not|never|neither|anything\s+but|none|cannot)\b",
    re.I,
)
_NOT_BEFORE = re.compile(
    r"(?:\bnot|n't|n\u2019t|\bnever|\bneither|\bnor|\brather than|\binstead of)\s+(?:\w+\s+){0,2}\Z", re.I
)
_NOT_BUT = re.compile(
    rf"\s*not\s+{_WORD}{_OPEN}{_LETTER}[\s)\]}}*,;$]*(?:\bbut\b|\brather\b|\binstead\b)(?:\s+(?:it\s+is|rather|instead))?",
    re.I,
)
_SO = re.compile(
    rf"\b(?i:so|thus|hence|therefore)\b,?\s+(?i:it\s+(?:is|must\s+be)\s+)?(?={_WORD}{_OPEN}{_LETTER}[)\]}}*$.!\s]*\Z)"
)
_CUE_WORD = re.compile(r"\banswer|\bantwort|答案", re.IGNORECASE)
_LONGEST = 2000
"""Characters of a statement that are read."""
_MOST = 200
"""Statements of an answer that are read, from the end."""


class ChoiceOptions(Section):
    """Options of ``choice``."""

    letters: str = "ABCDEFGHIJ"
    """The letters of the options, where the row does not list them."""
    column: str = "options"
    """Column with the options: letter -> text, or a list of texts. Rows without it use `letters`."""

    @field_validator("letters")
    @classmethod
    def _are_letters(cls, letters: str) -> str:
        if not letters.isascii() or not letters.isalpha() or not letters.isupper():
            raise ValueError("must be capital letters")
        return letters


@register("choice", ChoiceOptions)
@dataclass(frozen=True)
class Choice:
    """Score 1 for the gold option alone, else 0."""

    options: ChoiceOptions

    def __call__(self, case: Case) -> Judgement:
        """Find the option that is stated and compare it with the gold one."""
        texts = self._texts(case.columns)
        gold = _gold_letter(case.gold, texts)
        if gold is None:
            return verifier_error(f"the gold answer {str(case.gold)[:60]!r} is none of the options {''.join(texts)}")
        spoken = after_thinking(case)
        if spoken.text is None:
            return no_answer(spoken.why)
        found, withdrawn = find_options(spoken.text, texts)
        if not found:
            return no_answer("no option stated, or several without saying which")
        answer = ", ".join(found)
        fault = "it was taken back" if withdrawn else "" if found == [gold] else f"expected {gold}"
        return Judgement(float(not fault), "scored", answer, fault)

    def canary(self, gold: Any) -> str:
        """The gold letter after ``Answer:``."""
        return f"Answer: {gold}"

    def _texts(self, columns: Mapping[str, Any]) -> dict[str, str]:
        """Letter -> text, in one spelling; texts are empty where the row does not list them."""
        listed = columns.get(self.options.column)
        if isinstance(listed, Mapping) and listed:
            return {str(key).upper(): _spelled(str(text)) for key, text in listed.items() if len(str(key)) == 1}
        if isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
            return dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", (_spelled(str(text)) for text in listed), strict=False))
        return dict.fromkeys(self.options.letters, "")


def _spelled(text: str) -> str:
    """An option's text without decoration, in lower case."""
    text = re.sub(r"\\(?:text|textbf|mathrm)\s*\{([^{}]*)\}", r"\1", text)
    return " ".join(text.casefold().strip(" \t\n.,;:!$*_`\"'(){}").split())


def _gold_letter(gold: Any, texts: Mapping[str, str]) -> str | None:
    if gold is None or isinstance(gold, (bool, dict, list)):
        return None
    match = _ALONE.fullmatch(str(gold).strip())
    if match and match[1].upper() in texts:
        return match[1].upper()
    named = [letter for letter, text in texts.items() if text and text == _spelled(str(gold))]
    return named[0] if len(named) == 1 else None


def find_options(text: str, texts: Mapping[str, str]) -> tuple[list[str], bool]:
    r"""The options that a text states as its answer, and whether they were taken back; several are a hedge.

    >>> find_options("The answer is B. Note that A is a distractor.", dict.fromkeys("ABCD", ""))
    (['B'], False)
    >>> find_options(r"\boxed{\text{D}}", {"D": "18"}), find_options("Answer: A or B", {"A": "", "B": ""})
    ((['D'], False), (['A', 'B'], False))
    >>> find_options("A is wrong and so is B", {"A": "", "B": ""}), find_options("Velocity.", {"A": "velocity"})
    (([], False), (['A'], False))
    """
    text = unicodedata.normalize("NFKC", text)
    if cue := _CUE_WORD.search(text):
        text = before_next_question(text, cue.end())
    found, left_open = boxes(text)
    if left_open:
        return [], False
    tags = tag_places(text, "answer")
    for places in (found, tags):
        if any(place.content.strip() for place in places):
            stands = committed(text, places)
            read = [_slot(content, 0, texts)[0] for content in stands.answers]
            return _merged(read), stands.withdrawn
    stated = _statements(text, texts)
    if stated:
        stands = committed(text, stated)
        return _merged([answer.split(",") for answer in stands.answers]), stands.withdrawn
    return _agreed(text, texts), False


def _statements(text: str, texts: Mapping[str, str]) -> list[Box]:
    """Every statement of an answer, with its letters as its content, in order."""
    found: list[Box] = []
    for cue in (_STATED, _PICKED, _SO):
        for match in list(cue.finditer(text))[-_MOST:]:
            letters, end = _slot(text, match.end(), texts)
            if letters and not _NOT_BEFORE.search(text[max(match.start() - 30, 0) : match.start()]):
                found.append(Box(",".join(letters), match.start(), end))
    for match in list(_SUBJECT.finditer(text))[-_MOST:]:
        letter = match[1].upper()
        if (
            letter in texts
            and match[1].isupper()
            and not _NOT_BEFORE.search(text[max(match.start() - 30, 0) : match.start()])
        ):
            found.append(Box(letter, match.start(), match.end()))
    places = sorted(found, key=lambda place: (place.start, place.end))
    return [p for i, p in enumerate(places) if not any(q.start <= p.start < q.end for q in places[:i])]


def _slot(text: str, start: int, texts: Mapping[str, str]) -> tuple[list[str], int]:
    """The options at the start of an answer's place, and where their statement ends; none for a denied one."""
    if instead := _NOT_BUT.match(text, start):
        start = instead.end()
    if _DENIED.match(text, start):
        return [], start
    first = re.compile(rf"\s*{_WORD}{_OPEN}{_LETTER}").match(text, start)
    if first is None or not _is_option(first, texts):
        return _named(text, start, texts)
    found, end = [first[1].upper()], first.end()
    while (more := _ALSO.match(text, end)) and _is_option(more, texts):
        found.append(more[1].upper())
        end = more.end()
    rest = re.match(r"[\s)\]}.:*$-]*([^\n]*)", text[end : end + _LONGEST])
    said = _spelled(rest[1]) if rest else ""
    others = [letter for letter, option in texts.items() if option and option == said and letter not in found]
    same = any(texts[letter] == said for letter in found)
    if rest and said and (others or same):
        end += rest.end()
    return list(dict.fromkeys([*found, *([] if same else others)])), end


def _named(text: str, start: int, texts: Mapping[str, str]) -> tuple[list[str], int]:
    """The option whose text begins here, and those joined to it by "or"."""
    line = text[start : start + _LONGEST].lstrip().partition("\n")[0]
    slot = _spelled(re.sub(r"^(?:the|a|an)\s+", "", line, flags=re.IGNORECASE))
    found: list[str] = []
    for letter, option in sorted(texts.items(), key=lambda pair: -len(pair[1])):
        if option and re.match(rf"{re.escape(option)}(?=$|[.,;!?)]|\s(?:because|since|as|or|and|not)\b)", slot):
            rest = slot[len(option) :]
            found = [letter]
            found += [
                x for x, other in texts.items() if other and re.match(rf"\W*(?:or|and)\s+{re.escape(other)}\b", rest)
            ]
            break
    return found, start + len(line) if found else start


def _is_option(match: re.Match[str], texts: Mapping[str, str]) -> bool:
    letter, after = match.group(1), match.string[match.end() : match.end() + 80]
    if letter.upper() not in texts:
        return False
    if letter.islower():  # "b", "b)", "b." but not "a good one"
        return not re.match(r"\s*\w|\s+[(\"]", after)
    # "A car ..." and "I think ..." are words; "A because ..." is an option.
    return letter not in "AI" or not re.match(r"\s+(?!because|since|as\b|for\b|or\b|and\b|with\b|not\b)[a-z]", after)


def _agreed(text: str, texts: Mapping[str, str]) -> list[str]:
    """The one option that lines, brackets and texts of options name, if there is only one."""
    named = {letter.upper() for letter in _BRACKETED.findall(text) if letter.upper() in texts}
    lines = [
        set(_slot(line, 0, texts)[0]) if _ALONE.fullmatch(line) else set() for line in map(str.strip, text.splitlines())
    ]
    kept = [found for found in lines if found]
    if [sorted(found) for found in kept[: len(texts)]] == [[letter] for letter in texts] and len(kept) > len(texts) > 1:
        kept = kept[len(texts) :]  # the list of options, repeated before the answer
    named |= set().union(*kept)
    if not named:
        words = [letter for letter, option in texts.items() if re.search(r"[^\W\d]{4}", option)]
        spoken = " ".join(text.casefold().split())
        for letter in words:
            for match in re.finditer(rf"\b{re.escape(texts[letter])}\b", spoken):
                if _NOT_BEFORE.search(spoken[: match.start()]):
                    return []
                named.add(letter)
        if not named:
            named = {letter for letter, option in texts.items() if option and option == _spelled(text)}
    denied = any(
        re.search(
            rf"(?:\bnot|n't)\s+(?:\w+\s+)?\W*{x}\b|\b{x}\W*\s+(?:is|seems)\s+(?:\w+\s+)?(?:wrong|incorrect|not|false)\b",
            text,
        )
        for x in named
    )
    return sorted(named) if len(named) == 1 and not denied else []


def _merged(groups: Sequence[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(letter for group in groups for letter in group))
