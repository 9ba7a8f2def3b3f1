"""The side that judges: the data row's tests, run in a process of their own against functions in another one.

Reports to the host: ``loaded`` (the program's functions are at hand), ``called`` (the first use of one), ``again``
(a further round starts), then one ``result``: ``passed``, ``failed``, ``load`` or ``missing`` (the program's fault
before any test), ``gone`` (it ended or broke the protocol under a call) or ``broken`` (the tests' own fault).

Tests that are nothing but asserts (also ``self.assert...``) run twice, the second time in reverse: a program that
replays the expected values in the order of the calls fails. Not so where the same call is expected to give different
values, which only a program with a memory can do.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import os
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any, NoReturn

from .program import make_module
from .remote import Missing, Peer, Remote
from .wire import Broken, Channel, NotPlain

_KNOWN_MODULES = frozenset(
    [
        "bisect",
        "collections",
        "copy",
        "datetime",
        "decimal",
        "fractions",
        "functools",
        "heapq",
        "io",
        "itertools",
        "json",
        "math",
        "operator",
        "os",
        "random",
        "re",
        "string",
        "sys",
        "time",
        "typing",
        "unittest",
    ]
)
"""Modules that tests may use without importing them."""
_ENTRY, _SAME = "_entry_point", "_same"
"""Names for tests that are made of pairs of arguments and results."""


class Report:
    """What is told to the host; the result once, and nothing after it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def event(self, name: str) -> None:
        """Tell how far it is."""
        self._channel.send({"event": name})

    def result(self, kind: str, message: str = "") -> NoReturn:
        """Tell the result and end the process, whatever the tests would do next."""
        self._channel.send({"result": kind, "message": message[:500]})
        os._exit(0)


def run(channel: Channel, peer: Channel, job: dict[str, Any]) -> NoReturn:
    """Run the tests of ``job`` against the functions behind ``peer``."""
    report = Report(channel)
    try:
        hello = peer.receive()
    except Broken:
        report.result("gone", "it ended before its functions were defined")
    if not isinstance(hello, dict) or "loaded" not in hello:
        report.result("load", str(hello.get("load") if isinstance(hello, dict) else hello))
    program = Peer(peer, job["tolerance"], lambda: report.event("called"), lambda why: report.result("gone", why))
    try:
        tree = ast.parse(job["source"])
    except (SyntaxError, ValueError) as error:
        report.result("broken", f"the tests do not compile: {error}")
    rounds = [tree] if (reverse := _reversed(tree)) is None else [tree, reverse]
    failures: list[str] = []
    sys.argv[:] = ["tests.py"]
    _watch_unittest(failures)
    for number, each in enumerate(rounds):
        if number:
            report.event("again")
        _round(each, job, program, report, failures)
    report.result("passed")


def _round(tree: ast.Module, job: dict[str, Any], program: Peer, report: Report, failures: list[str]) -> None:
    """One run of the tests; returns when they pass."""
    module = make_module("__main__", job["source"], "tests.py")
    _offer_module(program, report)
    before = program.uses
    _offer_names(tree, module, job["entry_point"], program, report)
    report.event("loaded")
    try:
        exec(compile(tree, "tests.py", "exec", dont_inherit=True), module.__dict__)
        if program.uses == before:
            _run_collected(module)
    except SystemExit as error:
        if error.code not in (None, 0, False):
            _judge_failure(AssertionError(f"the tests left with {error.code}"), program, report)
    except BaseException as error:
        _judge_failure(error, program, report)
    if failures:
        _judge_failure(AssertionError(failures[0]), program, report)
    if program.uses == before:
        report.result("broken", "the tests never called the program")


def _judge_failure(error: BaseException, program: Peer, report: Report) -> NoReturn:
    text = f"{type(error).__name__}: {error}" if str(error) else _where(error)
    if getattr(error, "remote", False):
        report.result("failed", f"it raised {text}")
    if program.unsent or isinstance(error, (ImportError, NotPlain)):
        report.result("broken", f"the tests fail by themselves: {program.unsent or text}")
    if program.uses == 0:
        report.result("broken", f"the tests fail before they call the program: {text}")
    report.result("failed", text)


