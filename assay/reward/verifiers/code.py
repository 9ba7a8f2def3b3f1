"""Programs judged by the row's tests, in a sandbox.

Accepts the program in the completion (see :mod:`assay.reward.program_text`) when every pair of input and output agrees,
or all Python tests pass: all or nothing. Rejects everything else: a program that ends before its tests, also with
status 0; one that raises, ends with another status than 0, or goes beyond a limit; output that only contains the
answer. Tests run in another process than the program and get plain data back, so nothing that a program patches,
prints or returns can stand for a pass, and nothing that it can read holds an expected value.

``program_timeout`` and ``program_crash`` score 0. ``verifier_error`` is for the row's own faults: no tests, tests that
fail before they call the program or never do, and a ``reference`` that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field

from assay.recipe.schema import Section
from assay.records import Outcome
from assay.reward.code_tests import BadTests, CodeTests, read_tests
from assay.reward.output import outputs_agree
from assay.reward.program_text import find_program
from assay.reward.sandbox.limits import Limits
from assay.reward.sandbox.sandbox import Ran, Sandbox, Tested, describe_end, shared_sandbox
from assay.reward.sandbox.template import Isolation
from assay.reward.verifier import Case, Judgement, no_answer, register, verifier_error

_OUTCOMES: Mapping[str, Outcome] = {"crashed": "program_crash", "timeout": "program_timeout"}


class SandboxOptions(Section):
    """Where and within what limits programs run."""

    sandbox: Isolation = "bwrap"
    """``bwrap`` isolates programs. ``none`` runs them with your rights, under rlimits only: for code that you trust."""
    packages: tuple[str, ...] = ()
    """Installed packages that programs may import, such as numpy, beside the standard library."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Seconds for one program; keep ``reward.timeout_s`` above what all of a row's inputs may take."""
    memory_mb: int = Field(default=512, ge=16)
    """Memory, in MiB."""
    max_procs: int = Field(default=16, ge=1)
    """Processes and threads at one time."""
    max_stdout_bytes: int = Field(default=1_000_000, ge=1)
    """Bytes of output, and of any file."""

    @property
    def limits(self) -> Limits:
        """As the sandbox takes them."""
        return Limits(self.timeout_s, self.memory_mb, self.max_procs, self.max_stdout_bytes)

    def start(self) -> Sandbox:
        """The sandbox; a UserError says why there can be none."""
        return shared_sandbox(self.sandbox, self.packages)


class CodeOptions(SandboxOptions):
    """Options of ``code``. A row's own limits go before these."""

    column: str = "tests"
    """The column with the tests; without it the gold answer is taken for them."""
    float_tol: float = Field(default=0.0, ge=0)
    """Difference of floats, absolute or relative, still counted as equal."""


@register("code", CodeOptions)
@dataclass(frozen=True)
class Code:
    """Score 1 when the program passes all of the row's tests."""

    options: CodeOptions
    _sandbox: Sandbox = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sandbox", self.options.start())

    def __call__(self, case: Case) -> Judgement:
        """Run the program of a completion against its row's tests."""
        try:
            tests = read_tests(case.columns.get(self.options.column, case.gold), case.columns)
            limits = tests.limits(self.options.limits)
        except BadTests as error:
            return verifier_error(str(error))
        program = find_program(case, tests.entry_point)
        if program.text is None:
            return no_answer(program.why)
        found = self._judge(program.text, tests, limits)
        if found.result != "passed" and tests.reference is not None:
            reference = self._judge(tests.reference, tests, limits)
            if reference.result != "passed":
                return verifier_error(f"the row's own reference does not pass: {reference.message}")
        if found.result == "broken":
            return verifier_error(found.message)
        outcome = _OUTCOMES.get(found.result, "scored")
        return Judgement(float(found.result == "passed"), outcome, None, found.message)

    def canary(self, gold: object) -> str:
        """A program that ends at once: any tests can be brought to a verdict on it."""
        return "```python\npass\n```"

    def _judge(self, source: str, tests: CodeTests, limits: Limits) -> Tested:
        tolerance = self.options.float_tol if tests.tolerance is None else tests.tolerance
        if not tests.pairs:
            return self._sandbox.run_tests(source, tests.source, tests.entry_point, limits, tolerance)
        for number, pair in enumerate(tests.pairs, 1):
            ran = self._sandbox.run_script(source, pair.stdin.encode(), limits)
            fault = failure(ran, limits)
            if fault is not None:
                return Tested(fault.result, f"input {number}: {fault.message}")
            if not outputs_agree(ran.output.decode(errors="replace"), pair.stdout, tolerance):
                return Tested("failed", f"input {number}: another output than expected")
        return Tested("passed", f"{len(tests.pairs)} outputs agree")


def failure(ran: Ran, limits: Limits) -> Tested | None:
    """What keeps the output of a program from being looked at."""
    if ran.end == "timeout":
        return Tested("timeout", f"not done within {limits.seconds:g} s")
    if len(ran.output) >= limits.output_bytes:
        return Tested("crashed", "more output than allowed")
    if ran.end != "exit" or ran.status != 0:
        last = ran.errors.strip().splitlines()[-1:]
        return Tested("crashed", "; ".join([describe_end(ran.end, ran.status), *last]))
    return None
