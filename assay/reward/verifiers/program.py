"""A program written as the answer: it is run in a sandbox, and what it prints is compared with the gold answer.

Accepts the program in the completion when its output, or the output's last line, agrees with the gold text line by
line. Rejects a program that raises, ends with another status than 0, or goes beyond a limit, whatever it printed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from assay.reward.extraction import last_line
from assay.reward.output import outputs_agree
from assay.reward.program_text import find_program
from assay.reward.sandbox.sandbox import Sandbox
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error
from assay.reward.verifiers.code import SandboxOptions, failure


class ProgramOptions(SandboxOptions):
    """Options of ``program``."""

    compare: Literal["whole", "last_line"] = "whole"
    """What of the output is the answer."""
    float_tol: float = Field(default=0.0, ge=0)
    """Difference of numbers, absolute or relative, still counted as equal."""
    stdin: str | None = None
    """The column that is given to the program as its input; absent: it gets none."""


@register("program", ProgramOptions)
@dataclass(frozen=True)
class Program:
    """Score 1 when the program of the completion prints the gold answer."""

    options: ProgramOptions
    _sandbox: Sandbox = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sandbox", self.options.start())

    def __call__(self, case: Case) -> Judgement:
        """Run the program of a completion and look at its output."""
        given = case.columns.get(self.options.stdin, "") if self.options.stdin else ""
        if case.gold is None or str(case.gold).strip() == "" or not isinstance(given, str):
            return verifier_error("the row has no gold answer" if isinstance(given, str) else "the input is no text")
        program = find_program(case)
        if program.text is None:
            return no_answer(program.why)
        limits = self.options.limits
        ran = self._sandbox.run_script(program.text, given.encode(), limits)
        fault = failure(ran, limits)
        if fault is not None:
            outcome = "program_timeout" if fault.result == "timeout" else "program_crash"
            return Judgement(0.0, outcome, None, fault.message)
        output = ran.output.decode(errors="replace")
        answer = (last_line(output) or "") if self.options.compare == "last_line" else output.strip()
        if not answer:
            return no_answer("the program prints nothing")
        right = outputs_agree(answer, str(case.gold), self.options.float_tol)
        return Judgement(float(right), answer=answer[:200], message="" if right else "another output than expected")

    def canary(self, gold: object) -> str:
        """A program that prints the gold answer."""
        return f"```python\nprint({str(gold)!r})\n```"
