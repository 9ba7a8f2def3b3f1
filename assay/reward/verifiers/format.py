"""``format``: the completion has the blocks of a template, each exactly once, in order, with content.

Accepts: the blocks with white space between and around them; an opening tag that ends the prompt counts as the
completion's. Rejects: a block that is missing, repeated, nested, empty, never closed or out of order; tags in
another case; text outside of the blocks, unless the template has a ``...`` there or ``loose`` allows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import field_validator

from assay.recipe.schema import Section
from assay.reward.prose import visible
from assay.reward.verifier import Case, Judgement, register

_BLOCK = re.compile(r"<(\w+)>\s*\.\.\.\s*</\1>")
_PIECE = re.compile(r"<(?P<tag>\w+)>\s*\.\.\.\s*</(?P=tag)>|(?P<text>\.\.\.)")


class FormatOptions(Section):
    """Options of ``format``."""

    template: str = "<think>...</think> <answer>...</answer>"
    """Blocks `<tag>...</tag>` in order; a `...` of its own is text that must be there; else only white space may
    stand between and around the blocks."""
    loose: bool = False
    """Other text may stand between and around the blocks."""
    eos: str = ""
    """End-of-turn text to drop from the end, where completions are recorded with it."""

    @field_validator("template")
    @classmethod
    def _is_blocks(cls, template: str) -> str:
        names = _BLOCK.findall(template)
        if not names or _PIECE.sub("", template).strip() or len(set(names)) < len(names):
            raise ValueError("must be blocks such as <think>...</think> <answer>...</answer>, each tag once")
        return template


@register("format", FormatOptions)
@dataclass(frozen=True)
class Format:
    """Score 1 when the completion has the form, else 0. An opening tag at the end of the prompt counts."""

    options: FormatOptions

    def __call__(self, case: Case) -> Judgement:
        """Check tag counts, then order and contents; the message names the first fault."""
        tags = _BLOCK.findall(self.options.template)
        text = case.completion.strip()
        if self.options.eos:
            text = text.removesuffix(self.options.eos).rstrip()
        if case.prompt.rstrip().endswith(f"<{tags[0]}>"):
            text = f"<{tags[0]}>{text}"
        for tag in tags:
            for mark in (f"<{tag}>", f"</{tag}>"):
                if (count := text.count(mark)) != 1:
                    return Judgement(0.0, message=f"{count} times {mark}")
        pieces = [piece["tag"] or "..." for piece in _PIECE.finditer(self.options.template)]
        match = self._pattern(pieces).fullmatch(text)
        if match is None:
            return Judgement(0.0, message="blocks out of order, or text around them")
        empty = [piece for piece, content in zip(pieces, match.groups(), strict=True) if not visible(content).strip()]
        return Judgement(0.0, message=f"{empty[0]} is empty") if empty else Judgement(1.0)

    def canary(self, gold: Any) -> str:
        """The template with the gold answer in every block."""
        return self.options.template.replace("...", str(gold) or "...")

    def _pattern(self, pieces: list[str]) -> re.Pattern[str]:
        tags = set(_BLOCK.findall(self.options.template))
        between = ".*?" if self.options.loose else r"\s*"
        written = [f"<{piece}>(.*?)</{piece}>" if piece in tags else "(.*?)" for piece in pieces]
        return re.compile(between.join(["", *written, ""]), re.DOTALL)
