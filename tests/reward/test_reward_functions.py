"""User functions of both signatures, as a worker loads and calls them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from reward_helpers import write

from assay.errors import UserError
from assay.reward.function import judge_score, read_source
from assay.reward.verifier import Case, Judgement, LoadedPart, Part
from assay.reward.worker import canary_cases, judge, load

TEXT = {"prompt": "2+2?", "answer": "4"}


def case(completion: str, columns: dict[str, Any] | None = None, **fields: Any) -> Case:
    columns = TEXT if columns is None else columns
    fields = {
        "messages": ({"role": "user", "content": "2+2?"},),
        "prompt": "<user>2+2?",
        "gold": "4",
        **fields,
    }
    return Case(completion=completion, columns=columns, **fields)


def loaded(folder: Path, source: str, name: str = "f", **options: Any) -> LoadedPart:
    verifier, text = read_source(f"{write(folder, source)}:{name}")
    return load(Part("f", verifier, options, text), {})


def outcomes(part: LoadedPart, cases: Sequence[Case]) -> list[tuple[float | None, str, str]]:
    return [(j.score, j.outcome, j.message) for j in judge(part, cases)]


def test_a_trl_function_sees_the_group_and_the_columns(tmp_path: Path) -> None:
    part = loaded(
        tmp_path,
        "def f(prompts, completions, answer, **kwargs):\n"
        "    assert prompts == ['2+2?'] * 3 and kwargs['prompt'] == ['2+2?'] * 3\n"
        "    best = max(map(len, completions))\n"
        "    return [float(a == c) + (len(c) == best) for a, c in zip(answer, completions)]\n",
    )
    assert part.per_group
    assert [j.score for j in judge(part, [case("4"), case("5"), case("five")])] == [1.0, 0.0, 1.0]


def test_conversational_prompts_get_conversational_completions(tmp_path: Path) -> None:
    part = loaded(
        tmp_path,
        "def f(prompts, completions):\n"
        "    return [float(p[-1]['content'] == '2+2?' and c == [{'role': 'assistant', 'content': '4'}])\n"
        "            for p, c in zip(prompts, completions)]\n",
    )
    chat = {"prompt": [{"role": "user", "content": "2+2?"}], "answer": "4"}
    assert [j.score for j in judge(part, [case("4", chat), case("5", chat)])] == [1.0, 0.0]
    assert [j.score for j in judge(part, [case("4", {"answer": "4"})])] == [1.0]


@pytest.mark.parametrize("kind", ["async def", "def"])
def test_async_functions_are_awaited(tmp_path: Path, kind: str) -> None:
    wait = "await asyncio.sleep(0)" if kind == "async def" else "pass"
    part = loaded(
        tmp_path,
        f"import asyncio\n{kind} f(completions, **columns):\n    {wait}\n    return [len(c) for c in completions]\n",
    )
    assert [j.score for j in judge(part, [case("4"), case("four")])] == [1.0, 4.0]


def test_completion_ids_are_given_to_functions_that_name_them(tmp_path: Path) -> None:
    part = loaded(tmp_path, "def f(completions, completion_ids):\n    return [sum(i) for i in completion_ids]\n")
    assert part.wants_ids
    assert [j.score for j in judge(part, [case("4", token_ids=(1, 2)), case("5", token_ids=(4,))])] == [
        3.0,
        4.0,
    ]


def test_a_verl_function_judges_each_case(tmp_path: Path) -> None:
    part = loaded(
        tmp_path,
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    right = solution_str == ground_truth and extra_info['k'] == 1 and data_source == 'sums'\n"
        "    return {'score': float(right), 'acc': right, 'pred': solution_str} if right else 0.0\n",
        "compute_score",
    )
    columns = {"data_source": "sums", "extra_info": {"k": 1}}
    right, wrong = judge(part, [case("4", columns), case("5", columns)])
    assert (part.per_group, right.score, right.answer, wrong.score) == (False, 1.0, "4", 0.0)
    assert judge(part, [case("4", {"extra_info": None})])[0].message.startswith("TypeError: 'NoneType'")


def test_options_are_further_arguments(tmp_path: Path) -> None:
    source = "def f(completions, scale=1.0):\n    return [scale * len(c) for c in completions]\n"
    assert judge(loaded(tmp_path, source, scale=3.0), [case("ab")])[0].score == 6.0
    with pytest.raises(UserError, match=r"takes no option 'scael' \(did you mean 'scale'\?\)"):
        loaded(tmp_path, source, scael=3.0)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return [1.0]", "the function returned 1 scores for 2 completions"),
        ("return 1.0", "the function returned float, not a list of numbers"),
        ("return None", "the function returned NoneType, not a list of numbers"),
        ("raise ValueError('no\\n such key')", "ValueError: no such key (line 2)"),
        ("import sys; sys.exit(3)", "SystemExit: 3 (line 2)"),
        (
            "def deep(n): return deep(n + 1)\n    return deep(0)",
            "RecursionError: maximum recursion depth exceeded",
        ),
        ("return [b'x' * (1 << 62)] * 2", "OverflowError|MemoryError"),
    ],
)
def test_what_goes_wrong_for_the_group_is_said_of_every_member(tmp_path: Path, body: str, expected: str) -> None:
    part = loaded(tmp_path, f"def f(completions):\n    {body}\n")
    for score, outcome, message in outcomes(part, [case("4"), case("5")]):
        assert (score, outcome) == (None, "verifier_error")
        assert any(message.startswith(one) for one in expected.split("|"))


def test_what_goes_wrong_for_one_is_said_of_that_one(tmp_path: Path) -> None:
    part = loaded(tmp_path, "def f(completions):\n    return [1, None, float('nan'), 'good', True, -2]\n")
    assert outcomes(part, [case(str(i)) for i in range(6)]) == [
        (1.0, "scored", ""),
        (None, "unavailable", "function returned None"),
        (None, "verifier_error", "the function returned nan"),
        (None, "verifier_error", "the function returned 'good' (str), not a number"),
        (1.0, "scored", ""),
        (-2.0, "scored", ""),
    ]


def test_numpy_scalars_and_arrays_are_numbers() -> None:
    import numpy

    assert [judge_score(x).score for x in numpy.array([0.5, 1.0], dtype=numpy.float32)] == [0.5, 1.0]
    assert judge_score(numpy.zeros(2)).outcome == "verifier_error"
    assert judge_score(math.inf).outcome == "verifier_error"


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    part = loaded(tmp_path, "def f(completions, anser):\n    return [0.0]\n")
    message = judge(part, [case("4")])[0].message
    assert message == "the function needs 'anser' (did you mean 'answer'?), the data has: prompt, answer"


def test_what_a_function_prints_ends_in_the_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    part = loaded(tmp_path, "def f(completions):\n    print('seen', completions)\n    return [1.0]\n")
    assert judge(part, [case("4")]) == [Judgement(1.0, message="printed: seen ['4']")]
    assert capfd.readouterr().out == ""


def test_the_canary_is_the_gold_answer_in_the_same_row(tmp_path: Path) -> None:
    part = loaded(
        tmp_path,
        "def f(completions, answer):\n    return [float(c == a) for c, a in zip(completions, answer)]",
    )
    assert [j.score for j in judge(part, canary_cases(part, [case("endless")]))] == [1.0]


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("def f(x, y): ...", "f", "reward function f(x, y) in {path} has neither TRL's signature"),
        ("def brevity(completions): ...", "brevty", "has no 'brevty' (did you mean 'brevity'?)"),
        ("f = 3", "f", "'f' in {path} is a int, not a function"),
        ("import no_such_module", "f", "{path} cannot be imported: ModuleNotFoundError: No module named"),
        ("x = 1\ndef f(:", "f", "{path} cannot be imported: SyntaxError"),
        ("raise SystemExit(2)", "f", "{path} calls exit(2) when imported"),
    ],
)
def test_functions_that_cannot_be_used_are_refused(tmp_path: Path, source: str, name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        loaded(tmp_path, source, name)
    assert message.format(path=tmp_path / "rewards.py") in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*nowhere\.py: No such file"):
        read_source(f"{tmp_path}/nowhere.py:f")
    with pytest.raises(UserError, match=r"write it as path/to/file.py:function"):
        read_source("rewards.py")


def test_a_file_is_run_once_for_all_its_functions_and_finds_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "VALUE = 0.5\n", "neighbour.py")
    source = (
        "import neighbour\nRUNS = []\nRUNS.append(1)\n"
        "def f(completions): return [neighbour.VALUE + len(RUNS) for _ in completions]\n"
        "def g(completions): RUNS.append(1); return [0.0 for _ in completions]\n"
    )
    path = write(tmp_path, source)
    modules: dict[str, Any] = {}
    f, g = (load(Part(n, f"{path}:{n}", {}, source), modules) for n in "fg")
    judge(g, [case("4")])
    assert judge(f, [case("4")])[0].score == 2.5
