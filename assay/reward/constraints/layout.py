"""Instructions about marks in the text: bullets, titles, sections, highlights, placeholders, postscripts, JSON."""

from __future__ import annotations

import re

from pydantic import Field

from assay.recipe.schema import Section
from assay.reward.constraints.constraint import Relation, compare, constraint
from assay.reward.prose import plain, words
from assay.reward.strict_json import JsonFault, find_json

_BULLET = re.compile(r"^[ \t]*(?:[-*+][ \t]+|[\u2022\u25e6\u2023][ \t]*)(?=\S)(?![-*_ \t]*$)", re.MULTILINE)
_HIGHLIGHT = re.compile(r"(?<![*\w\\])(\*{1,3})(?=[^\s*])([^*\n]*[^\s*\\]|[^\s*])\1(?![*\w])")
_TITLE = re.compile(r"<<([^\n<>]+)>>")
_PLACEHOLDER = re.compile(r"\[([^\[\]\n]*)\](?!\()")
_OPTIONS = ("my answer is yes.", "my answer is no.", "my answer is maybe.")


class Bullets(Section):
    """A number of bullet points."""

    num_bullets: int = Field(ge=0)
    relation: Relation = "exactly"


class Highlights(Section):
    """A number of highlighted sections."""

    num_highlights: int = Field(ge=0)
    relation: Relation = "at least"


class Sections(Section):
    """A number of sections that begin with a marker and their number."""

    section_spliter: str = Field(min_length=1)
    num_sections: int = Field(ge=1)
    relation: Relation = "at least"


class Placeholders(Section):
    """A number of placeholders."""

    num_placeholders: int = Field(ge=0)
    relation: Relation = "at least"


class Postscript(Section):
    """How the postscript begins."""

    postscript_marker: str = Field(min_length=1)


@constraint("detectable_format:number_bullet_lists", Bullets)
def number_bullet_lists(text: str, asked: Bullets) -> str:
    """So many lines that begin with ``* ``, ``- ``, ``+ `` or a bullet sign and hold something; ``---`` is a rule."""
    return compare(len(_BULLET.findall(plain(text))), asked.relation, asked.num_bullets, "bullets")


@constraint("detectable_format:number_highlighted_sections", Highlights)
def number_highlighted_sections(text: str, asked: Highlights) -> str:
    """So many ``*sections*`` (also ``**bold**`` ones), none empty, each within a line."""
    return compare(len(_HIGHLIGHT.findall(plain(text))), asked.relation, asked.num_highlights, "highlighted sections")


@constraint("detectable_format:multiple_sections", Sections)
def multiple_sections(text: str, asked: Sections) -> str:
    """So many lines that begin with the marker and a number; each section has content."""
    marker = re.escape(asked.section_spliter.strip())
    found = list(re.finditer(rf"^[#*_ \t]*{marker}[ \t]*(?:\d+|[IVXLC]+\b|[A-Z]\b)", text, re.MULTILINE))
    ends = [*(match.start() for match in found[1:]), len(text)]
    for match, end in zip(found, ends, strict=False):
        if not words(text[match.end() : end]):
            return f"{match.group().strip()!r} is empty"
    return compare(len(found), asked.relation, asked.num_sections, "sections")


@constraint("detectable_format:title")
def title(text: str, asked: Section) -> str:
    """A title with a word in double angular brackets."""
    return "" if any(words(found) for found in _TITLE.findall(text)) else "no <<title>>"


@constraint("detectable_format:json_format")
def json_format(text: str, asked: Section) -> str:
    """The whole text is JSON, alone or in one code fence."""
    try:
        find_json(text, "either")
    except JsonFault as fault:
        return str(fault)
    return ""


@constraint("detectable_format:constrained_response")
def constrained_response(text: str, asked: Section) -> str:
    """Exactly one of "My answer is yes." / "... no." / "... maybe." is there."""
    found = [option for option in _OPTIONS if option in plain(text).casefold()]
    return "" if len(found) == 1 else f"{len(found)} of the allowed answers"


@constraint("detectable_content:number_placeholders", Placeholders)
def number_placeholders(text: str, asked: Placeholders) -> str:
    """So many ``[placeholders]``; a link is none."""
    return compare(
        sum(bool(words(found)) for found in _PLACEHOLDER.findall(text)),
        asked.relation,
        asked.num_placeholders,
        "placeholders",
    )


@constraint("detectable_content:postscript", Postscript)
def postscript(text: str, asked: Postscript) -> str:
    """The marker (``P.S.``), in any case, with words after it; ``P.P.S.`` is another marker."""
    marker = r"\s*".join(re.escape(letter) for letter in plain(asked.postscript_marker) if not letter.isspace())
    found = re.search(rf"(?<![\w.]){marker}(?![A-Za-z])(.*)", plain(text), re.IGNORECASE | re.DOTALL)
    if found is None:
        return f"no {asked.postscript_marker}"
    return "" if words(found[1]) else "the postscript is empty"
