"""What a data row asks of a program: pairs of input and output, or Python tests of its functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.reward.sandbox.limits import Limits


class BadTests(Exception):
    """The row's tests cannot be used; the message says why."""


@dataclass(frozen=True)
class Pair:
    """An input and the output that belongs to it."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class CodeTests:
    """Either ``pairs`` or ``source`` is filled."""

    pairs: tuple[Pair, ...] = ()
    source: str = ""
    """Python tests: asserts, ``check(candidate)``, unittest."""
    entry_point: str | None = None
    """The function or class that is tested."""
    reference: str | None = None
    """A solution that must pass, else the tests are wrong."""
    bounds: Mapping[str, Any] | None = None
    """Limits of this row, by the names of :class:`Limits`."""
    tolerance: float | None = None

    def limits(self, usual: Limits) -> Limits:
        """The limits of this row; BadTests for one that is not above 0."""
        try:
            return replace(usual, **(self.bounds or {}))
        except ValueError as error:
            raise BadTests(str(error)) from None


_BOUNDS = {
    "timeout_s": "seconds",
    "memory_mb": "memory_mb",
    "max_procs": "processes",
    "max_stdout_bytes": "output_bytes",
}


def read_tests(value: Any, columns: Mapping[str, Any]) -> CodeTests:
    """The tests of a row: an object, its JSON, a list of asserts, or the source of Python tests.

    An object has ``stdio`` (objects with ``stdin`` and ``stdout``), or ``inputs`` and ``outputs`` (with ``fn_name``:
    lists of arguments and the values expected), or ``test_code`` or ``test`` or ``test_list``; and perhaps
    ``entry_point``, ``test_setup_code``, ``reference``, ``timeout_s``, ``memory_mb``, ``max_procs``,
    ``max_stdout_bytes``, ``float_tol``. What it lacks of ``entry_point`` and ``test_setup_code`` is looked for in the
    row's columns. Raises :class:`BadTests` for anything else, and for no tests at all.

    >>> read_tests({"stdio": [{"stdin": "1", "stdout": "2"}]}, {}).pairs
    (Pair(stdin='1', stdout='2'),)
    >>> read_tests(["assert f(1) == 2", "assert f(2) == 3"], {}).source
    'assert f(1) == 2\\nassert f(2) == 3'
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except ValueError:
            raise BadTests("the tests look like JSON and are none") from None
    if isinstance(value, str):
        value = {"test_code": value}
    elif isinstance(value, Sequence):
        value = {"test_list": value}
    if not isinstance(value, Mapping):
        raise BadTests("the row has no tests")
    tests = _content({**{key: columns[key] for key in ("entry_point", "test_setup_code") if key in columns}, **value})
    if not tests.pairs and not tests.source.strip():
        raise BadTests("the row has no tests")
    return tests


def _content(row: Mapping[str, Any]) -> CodeTests:
    bounds = {ours: row[theirs] for theirs, ours in _BOUNDS.items() if row.get(theirs) is not None}
    tolerance = row.get("float_tol")
    if not all(isinstance(number, (int, float)) for number in (*bounds.values(), tolerance or 0)):
        raise BadTests(f"a limit of the tests is no number: {bounds}, float_tol {tolerance!r}")
    entry_point, reference = row.get("entry_point") or row.get("fn_name"), row.get("reference")
    if not isinstance(entry_point, str | None) or not isinstance(reference, str | None):
        raise BadTests("entry_point and reference must be texts")
    common = CodeTests((), "", entry_point, reference, bounds, tolerance)
    if row.get("stdio") is not None:
        return replace(common, pairs=tuple(_pair(pair) for pair in row["stdio"]))
    if row.get("inputs") is not None:
        return _inputs_and_outputs(row, common)
    code = row.get("test_code") or row.get("test") or row.get("test_list") or ""
    lines = [code] if isinstance(code, str) else code
    if not all(isinstance(line, str) for line in lines):
        raise BadTests("the tests are no texts")
    setup = row.get("test_setup_code") or ""
    return replace(common, source="\n".join([setup, *lines] if setup and any(lines) else lines))


def _pair(found: Any) -> Pair:
    if isinstance(found, Mapping):
        given, expected = found.get("stdin", found.get("input")), found.get("stdout", found.get("output"))
    else:
        given, expected = found if isinstance(found, Sequence) and len(found) == 2 else (None, None)
    if not isinstance(given, str) or not isinstance(expected, str):
        raise BadTests(f"a pair of input and output must be two texts, not {found!r}"[:200])
    return Pair(given, expected)


def _inputs_and_outputs(row: Mapping[str, Any], common: CodeTests) -> CodeTests:
    inputs, outputs = row["inputs"], row.get("outputs")
    if not isinstance(inputs, Sequence) or not isinstance(outputs, Sequence) or len(inputs) != len(outputs):
        raise BadTests("inputs and outputs must be lists of one length")
    if common.entry_point is None:
        return replace(common, pairs=tuple(_pair(pair) for pair in zip(inputs, outputs, strict=True)))
    if not all(isinstance(given, Sequence) and not isinstance(given, str) for given in inputs):
        raise BadTests("with fn_name each input must be a list of arguments")
    lines = [
        f"assert _same(_entry_point({', '.join(map(repr, given))}), {expected!r})"
        for given, expected in zip(inputs, outputs, strict=True)
    ]
    return replace(common, source="\n".join(lines))
