"""`assay score`: lines in, verdicts out, in order; the file of cases as it is; what cannot be read is not lost."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from assay.cli import main
from assay.errors import UserError
from assay.recipe.schema import RewardPart
from assay.records import Verdict
from assay.reward.offline import Columns, Scored, Summary, part_of, score_lines
from assay.reward.verifier import Case, verifiers
from assay.view.scores import time_limits

CASES = Path(__file__).parents[1] / "data" / "verifier_cases.jsonl"
QUICK = ("gsm8k", "choice", "format", "length", "json", "ifeval")


def scored(lines: Iterable[Any], part: RewardPart, **settings: Any) -> list[Scored]:
    async def run() -> list[Scored]:
        texts = [line if isinstance(line, (str, bytes)) else json.dumps(line) for line in lines]
        return [one async for one in score_lines(texts, "f.jsonl", part, **settings)]

    return asyncio.run(run())


def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: Any) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["assay", "score", *map(str, words)])
    code: Any = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    return code, *capsys.readouterr()


def test_the_file_of_public_cases_is_scored_as_it_is_and_in_its_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row for line in CASES.read_text().splitlines() if (row := json.loads(line))["kind"] in QUICK]
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    code, out, err = command(capsys, monkeypatch, file)
    verdicts = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [verdict["id"] for verdict in verdicts] == [row["id"] for row in rows]
    assert all(set(verdict) == {"id", "reward", "outcome", "answer", "message"} for verdict in verdicts)
    for row, verdict in zip(rows, verdicts, strict=True):
        wanted = {"no_answer": 0.0, "excluded": None}.get(row["expect"], row["expect"])
        assert verdict["reward"] == wanted, row["id"]
    assert f"{len(rows)} lines in" in err
    assert "ms per verdict" in err


def test_lines_that_cannot_be_read_keep_their_place_and_the_others_their_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.jsonl"
    good = json.dumps({"kind": "gsm8k", "completion": "#### 7", "gold": "7"}).encode()
    file.write_bytes(b"\n".join([good, b"{broken", b"", b"[1]", b'{"kind": "maht", "completion": "x"}', b"\xff", good]))
    code, out, err = command(capsys, monkeypatch, file)
    verdicts = [json.loads(line) for line in out.splitlines()]
    assert code == 2
    assert [verdict["reward"] for verdict in verdicts] == [1.0, None, None, None, None, 1.0]
    assert [verdict["id"] for verdict in verdicts] == [f"{file}:{n}" for n in (1, 2, 4, 5, 6, 7)]
    assert f"error: {file}:2: not valid JSON" in err
    assert "(and 3 more lines)" in err
    assert f"{file}:5: unknown kind 'maht' (did you mean 'math'?)" in err


def test_standard_input_a_named_verifier_with_options_and_other_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"response": "9 or <answer>7</answer>", "label": 7, "kind": "other"}, {"response": "7", "label": 7}]
    stdin = io.TextIOWrapper(io.BytesIO("\n".join(map(json.dumps, rows)).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    words = ["-", "--verifier", "number", "extract=tagged", "--completion", "response", "--gold", "label"]
    code, out, _ = command(capsys, monkeypatch, *words)
    verdicts = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(v["id"], v["reward"], v["outcome"]) for v in verdicts] == [
        ("stdin:1", 1.0, "scored"),
        ("stdin:2", 0.0, "no_answer"),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        ([CASES, "extract=boxed"], "name it with --verifier"),
        ([CASES, "--verifier", "numbr"], "unknown verifier 'numbr' (did you mean 'number'?)"),
        ([CASES, "--verifier", "number", "extrct=last"], "has no option 'extrct' (did you mean 'extract'?)"),
        ([CASES, "--verifier", "number", "extract"], "write it as key=value"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_a_line(
    words: list[Any], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = command(capsys, monkeypatch, *words)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_a_file_is_not_held_in_memory() -> None:
    taken = 0

    def endless() -> Iterable[str]:
        nonlocal taken
        while True:
            taken += 1
            yield json.dumps({"completion": str(taken), "gold": taken, "id": taken})

    async def run() -> list[str]:
        part = part_of("number", {"extract": "only"})
        found = score_lines(endless(), "endless", part, workers=1)
        first = [(await anext(found)).id for _ in range(5)]
        await found.aclose()
        return first

    assert asyncio.run(run()) == ["1", "2", "3", "4", "5"]
    assert taken < 50


def test_seconds_at_time_limits_are_told_where_they_are_most_of_a_verifiers() -> None:
    summary = Summary()
    summary.add(Scored("a", "code", Verdict(0.0, "program_timeout", seconds=5.0)))
    summary.add(Scored("b", "code", Verdict(1.0, "scored", seconds=1.0)))
    summary.add(Scored("c", "math", Verdict(1.0, "scored", seconds=9.0)))
    summary.add(Scored("d", "math", Verdict(None, "verifier_timeout", seconds=4.0)))
    [line] = time_limits(summary, workers=2)
    assert line.startswith("code: 5.0 of 6.0 s went to what was stopped at its time limit; --workers 4")


def test_a_users_function_scores_lines_and_its_failures_are_no_zeros(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return float(solution_str == ground_truth) if solution_str else 1 / 0\n"
    )
    lines = [{"completion": "a", "gold": "a"}, {"completion": "b", "gold": "a"}, {"completion": "", "gold": "a"}]
    verdicts = [one.verdict for one in scored(lines, part_of(f"{file}:compute_score", {}))]
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, None]
    assert "ZeroDivisionError" in verdicts[2].message


def test_renamed_columns_keep_the_others() -> None:
    lines = [{"text": "7", "gold": "7", "kind": "gsm8k", "prompt": "no fixed answer format"}]
    [one] = scored(lines, RewardPart(verifier="row"), columns=Columns(completion="text"))
    assert one.verdict.reward == 1.0


def test_row_is_a_verifier_of_recipes_too() -> None:
    judge = verifiers["row"]({})
    assert judge(Case(completion="#### 7", gold="7", columns={"kind": "gsm8k"})).score == 1.0
    for kind in ({"kind": "gms8k"}, {}, {"kind": "judge"}):
        assert judge(Case(completion="#### 7", gold="7", columns=kind)).outcome == "verifier_error"
    assert verifiers["row"]({"kind": "choice"})(Case(completion="B", gold="B")).score == 1.0


def test_options_need_a_verifier() -> None:
    with pytest.raises(UserError, match="--verifier"):
        part_of(None, {"a": 1})
