"""Every case of the public bug reports, and our own siblings of them, gets the verdict that it should."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.errors import UserError
from assay.reward.line import read_line
from assay.reward.verifier import Case, verifiers

DATA = Path(__file__).parents[1] / "data"
READY = {"math", "gsm8k", "choice", "format", "json", "ifeval", "length", "code"}
"""Kinds whose verifier is finished."""
ROWS = [
    row
    for name in (
        "verifier_cases.jsonl",
        "verifier_cases_more.jsonl",
        "verifier_cases_structure.jsonl",
        "verifier_cases_code.jsonl",
    )
    for line in (DATA / name).read_text(encoding="utf-8").splitlines()
    if (row := json.loads(line))["kind"] in READY
]
JUDGE = verifiers["row"]({})
"""As ``assay score`` judges a line."""


@pytest.fixture(autouse=True)
def _numbers_of_any_length() -> Iterator[None]:
    """As in a worker."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(before)


def verdict_of(row: dict[str, Any]) -> float | str:
    judgement = JUDGE(Case(completion=row["completion"], gold=row["gold"], columns=row))
    if judgement.score is None:
        return "excluded"
    return judgement.outcome if judgement.outcome == "no_answer" else judgement.score


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_case(row: dict[str, Any]) -> None:
    allowed = [row["expect"], *(row["tests"] or {}).get("also_ok", [])]
    assert verdict_of(row) in allowed, row["reason"]


def test_every_case_has_its_own_name() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS) > 100


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"kind": "math"}, "f:3: 'completion' must be a text, not None"),
        ({"completion": "a"}, "f:3: no 'kind'; name a verifier"),
        ({"completion": "a", "kind": "maht"}, "f:3: unknown kind 'maht' (did you mean 'math'?)"),
        ({"completion": "a", "kind": "math", "tests": [1]}, "f:3: 'tests' must be an object"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        read_line(row, "f:3")
    assert message in str(error.value)


def test_a_line_carries_its_prompt_and_a_named_verifier_overrules_its_kind() -> None:
    prompt = [{"role": "user", "content": "How long, in cm?"}]
    line = read_line({"completion": "4", "gold": "4", "kind": "math", "prompt": prompt, "x": 1}, "f:1", "number")
    assert (line.verifier, line.case.prompt, line.case.columns["x"]) == ("number", "How long, in cm?", 1)
    assert line.case.messages == tuple(prompt)
