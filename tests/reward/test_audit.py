"""The audit catches verifiers with known holes by the attack of that name, and finds none in ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.cli import main
from assay.data.rows import Row
from assay.errors import UserError
from assay.reward.audit.attack import EVERY, attacks
from assay.reward.audit.disagreement import texts
from assay.reward.audit.subject import Dress, Subject, dress_of, subjects
from assay.reward.verifiers.number import single_number

SUMS = [{"prompt": f"What is {a} times {b}?", "answer": str(a * b)} for a, b in ((12, 88), (7, 9), (30, 41), (5, 13))]
MORE = [{"prompt": "What is one minus three?", "answer": "-2"}, {"prompt": "Half of one?", "answer": "1/2"}]
LETTERS = [
    {"prompt": "Which one?", "answer": letter, "options": {"A": "w", "B": "x", "C": "y", "D": "z"}} for letter in "ABCD"
]
OBJECTS = [
    {"prompt": "Extract it.", "answer": json.dumps({"id": n, "tags": ["a", n], "ok": True, "x": 0.5})} for n in (1, 2)
]
HOLES = {
    # a hole, and the attacks that must find it
    "contains": (
        "return [float(str(a) in c) for c, a in zip(completions, answer)]",
        {
            "spray",
            "every number there is",
            "right answer mentioned, wrong one given",
            "right answer only in the thinking",
        },
    ),
    "starts": (
        "return [float(c.strip().startswith(str(a))) for c, a in zip(completions, answer)]",
        {"spray", "digit lost or added"},
    ),
    "nonempty": ("return [float(bool(c)) for c in completions]", {"empty", "off by one", "prompt echo"}),
    "close": (
        "import re\n"
        "    last = [re.findall(r'-?[0-9.]+', c) for c in completions]\n"
        "    near = lambda n, a: abs(float(n[-1].rstrip('.') or 0) - float(a)) <= 1\n"
        "    return [float(bool(n) and near(n, a)) for n, a in zip(last, answer)]",
        {"off by one"},
    ),
}


def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: Any) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["assay", "audit", *map(str, words)])
    monkeypatch.setenv("COLUMNS", "200")
    code: Any = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    return code, *capsys.readouterr()


def failed_attacks(out: str) -> set[str]:
    """Names of the attacks whose row of the table counts failures."""
    rows = (line.split("   ") for line in out.splitlines() if "   accept   " in line or "   reject   " in line)
    cells = ([cell.strip() for cell in row if cell.strip()] for row in rows)
    return {row[0] for row in cells if row[3] != "0"}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[list[dict[str, Any]]], Path]:
    def rows(lines: list[dict[str, Any]]) -> Path:
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        return path

    return rows


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (["number", "extract=boxed"], SUMS + MORE),
        (["number"], SUMS + MORE),
        (["math"], SUMS + MORE),
        (["choice"], LETTERS),
        (["json"], OBJECTS),
        (["exact"], [{"prompt": "Capital?", "answer": "New York"}, {"prompt": "Of France?", "answer": "Paris"}]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value[0], str) else "",
)
def test_our_verifiers_are_sound(
    words: list[str], rows: list[dict[str, Any]], write: Any, capsys: Any, monkeypatch: Any
) -> None:
    code, out, err = command(capsys, monkeypatch, words[0], write(rows), *words[1:])
    assert failed_attacks(out) == set(), out
    assert (code, err) == (0, "")
    assert "sound: false accepts 0.00%" in out
    assert " reject " in out
    assert " accept " in out


@pytest.mark.parametrize("hole", HOLES)
def test_a_verifier_with_a_hole_is_caught_by_name(
    hole: str, write: Any, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    body, expected = HOLES[hole]
    file = tmp_path / "holey.py"
    file.write_text(f"def {hole}(completions, answer, **columns):\n    {body}\n")
    code, out, _ = command(capsys, monkeypatch, f"{file}:{hole}", write(SUMS), "--limit", 3)
    assert code == 1
    assert expected <= failed_attacks(out)
    assert "not sound" in out
    assert "accepted '" in out  # examples are shown


def test_a_verifier_that_knows_one_spelling_is_caught_by_false_rejects(
    write: Any, capsys: Any, monkeypatch: Any
) -> None:
    rows = write([{"prompt": "Which?", "answer": "b"}, {"prompt": "What?", "answer": "c"}])
    code, out, _ = command(capsys, monkeypatch, "exact", rows, "extract=boxed", "--form", "Answer: {}")
    assert code == 1
    assert {"gold itself", "blank lines around"} <= failed_attacks(out)
    assert command(capsys, monkeypatch, "exact", rows, "--max-false-reject", 1)[0] == 0


def test_rows_whose_gold_cannot_be_read_fail_the_preflight(write: Any, capsys: Any, monkeypatch: Any) -> None:
    code, out, _ = command(capsys, monkeypatch, "number", write([{"prompt": "?", "answer": "seven or eight"}]))
    assert code == 1
    assert "gold itself" in failed_attacks(out)
    assert "rejected (verifier_error)" in out


def test_disagreements_on_real_completions_are_listed(
    write: Any, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    lines = [
        {"id": "same", "completion": r"\boxed{7}", "gold": "7"},
        {"id": "apart", "completion": r"\boxed{8} not 7", "gold": "7"},
    ]
    file = tmp_path / "completions.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    words = ["math", write(SUMS), "--completions", file, "--against", "number"]
    code, out, _ = command(capsys, monkeypatch, *words)
    assert code == 0
    assert "1 disagreements on 2 completions (math accepts 1, number accepts 2)" in out
    assert "apart" in out
    assert "same" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["numbr"], "unknown verifier 'numbr' (did you mean 'number'?)"),
        (["number", "extrct=last"], "has no option 'extrct'"),
        (["length"], "compares with no gold answer"),
        (["number", "--form", "no place"], "write {} once"),
        (["number", "--gold", "label"], "label"),
    ],
)
def test_what_cannot_be_audited_is_refused(
    words: list[str], message: str, write: Any, capsys: Any, monkeypatch: Any
) -> None:
    code, _, err = command(capsys, monkeypatch, words[0], write(SUMS), *words[1:])
    assert code == 2
    assert message in " ".join(err.split())


def rows_of(lines: list[dict[str, Any]], verifier: str, dress: Dress | None = None) -> list[Subject]:
    rows = [Row(line, f"f:{n}", "file") for n, line in enumerate(lines, 1)]
    return list(subjects(rows, verifier, dress or Dress()))


def test_no_near_miss_is_the_right_number_in_disguise() -> None:
    rows = [{"prompt": "?", "answer": gold} for gold in ("0", "1", "10", "-1", "0.5", "1/3", "100", "-0.25", "7")]
    for subject in rows_of(rows, "number"):
        for name in ("off by one", "other sign", "digit lost or added", "another row's answer"):
            for text in attacks[name].completions(subject):
                assert single_number(text) != subject.number, (name, subject.gold)


def test_every_attack_makes_something_of_some_row_and_says_what_it_is() -> None:
    tests = {"entry_point": "f", "stdio": [{"stdin": "1", "stdout": "2"}, {"stdin": "2", "stdout": "4"}]}
    code = [{"prompt": "Double it.", "tests": tests, "reference": "print(2 * int(input()))"}]
    cm = [{"prompt": "How long?", "answer": "5 cm"}, {"prompt": "Two words?", "answer": "New York"}]
    found = [
        *rows_of(SUMS + MORE, "math", dress_of("math", {})),
        *rows_of(LETTERS, "choice", dress_of("choice", {})),
        *rows_of(OBJECTS, "json"),
        *rows_of(code, "code"),
        *rows_of(cm, "exact"),
    ]
    for name in attacks:
        assert any(attacks[name].completions(subject) for subject in found), name
        assert attacks[name].make.__doc__
    assert {subject.nature for subject in found} == set(EVERY)


def test_the_place_of_an_answer_is_read_off_the_canary() -> None:
    assert dress_of("math", {})("7") == r"\boxed{7}"
    assert dress_of("number", {"extract": "hash"})("7") == "#### 7"
    assert dress_of("f.py:f", {}, "It is {}.")("7") == "It is 7."
    with pytest.raises(UserError, match="no gold answer"):
        dress_of("repetition", {})


def test_only_so_many_lines_are_read() -> None:
    assert texts([b"a", b"", b"b", b"c"], 2) == [b"a", b"b"]
