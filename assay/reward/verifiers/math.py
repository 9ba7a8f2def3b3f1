r"""``math``: mathematical equality, after one strict reading of where the answer stands and what it says.

Accepts another spelling of the same: LaTeX or plain text, another order of a set, an equivalent equation, an interval
for an inequality, unit vectors for a tuple, a list in brackets where the question asks for all values, both roots for
a plus-or-minus, a unit that the question asks for, exact conversions. Rejects what is only near: a rounded value, one
root of two, a closed interval for an open one, another unit, the right-hand side of an equation that was not solved,
several different answers, an answer taken back or contradicted. A gold answer that cannot be read is the row's fault.
Values are compared exactly or to a hundred digits; sizes are estimated before anything is computed. Left out: proofs,
integrals and limits left standing, answers up to a constant that is not named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from assay.recipe.schema import Section
from assay.reward.commitment import Commitment, committed
from assay.reward.extraction import Box, after_thinking, boxes, last_line, tag_places
from assay.reward.mathematics.equality import same_answer
from assay.reward.mathematics.notation import plain
from assay.reward.mathematics.tokens import LONGEST
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error
from assay.reward.verifiers.number import canonical, single_number

_CUE = re.compile(r"(?i:\b(?:answer|result)\b|final\s+value)[*_\s]*(?:[:=]|\bis\b|\bequals\b)[*_\s:]*(?P<slot>[^\n]+)")
_STATED = re.compile(r"(?i:\banswer\b)[*_\s]*(?:[:=]|\bis\b)[*_\s:$]*(?P<slot>-?\d[\d.,/]*)")
_CUT = re.compile(r"(?<=[\w)}$*%])[.!?](?=\s+[A-Z(]|[\s*]*$).*|,?\s+(?:because|since|which|where|as)\s.*", re.DOTALL)
_LEAD = re.compile(r"^(?:so|thus|hence|therefore|then|and so|we get|we have|this gives)\b[,:]?\s*", re.IGNORECASE)
_TAIL = re.compile(r".*\b(?:is|are|equals|get|gives|obtain|have)\b[:\s]*(?P<tail>\S.*)", re.IGNORECASE | re.DOTALL)
_INLINE = re.compile(r"(?<!\\)\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]")
_NO_GOLD = re.compile(
    r"\W*|none|null|nan|n/?a|tbd|unknown|no answer|(?:see|refer to)\b.*|.*\banswers? (?:may|will) vary.*|proof\b.*"
    r"|.*\[asy\].*|.*\\includegraphics.*|!\[.*|.*\bhttps?://.*|.*<img.*|error\b.*|.*\\begin\{(?:asy|tikz).*",
    re.IGNORECASE | re.DOTALL,
)
_SYMBOLS = re.compile(r"\\(?:emptyset|varnothing|infty|\{\s*\\\}|pi)|∅|∞|π|\{\}|[√½-¾²³]")


class MathOptions(Section):
    """Options of ``math``."""

    extract: Literal["auto", "boxed"] = "auto"
    """`boxed` accepts only `\\boxed{}`; `auto` falls back to `<answer>`, `Answer: ...`, the last line."""


@register("math", MathOptions)
@dataclass(frozen=True)
class Math:
    """Score 1 when answer and gold are mathematically the same, else 0."""

    options: MathOptions

    def __call__(self, case: Case) -> Judgement:
        """Find the answer that the completion stands by, and compare it with the gold one."""
        gold = gold_text(case.gold)
        if not gold:
            return verifier_error(f"the gold answer {str(case.gold)[:60]!r} is missing or is no answer")
        spoken = after_thinking(case)
        found, why = self._found(spoken.text) if spoken.text is not None else (None, spoken.why)
        question = asked(case)
        if found is None:
            if same_answer(gold, gold, question) is None:
                return verifier_error(f"the gold answer {gold[:60]!r} cannot be read")
            return no_answer(why)
        answer = ", ".join(found.answers)
        right = same_answer(gold, answer, question)
        if right is None:
            return verifier_error(f"the gold answer {gold[:60]!r} cannot be read")
        fault = "" if right else f"not {gold[:60]}"
        if right and found.withdrawn:
            fault = "it was taken back"
        elif right and contradicted(answer, found.rest):
            fault = "another answer follows"
        return Judgement(float(not fault), "scored", spelling(answer), fault)

    def canary(self, gold: Any) -> str:
        """The gold answer in a box."""
        return rf"\boxed{{{gold_text(gold)}}}"

    def _found(self, text: str) -> tuple[Commitment | None, str]:
        """What the text stands by, or why there is nothing."""
        found, left_open = boxes(text)
        missing = r"no answer in a closed, filled \boxed{}"
        if left_open:
            return None, missing
        if found or self.options.extract == "boxed":
            stands = committed(text, found)
            return (stands if stands.answers and found[-1].content.strip() else None), missing
        return _unboxed(text), "no answer in <answer>, after Answer: or on the last line"


def gold_text(gold: Any) -> str:
    r"""The gold answer without a box and dollars around it; empty when it is missing or is no answer.

    >>> gold_text(r"$\boxed{\frac12}$"), gold_text("[asy] draw(x); [/asy]"), gold_text(7), gold_text(True)
    ('\\frac12', '', '7', '')
    """
    if gold is None or isinstance(gold, (bool, dict)):
        return ""
    if isinstance(gold, (list, tuple)):
        return gold_text(gold[0]) if len(gold) == 1 else ""
    text = str(gold).strip()
    found, left_open = boxes(text)
    if left_open:
        return ""
    text = ", ".join(box.content for box in found) or text.strip("$").strip()
    return "" if _NO_GOLD.fullmatch(text) and not _SYMBOLS.search(text) else text


def asked(case: Case) -> str:
    """The question: the last message of the user, else the prompt."""
    said = [message for message in case.messages if message.get("role") == "user"]
    return str(said[-1].get("content") or "") if said else case.prompt


def contradicted(answer: str, rest: str) -> bool:
    """Does a later "the answer is ..." name another number?"""
    return any(same_answer(answer, match["slot"].rstrip(".,")) is False for match in _STATED.finditer(rest))


def spelling(answer: str) -> str:
    """One spelling of an answer, for votes and logs."""
    if len(answer) > LONGEST:
        return answer[:500]
    number = single_number(answer)
    return canonical(number) if number is not None else plain(answer)[:500]


def _unboxed(text: str) -> Commitment | None:
    for places in (
        tag_places(text, "answer"),
        [
            Box(slot.strip("*_ `"), match.start(), match.end() + len(slot))
            for match, slot in ((match, _CUT.sub("", match["slot"])) for match in _CUE.finditer(text))
        ],
    ):
        if (found := committed(text, places)).answers:
            return found
    line = last_line(re.sub(r"^\s*(?:```.*|-{3,}|\*{3,})$", "", text, flags=re.MULTILINE))
    if not line:
        return None
    line = _trimmed(_LEAD.sub("", line.strip("*_ `")))
    inline = ["".join(match) for match in _INLINE.findall(line)]
    tail = _TAIL.fullmatch(line)
    answer = inline[0] if len(inline) == 1 else tail["tail"] if tail else line
    return Commitment((answer,)) if answer.strip(" .$*") else None


def _trimmed(slot: str) -> str:
    """An answer's line up to the end of its sentence."""
    return _CUT.sub("", slot).strip("*_ `")
