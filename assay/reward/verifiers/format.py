"""``format``: the completion has the blocks of a template, each exactly once, in order, with content."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import field_validator

from assay.recipe.schema import Section
from assay.reward.verifier import Case, Judgement, register

_BLOCK = re.compile(r"<(\w+)>\s*\.\.\.\s*</\1>")


class FormatOptions(Section):
    """Options of ``format``."""

    template: str = "<think>...</think> <answer>...</answer>"
    """Blocks `<tag>...</tag>` in order; only white space may stand between and around them."""
    eos: str = ""
    """End-of-turn text to drop from the end, where completions are recorded with it."""

    @field_validator("template")
    @classmethod
    def _is_blocks(cls, template: str) -> str:
        names = _BLOCK.findall(template)
        if not names or _BLOCK.sub("", template).strip() or len(set(names)) < len(names):
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
        match = re.fullmatch(r"\s*".join(f"<{tag}>(.*?)</{tag}>" for tag in tags), text, re.DOTALL)
        if match is None:
            return Judgement(0.0, message="blocks out of order, or text around them")
        empty = [tag for tag, content in zip(tags, match.groups(), strict=True) if not content.strip()]
        return Judgement(0.0, message=f"<{empty[0]}> is empty") if empty else Judgement(1.0)

    def canary(self, gold: Any) -> str:
        """The template with the gold answer in every block."""
        return self.options.template.replace("...", str(gold) or "...")
