"""Reading data specs into rows: files, folders, hub datasets and generated tasks, each kind one function.

A spec is a path or ``KIND:REST``. To add a kind, register a function from the rest of the spec to rows::

    @SOURCES.register("numbers")
    def read_numbers(rest: str) -> Iterator[Row]:
        '''``numbers:N``: the N first integers.'''
        for i in range(int(rest)):
            yield Row({"prompt": f"What comes after {i}?", "answer": i + 1}, f"numbers[{i}]", "numbers")

and to add a file type, register a function from a path under its ending in :data:`FILES` (see ``files``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.data.files import FILES, file_ending
from assay.data.gym import read_reasoning_gym
from assay.data.rows import Row
from assay.errors import UserError, nearest
from assay.registry import Registry

SOURCES: Registry[Callable[[str], Iterator[Row]]] = Registry("data source")
"""Readers by the word before the first colon of a spec."""
SOURCES.register("reasoning_gym")(read_reasoning_gym)

OTHER_SPLITS = ("test", "val", "dev", "eval")
"""A file whose name begins so is not training data unless it is asked for."""


def read_rows(spec: str) -> list[Row]:
    """All rows of one data spec, in the order of the source.

    Raises:
        UserError: the spec names nothing that can be read, or a row of it is broken (file and row are named).
    """
    kind, colon, rest = spec.partition(":")
    if colon and kind in SOURCES:
        rows = list(SOURCES[kind](rest))
    elif colon and re.fullmatch(r"[A-Za-z_]{2,}", kind) and not Path(spec).exists():
        raise UserError(
            f"data source {kind!r} of {spec!r} is unknown{nearest(kind, SOURCES)}; "
            f"known: a path, {', '.join(f'{name}:' for name in sorted(SOURCES))}"
        )
    else:
        rows = list(_read_path(spec))
    if not rows:
        raise UserError(f"{spec}: no rows in it; name a file or split that has some")
    return rows


def _read_path(spec: str) -> Iterator[Row]:
    """A file, a folder, or ``FOLDER@SPLIT``."""
    path, split = Path(spec).expanduser(), ""
    if not path.exists() and "@" in spec:
        folder, _, split = spec.rpartition("@")
        path = Path(folder).expanduser()
    if path.is_dir():
        saved = (path / "dataset_dict.json").exists() or (path / "state.json").exists()
        yield from _read_saved(path, split) if saved else _read_folder(path, split)
    elif split and path.exists():
        raise UserError(f"{spec}: only folders have splits, and {path} is a file: leave @{split} out")
    elif path.exists():
        yield from _read_file(path)
    else:
        raise UserError(f"{spec}: no such file or folder (a dataset of the hub is written hub:NAME)")


def _read_file(path: Path) -> Iterator[Row]:
    ending = file_ending(path)
    if ending is None:
        raise UserError(f"{path}: cannot tell its format; known endings: {', '.join(sorted(FILES))}")
    try:
        yield from FILES[ending](path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def _read_folder(folder: Path, split: str) -> Iterator[Row]:
    """All data files under a folder in the order of their names; with a split, those named so."""
    files = [
        p
        for p in sorted(folder.rglob("*"))
        if p.is_file() and file_ending(p) and not any(part.startswith(".") for part in p.relative_to(folder).parts)
    ]
    if not files:
        raise UserError(f"{folder}: no data files in it (looked for {', '.join(sorted(FILES))})")

    def named(path: Path, names: Iterable[str]) -> bool:
        return any(part.startswith(tuple(names)) for part in path.relative_to(folder).parts)

    if split:
        chosen = [p for p in files if named(p, [split])]
        if not chosen:
            raise UserError(f"{folder}: no file or sub-folder whose name begins with {split!r}")
    else:
        chosen = files
        others = [p for p in files if named(p, OTHER_SPLITS)]
        if others and len(others) < len(files):
            raise UserError(
                f"{folder}: holds more than one split ({others[0].relative_to(folder)} beside others): "
                f"name the one you mean, {folder}@train"
            )
    for path in chosen:
        yield from _read_file(path)


def _read_saved(folder: Path, split: str) -> Iterator[Row]:
    """A folder written by ``datasets``' ``save_to_disk``; of several splits the named one, else ``train``."""
    import datasets

    try:
        found = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder}: not a folder of datasets.save_to_disk: {_one_line(error)}") from None
    if isinstance(found, datasets.DatasetDict):
        name = split or ("train" if "train" in found else next(iter(found)) if len(found) == 1 else "")
        if name not in found:
            wish = f"no split {name!r}{nearest(str(name), map(str, found))}" if name else "several splits, none 'train'"
            raise UserError(f"{folder}: {wish}; write {folder}@SPLIT with one of: {', '.join(map(str, found))}")
        found, place = found[name], f"{folder}@{name}"
    elif split:
        raise UserError(f"{folder}: a single dataset without splits: leave @{split} out")
    else:
        place = str(folder)
    yield from _table_rows(found, place, "file")


@SOURCES.register("hub")
def read_hub(rest: str) -> Iterator[Row]:
    """``hub:NAME[:CONFIG][@SPLIT]``: a dataset of the Hugging Face hub or its cache; split ``train``."""
    name, _, split = rest.partition("@")
    name, _, config = name.partition(":")
    split = split or "train"
    if not name:
        raise UserError("hub: needs a dataset name: hub:NAME[:CONFIG][@SPLIT]")
    import datasets

    try:
        table = datasets.load_dataset(name, config or None, split=split)
    except Exception as error:  # its HTTP client, which changes with its version, raises kinds of its own
        raise UserError(
            f"hub:{rest}: cannot be loaded ({type(error).__name__}: {_one_line(error)}); check name, config, "
            "split and network, or download it elsewhere and give the folder's path"
        ) from error
    yield from _table_rows(table, f"hub:{name}{':' + config if config else ''}@{split}", "hub")


def _table_rows(table: Iterable[Any], place: str, kind: str) -> Iterator[Row]:
    for i, columns in enumerate(table, 1):
        yield Row(_plain(columns), f"{place}:{i}", kind)


def _plain(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in columns.items()}


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else "no message"
