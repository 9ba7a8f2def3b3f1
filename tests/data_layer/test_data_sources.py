"""Every kind of source is read from real files; what cannot be read is named by file and row."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from data_helpers import write_jsonl

from assay.data.sources import read_rows
from assay.errors import UserError

ROWS = [
    {"prompt": "2+2?", "answer": "4"},
    {"prompt": "3+3?\nsay it", "answer": "6"},
    {"prompt": "1, 2?", "answer": "07"},
]


def columns(spec: str | Path) -> list[dict[str, Any]]:
    return [dict(row.columns) for row in read_rows(str(spec))]


def refusal(spec: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        read_rows(str(spec))
    message = str(caught.value)
    assert "\n" not in message
    return message


def write(path: Path, kind: str) -> Path:
    """The three rows as one kind of file."""
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    match kind:
        case "jsonl" | "lines.json":
            path.write_text("\n" + lines if kind == "jsonl" else lines)
        case "bom.jsonl":
            path.write_text(lines, encoding="utf-8-sig")
        case "jsonl.gz":
            path.write_bytes(gzip.compress(lines.encode()))
        case "json":
            path.write_text(json.dumps(ROWS, indent=1))
        case "parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
        case "csv":
            path.write_text('prompt,answer\n2+2?,4\n"3+3?\nsay it",6\n"1, 2?",07\n')
    return path


@pytest.mark.parametrize("kind", ["jsonl", "bom.jsonl", "jsonl.gz", "json", "lines.json", "parquet", "csv"])
def test_files_give_the_same_rows(tmp_path: Path, kind: str) -> None:
    assert columns(write(tmp_path / f"data.{kind}", kind)) == ROWS


def test_rows_know_their_line(tmp_path: Path) -> None:
    path = write(tmp_path / "data.jsonl", "jsonl")  # begins with a blank line
    assert [row.source for row in read_rows(str(path))] == [f"{path}:{n}" for n in (2, 3, 4)]


BROKEN: list[tuple[str, bytes, list[str]]] = [
    ("a.jsonl", b'{"prompt": "x"}\n\n{"prompt": "y"\n{"prompt": "z"}\n', [":3:", "not valid JSON", "mend"]),
    ("a.jsonl", b'{"prompt": "x"}\n["y"]\n', [":2:", "object of columns, not list"]),
    ("a.jsonl", b'{"prompt": "x"}\n{"prompt": "\xff"}\n', [":2:", "UTF-8"]),
    ("a.jsonl", b'{"prompt": ' + b"9" * 5000 + b"}\n", [":1:", "not valid JSON"]),
    ("a.jsonl", b"\n\n", ["no rows"]),
    ("a.jsonl.gz", b"plain text", ["gzip"]),
    ("a.jsonl.gz", gzip.compress(b'{"prompt": "x"}\n' * 99, mtime=0)[:-20], ["gzip"]),
    ("a.json", b'[{"prompt": "x"},\n {"prompt": }]', [":2:", "not valid JSON"]),
    ("a.json", b'[{"prompt": "x"}, 3]', [":2:", "object of columns, not int"]),
    ("a.json", b"[]", ["no rows"]),
    ("a.csv", b"prompt,answer\nx,1\ny,1,2\n", [":2:", "3 values for 2 columns"]),
    ("a.csv", b"prompt,prompt\nx,1\n", [":1:", "names"]),
    ("a.csv", b'prompt,answer\n"x"y,1\n', ["line 2", "csv"]),
    ("a.csv", b"prompt,answer\n\xff,1\n", ["UTF-8"]),
    ("a.parquet", b"PAR1 not really", ["parquet"]),
    ("a.txt", b"hello", ["ending", ".jsonl"]),
]


@pytest.mark.parametrize(("name", "data", "says"), BROKEN)
def test_broken_files_are_reported_by_row(tmp_path: Path, name: str, data: bytes, says: list[str]) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    message = refusal(path)
    assert message.startswith(str(path))
    for words in says:
        assert words in message


def test_what_does_not_exist(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "absent.jsonl")
    assert "did you mean 'reasoning_gym'" in refusal("reasoning_gim:chain_sum")


def test_a_folder_of_files_is_read_in_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    write(tmp_path / "b" / "2.jsonl", "jsonl")
    write(tmp_path / "a.csv", "csv")
    write(tmp_path / ".hidden" / "x.jsonl", "jsonl")
    (tmp_path / "README.md").write_text("not data")
    assert columns(tmp_path) == ROWS + ROWS


def test_a_folder_with_several_splits_wants_one_named(tmp_path: Path) -> None:
    write(tmp_path / "train-0.jsonl", "jsonl")
    write_jsonl(tmp_path / "test-0.jsonl", [{"prompt": "held out"}])
    assert f"{tmp_path}@train" in refusal(tmp_path)
    assert columns(f"{tmp_path}@train") == ROWS
    assert columns(f"{tmp_path}@test") == [{"prompt": "held out"}]
    assert "'dev'" in refusal(f"{tmp_path}@dev")
    assert "is a file" in refusal(f"{tmp_path / 'test-0.jsonl'}@train")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert "no data files" in refusal(tmp_path)


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    one, other = datasets.Dataset.from_list(ROWS), datasets.Dataset.from_list(ROWS[:1])
    one.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": one, "test": other}).save_to_disk(str(tmp_path / "two"))
    datasets.DatasetDict({"a": one, "b": other}).save_to_disk(str(tmp_path / "three"))
    assert columns(tmp_path / "one") == ROWS
    assert columns(tmp_path / "two") == ROWS
    assert columns(f"{tmp_path / 'two'}@test") == ROWS[:1]
    assert read_rows(f"{tmp_path / 'two'}@test")[0].source == f"{tmp_path / 'two'}@test:1"
    assert "did you mean 'test'" in refusal(f"{tmp_path / 'two'}@tests")
    assert "a, b" in refusal(tmp_path / "three")
    assert "without splits" in refusal(f"{tmp_path / 'one'}@train")
    (tmp_path / "one" / "state.json").write_text("{}")
    assert "save_to_disk" in refusal(tmp_path / "one")


def test_hub_goes_through_load_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "train.jsonl", "jsonl")
    write_jsonl(folder / "test.jsonl", ROWS[:1])
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = read_rows(f"hub:{folder}")  # load_dataset takes a folder where the hub has a name
    assert [dict(row.columns) for row in rows] == ROWS
    assert rows[0].kind == "hub"
    assert rows[0].source == f"hub:{folder}@train:1"
    assert columns(f"hub:{folder}:default@test") == ROWS[:1]
    assert "check name, config" in refusal(f"hub:{folder}@nosuch")


def test_an_unreachable_hub_is_one_line() -> None:
    assert "HFValidationError" in refusal("hub:not a name!")
    assert "dataset name" in refusal("hub:@train")
    code = (
        "from assay.data.sources import read_rows\nfrom assay.errors import UserError\n"
        "try: read_rows('hub:openai/gsm8k:main@train')\n"
        "except UserError as error: print(error)"
    )
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("hub:openai/gsm8k:main@train: cannot be loaded (")
    assert done.stdout.count("\n") == 1


def test_reasoning_gym_tasks_are_the_same_every_time() -> None:
    spec = 'reasoning_gym:chain_sum{"size": 5, "seed": 1, "min_terms": 2, "max_terms": 2, "max_digits": 1}'
    first, second = read_rows(spec), read_rows(spec)
    assert first == second
    row = first[0]
    assert row.source == "reasoning_gym:chain_sum[0]"
    assert row.columns["prompt"] == row.columns["question"]
    assert row.columns["prompt"] == "State the final answer to the following arithmetic problem: 4 - 1 ="
    assert row.columns["answer"] == "3"
    assert row.columns["metadata"]["source_dataset"] == "chain_sum"
    assert row.columns["task_options"]["max_digits"] == 1
    assert read_rows("reasoning_gym:gcd") == read_rows("reasoning_gym:gcd"), "an absent seed is 0, not a random one"
    assert len(read_rows("reasoning_gym:gcd")) == 500


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("reasoning_gym:chain_sums", "did you mean 'chain_sum'"),
        ('reasoning_gym:chain_sum{"max_term": 2}', "did you mean 'max_terms'"),
        ('reasoning_gym:chain_sum{"min_terms": 5, "max_terms": 2}', "max_terms must be >= min_terms"),
        ('reasoning_gym:chain_sum{"size": "many"}', "refuses"),
        ('reasoning_gym:chain_sum{"seed": "one"}', "fails"),
        ('reasoning_gym:chain_sum{"seed": null}', "give a number"),
        ("reasoning_gym:chain_sum{size: 5}", "not JSON"),
        ("reasoning_gym:", "needs a task"),
    ],
)
def test_bad_reasoning_gym_specs(spec: str, says: str) -> None:
    assert says in refusal(spec)


def test_without_reasoning_gym_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['reasoning_gym'] = None\n"
        "from assay.data.sources import read_rows\nfrom assay.errors import MissingExtra\n"
        "try: read_rows('reasoning_gym:chain_sum')\n"
        "except MissingExtra as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'assay[gym]'" in done.stdout