def _where(error: BaseException) -> str:
    """The line of the tests that failed."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "tests.py":
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{type(error).__name__} in line {line} of the tests"


def _offer_names(
    tree: ast.Module, module: types.ModuleType, entry_point: str | None, program: Peer, report: Report
) -> None:
    """Put the program's functions where the tests look for them: the entry point, and names that are nobody's."""
    free = _free_names(tree)
    found: dict[str, Any] = {}
    wanted: list[str] = sorted(free | ({entry_point} if entry_point else set()))
    for name in wanted:
        if name == "candidate" and entry_point:
            continue
        try:
            found[name] = program.get(name)
        except Missing:
            if name == entry_point:
                report.result("missing", f"it defines no {name!r}")
            if name in _KNOWN_MODULES:
                found[name] = importlib.import_module(name)
    if wanted and not found:
        report.result("missing", f"it defines none of {', '.join(wanted)}")
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    for name, value in found.items():
        allowed = isinstance(value, Remote) or (
            name != entry_point and (name in _KNOWN_MODULES or _is_exception(value))
        )
        if not allowed and (name in called or name == entry_point):
            report.result("missing", f"its {name!r} is nothing to be called")
    if entry_point:
        found.setdefault("candidate", found[entry_point])
        found[entry_point.replace("()", "").rpartition(".")[2]] = found[entry_point]
        found[_ENTRY] = found[entry_point]
    vars(module).update(found)
    vars(module)[_SAME] = same


def _offer_module(program: Peer, report: Report) -> None:
    """Let the tests import the program as ``solution``."""

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return program.get(name)
        except Missing:
            report.result("missing", f"it defines no {name!r}")

    module = types.ModuleType("solution")
    module.__dict__["__getattr__"] = find
    sys.modules["solution"] = module


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def same(found: Any, expected: Any) -> bool:
    """Equality where expected values come from JSON, which has no tuples.

    >>> same((1, [2, (3,)]), [1, [2, [3]]]), same({1}, [1])
    (True, False)
    """
    return bool(_untupled(found) == _untupled(expected))


def _untupled(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_untupled(item) for item in value]
    return {key: _untupled(item) for key, item in value.items()} if isinstance(value, dict) else value


def _free_names(tree: ast.Module) -> set[str]:
    """Names that the tests use and neither define nor import, and that Python does not have."""
    used: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return {name for name in used - bound if not hasattr(builtins, name) and name not in (_ENTRY, _SAME)}


def _run_collected(module: types.ModuleType) -> None:
    """Run what the tests define and never call: ``check(candidate)``, ``test_*`` functions, test cases."""
    names = vars(module)
    check = names.get("check")
    if isinstance(check, types.FunctionType) and _ENTRY in names:
        check(names[_ENTRY])
    for name, value in list(names.items()):
        if name.startswith("test") and isinstance(value, types.FunctionType):
            takes = inspect.signature(value).parameters
            value(*([names[_ENTRY]] if list(takes) == ["candidate"] else []))
    cases = [v for v in names.values() if isinstance(v, type) and issubclass(v, unittest.TestCase)]
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
    suite.run(unittest.TestResult())


def _watch_unittest(failures: list[str]) -> None:
    """Note every failure of a test case, also where the tests ignore the result."""

    def noting(known: Callable[..., None]) -> Callable[..., None]:
        def note(self: Any, test: Any, error: Any) -> None:
            failures.append(f"{test}: {error[0].__name__}: {error[1]}"[:300])
            known(self, test, error)

        return note

    for method in ("addFailure", "addError"):
        for kind in (unittest.TestResult, unittest.TextTestResult):
            if method in vars(kind):
                setattr(kind, method, noting(getattr(kind, method)))


def _reversed(tree: ast.Module) -> ast.Module | None:
    """The tests in reverse, where they are only asserts (of the module, ``check``, or a test function); else None."""
    copy = ast.parse(ast.unparse(tree))
    functions = (node for node in ast.walk(copy) if isinstance(node, ast.FunctionDef))
    turned = False
    for body in [copy.body, *(f.body for f in functions if f.name == "check" or f.name.startswith("test"))]:
        asserts = [node for node in body if _is_assert(node)]
        others = [node for node in body if not _is_assert(node)]
        if len(asserts) > 1 and _harmless(others, body) and not _wants_memory(asserts):
            body[:] = [*others, *reversed(asserts)]
            turned = True
    return ast.fix_missing_locations(copy) if turned else None


def _harmless(others: list[ast.stmt], body: list[ast.stmt]) -> bool:
    """Are there but imports, constants' texts and nothing else, all before the asserts?"""
    kinds = (ast.Import, ast.ImportFrom, ast.Expr, ast.Pass)
    return body[: len(others)] == others and all(
        isinstance(node, kinds) and not (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant))
        for node in others
    )


def _is_assert(node: ast.stmt) -> bool:
    """Is it an assert, or a ``self.assert...`` that reads nothing of the test case's own state?"""
    if isinstance(node, ast.Assert):
        return True
    call = node.value if isinstance(node, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.attr.startswith("assert")
        and len(call.args) > 0
        and not any(
            isinstance(part, ast.Name) and part.id == call.func.value.id
            for argument in (*call.args, *call.keywords)
            for part in ast.walk(argument)
        )
    )


def _wants_memory(asserts: list[ast.stmt]) -> bool:
    """Is the same call expected to give different values?"""
    expected: dict[str, set[str]] = {}
    for node in asserts:
        if isinstance(node, ast.Expr):
            call = node.value
            assert isinstance(call, ast.Call)
            wanted = [call.func, *call.args[1:]]
            expected.setdefault(ast.dump(call.args[0]), set()).add(" ".join(map(ast.dump, wanted)))
            continue
        assert isinstance(node, ast.Assert)
        test = node.test
        if isinstance(test, ast.Compare):
            expected.setdefault(ast.dump(test.left), set()).add(ast.dump(test.comparators[0]))
        else:
            inner = test.operand if isinstance(test, ast.UnaryOp) else test
            expected.setdefault(ast.dump(inner), set()).add(type(test).__name__)
    return any(len(values) > 1 for values in expected.values())
