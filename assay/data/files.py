"""Data files, one reader for each ending: a broken row is reported by file and row, never skipped."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from assay.data.rows import Row
from assay.errors import UserError
from assay.registry import Registry

FILES: Registry[Callable[[Path], Iterator[Row]]] = Registry("data file ending")
"""Readers by file ending; of two that fit, the longer one wins."""


def file_ending(path: Path) -> str | None:
    """The registered ending of a file's name, or ``None``.

    >>> file_ending(Path("data/gsm8k.JSONL.gz")), file_ending(Path("notes.txt"))
    ('.jsonl.gz', None)
    """
    fitting = [ending for ending in FILES if path.name.lower().endswith(ending)]
    return max(fitting, key=len, default=None)


@FILES.register(".jsonl")
def read_jsonl(path: Path) -> Iterator[Row]:
    """One JSON object a line; blank lines are passed over but counted, so numbers are an editor's."""
    with path.open("rb") as lines:
        yield from _json_lines(lines, path)


@FILES.register(".jsonl.gz")
def read_jsonl_gz(path: Path) -> Iterator[Row]:
    """A gzipped jsonl file."""
    try:
        with gzip.open(path, "rb") as lines:
            yield from _json_lines(lines, path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: broken gzip file ({error}): download or compress it again") from None


@FILES.register(".json")
def read_json(path: Path) -> Iterator[Row]:
    """A JSON list of objects (rows count from 1), or one object a line as in jsonl."""
    data = path.read_bytes()
    if not data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        yield from _json_lines(data.split(b"\n"), path)
        return
    text = data.decode("utf-8-sig")
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: {_what(error)}: mend this line") from None
    for number, value in enumerate(values, 1):
        yield _object_row(value, path, number)


@FILES.register(".parquet")
def read_parquet(path: Path) -> Iterator[Row]:
    """A parquet file, a batch of rows at a time."""
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            for batch in table.iter_batches():
                for columns in batch.to_pylist():
                    number += 1
                    yield Row(columns, f"{path}:{number}", "file")
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: not readable as parquet after row {number} ({reason}): write it again") from None


@FILES.register(".csv")
def read_csv(path: Path) -> Iterator[Row]:
    """Comma-separated values under a line of column names. Values stay text: an answer of 007 is not 7."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        try:
            names = next(reader, [])
            if len(set(names)) < len(names) or "" in names:
                raise UserError(f"{path}:1: column names must be given and differ, not {names}")
            number = 0
            for values in reader:
                if not values:
                    continue
                number += 1
                if len(values) != len(names):
                    raise UserError(
                        f"{path}:{number}: row {number} (ends on line {reader.line_num}) has {len(values)} "
                        f"values for {len(names)} columns: quote values that hold commas"
                    )
                yield Row(dict(zip(names, values, strict=True)), f"{path}:{number}", "file")
        except csv.Error as error:
            raise UserError(f"{path}: line {reader.line_num} is not valid csv ({error}): mend its quotes") from None


def _json_lines(lines: Iterable[bytes], path: Path) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8"))
        except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
            raise UserError(f"{path}:{number}: {_what(error)}: mend or remove this row") from None
        yield _object_row(value, path, number)


def _what(error: ValueError) -> str:
    match error:
        case json.JSONDecodeError():
            return f"not valid JSON ({error.msg}, column {error.colno})"
        case UnicodeDecodeError():
            return f"not UTF-8 text (byte {error.start + 1} of the line)"
        case _:
            return f"not valid JSON ({str(error).split(';')[0]})"


def _object_row(value: Any, path: Path, number: int) -> Row:
    if not isinstance(value, dict):
        raise UserError(
            f"{path}:{number}: a row must be an object of columns, not {type(value).__name__}: "
            'write {"prompt": ..., "answer": ...}'
        )
    return Row(value, f"{path}:{number}", "file")
