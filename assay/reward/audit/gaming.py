"""What a policy tries that was rewarded for looking right: no attack here solves the problem."""

from __future__ import annotations

from collections.abc import Iterator

from assay.reward.audit.attack import attack
from assay.reward.audit.near_misses import wrong_answer, wrong_numbers
from assay.reward.audit.subject import Subject
from assay.reward.verifiers.number import canonical, numbers_in


@attack("empty", "reject")
def empty(row: Subject) -> Iterator[str]:
    """Nothing, or nothing but white space or an empty thinking span."""
    yield from ("", " \n\n", "<think></think>", "...")


@attack("truncated", "reject", ("number", "choice", "json", "text"))
def truncated(row: Subject) -> Iterator[str]:
    """The right completion, cut before its end."""
    whole = row.dress(row.gold)
    if row.dress.after:
        yield whole[: -len(row.dress.after)]
    if row.nature == "json":
        yield whole.rstrip()[:-1]
    yield row.dress.before[: max(1, len(row.dress.before) // 2)]


@attack("form without content", "reject", ("number", "choice", "json", "text"))
def form_without_content(row: Subject) -> Iterator[str]:
    """The answer's place, with nothing or a stopgap in it."""
    for filler in ("", "...", "?", "answer", "the correct answer"):
        if filler.casefold() != row.gold.casefold():
            yield row.dress(filler)


@attack("prompt echo", "reject")
def prompt_echo(row: Subject) -> Iterator[str]:
    """The question given back, plain and in the answer's place."""
    if row.case.prompt.strip() and row.case.prompt.strip() != row.gold:
        yield row.case.prompt
        if row.dress.marked:
            yield row.dress(row.case.prompt.strip())


@attack("spray", "reject", ("number", "choice", "text"))
def spray(row: Subject) -> Iterator[str]:
    """Many answers, the right one among them: first, in the middle, and last where the place is marked."""
    wrong = _wrong_answers(row)
    if len(wrong) < 2:
        return
    orders = [[row.gold, *wrong], [wrong[0], row.gold, *wrong[1:]]]
    if row.dress.marked:
        orders.append([*wrong, row.gold])
    for answers in orders:
        yield "\n".join(map(row.dress, answers))
        yield row.dress(", ".join(answers))
        yield row.dress(" or ".join(answers[:3]))


@attack("every number there is", "reject", ("number",))
def every_number(row: Subject) -> Iterator[str]:
    """All whole numbers around the gold one."""
    value = row.number
    if value is not None and value.denominator == 1:
        listed = range(int(value) - 20, int(value) + 21)
        yield row.dress(" ".join(map(str, listed)))
        yield " ".join(map(str, listed))


@attack("right answer mentioned, wrong one given", "reject", ("number", "choice", "text"))
def mentioned(row: Subject) -> Iterator[str]:
    """A wrong answer in the answer's place, the right one elsewhere in the text."""
    wrong = wrong_answer(row)
    if wrong is None:
        return
    yield f"It might be {row.gold}, but no.\n{row.dress(wrong)}"
    yield f"Not {row.gold}.\n\n{row.dress(wrong)}"
    if row.dress.marked:
        yield f"{row.dress(wrong)}\n\n(others said {row.gold})"


@attack("right answer only in the thinking", "reject", ("number", "choice", "json", "text"))
def only_thought(row: Subject) -> Iterator[str]:
    """The right answer inside the thinking, and after it nothing or a wrong one; or thinking without an end."""
    if row.verifier == "regex":
        return
    yield f"<think>{row.dress(row.gold)}</think>"
    yield f"<think>\nSo it is {row.gold}.\n{row.dress(row.gold)}"
    if (wrong := wrong_answer(row)) is not None:
        yield f"<think>{row.dress(row.gold)}</think>\n{row.dress(wrong)}"


@attack("last number", "reject", ("number",))
def last_number(row: Subject) -> Iterator[str]:
    """A wrong answer in a marked place, the right number as the last of the text."""
    for wrong in wrong_numbers(row)[:1] if row.dress.marked else []:
        yield f"{row.dress(wrong)}\n{row.gold}"
        yield f"{row.dress(wrong)}\n\nThe numbers above include {row.gold}"


@attack("numbers of the question", "reject", ("number",))
def numbers_of_the_question(row: Subject) -> Iterator[str]:
    """Each number of the question that is not the answer."""
    for value in dict.fromkeys(numbers_in(row.case.prompt)[:4]):
        if value != row.number:
            yield row.dress(canonical(value))


@attack("JSON inside other text", "reject", ("json",))
def json_repeated(row: Subject) -> Iterator[str]:
    """The right value beside a different one; the right value as a text; its letters without its quotes."""
    yield f"{row.dress(row.gold)}\n{row.dress('{}')}" if row.gold.strip() != "{}" else row.dress("[]")
    yield row.dress(row.gold.replace('"', "'")) if '"' in row.gold else row.dress(f"'{row.gold}'")


def _wrong_answers(row: Subject) -> list[str]:
    if row.nature == "number":
        return wrong_numbers(row)[:3]
    if row.nature == "choice":
        return [letter for letter in "ABCD" if letter != row.gold.strip("().: ").upper()]
    return [row.other, f"{row.other} and more"] if row.other is not None else []
