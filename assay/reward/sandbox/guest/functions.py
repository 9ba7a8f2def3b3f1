"""The side of the program that is tested: holds its functions and objects, and does with them what it is asked.

Nothing here need be trusted. Whatever it answers is a value that "the program returned", and no more.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import itertools
import sys
import traceback
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from . import program
from .wire import Broken, Channel, NotPlain, decode, encode

_BASES: tuple[type, ...] = (bool, int, float, complex, str, bytes, list, set, frozenset, dict)
_MUTABLE = (list, dict, set)
_SPECIAL: dict[str, Callable[..., Any]] = {
    "attr": getattr,
    "setattr": setattr,
    "len": len,
    "iter": iter,
    "next": next,
    "str": str,
    "repr": repr,
    "hash": hash,
    "dir": dir,
    "getitem": lambda target, key: target[key],
    "setitem": lambda target, key, value: target.__setitem__(key, value),
    "delitem": lambda target, key: target.__delitem__(key),
    "contains": lambda target, item: item in target,
    "isinstance": isinstance,
    "eq": lambda a, b: a == b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: a / b,
    "neg": lambda a: -a,
    "enter": lambda a: a.__enter__(),
    "exit": lambda a: a.__exit__(None, None, None),
    "await": lambda coroutine: _run_coroutine(coroutine),
}


def serve(channel: Channel, source: str) -> None:
    """Load the source, say so, and answer until the other side is gone."""
    module = program.make_module("solution", source, "solution.py")
    try:
        exec(compile(source, "solution.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        channel.send({"load": f"{type(error).__name__}: {error}"[:500]})
        return
    channel.send({"loaded": True})
    server = Server(channel, module)
    try:
        while True:
            server.answer(channel.receive())
    except Broken:
        return


class Server:
    """Objects that the tests hold by number, and the answers about them."""

    def __init__(self, channel: Channel, module: types.ModuleType) -> None:
        self._channel = channel
        self._module = module
        self._objects: dict[int, Any] = {}
        self._numbers = itertools.count()

    def answer(self, asked: dict[str, Any]) -> None:
        """Do what is asked and send what came of it."""
        reply: dict[str, Any] = {"id": asked["id"]}
        with contextlib.ExitStack() as stack:
            printed = self._take_over(asked, stack)
            try:
                reply |= self._do(asked)
            except StopIteration as error:
                # Only an iterator may end one: from a function it would end the tests' own loops.
                reply |= {"stop": True} if asked["do"] == "next" else {"raised": _described(error)}
            except BaseException as error:
                reply["raised"] = _described(error)
        if printed is not None:
            reply["printed"] = printed.getvalue()
        try:
            self._channel.send(reply)
        except RecursionError:
            self._channel.send({"id": asked["id"], "raised": ["RecursionError", ["RecursionError"], ""]})

    def _take_over(self, asked: dict[str, Any], stack: contextlib.ExitStack) -> io.StringIO | None:
        """Read and print where the tests have it, for this answer; what catches the printed text, if they do."""
        if "stdin" in asked:
            stack.callback(setattr, sys, "stdin", sys.stdin)
            sys.stdin = io.StringIO(asked["stdin"])
        if "input" in asked:
            stack.callback(setattr, builtins, "input", builtins.input)
            builtins.input = self._decode(asked["input"])
        return stack.enter_context(contextlib.redirect_stdout(io.StringIO())) if asked.get("captured") else None

    def _do(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["do"] == "get":
            return self._find(asked["name"])
        args = [self._decode(arg) for arg in asked["args"]]
        kwargs = {key: self._decode(value) for key, value in asked["kwargs"].items()}
        if asked["do"] != "call":
            return {"value": self._encode(_SPECIAL[asked["do"]](*args))}
        before = asked["args"]
        value = args[0](*args[1:], **kwargs)
        reply = {"value": self._encode(value)}
        if value is None:
            changed = [[i, self._encode(arg)] for i, arg in enumerate(args) if type(arg) in _MUTABLE]
            reply["mutated"] = [[i, now] for i, now in changed if now != before[i]]
        return reply

    def _find(self, name: str) -> dict[str, Any]:
        """A global of the program, or a method of ``Solution`` (made anew for each call)."""
        names = vars(self._module)
        head, _, method = name.replace("()", "").rpartition(".")
        if head and head in names and hasattr(names[head], method):
            found = _bound(names[head], method)
        elif name in names:
            found = names[name]
        elif isinstance(names.get("Solution"), type) and hasattr(names["Solution"], name):
            found = _bound(names["Solution"], name)
        else:
            return {"missing": True}
        return {"value": self._encode(found)}

    def _encode(self, value: Any) -> Any:
        return encode(value, self._other)

    def _other(self, value: Any) -> Any:
        """A subclass of a plain type travels as its plain value, anything else stays here and gets a number."""
        if isinstance(value, tuple):
            items = [self._encode(item) for item in tuple.__iter__(value)]
            fields = getattr(type(value), "_fields", None)
            return {"namedtuple": [type(value).__name__, list(fields), items]} if fields else {"tuple": items}
        for base in _BASES:
            if isinstance(value, base):
                return self._encode(base.__new__(base, value) if base not in _MUTABLE else _copied(base, value))
        if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
            return self._encode(value.item())
        number = next(self._numbers)
        self._objects[number] = value
        return {"remote": [number, _kind(value), getattr(value, "__name__", type(value).__name__), _bases(value)]}

    def _decode(self, found: Any) -> Any:
        return decode(found, self._received)

    def _received(self, tag: str, content: Any) -> Any:
        if tag == "remote":
            return self._objects[content]
        if tag == "callback":
            return lambda *args, **kwargs: self._call_back(content, args, kwargs)
        raise Broken(f"unknown {tag}")

    def _call_back(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function that the tests handed in."""
        sent = [self._encode(arg) for arg in args], {key: self._encode(value) for key, value in kwargs.items()}
        self._channel.send({"callback": number, "args": sent[0], "kwargs": sent[1]})
        while "returned" not in (reply := self._channel.receive()):
            if "failed" in reply:
                raise RuntimeError(reply["failed"])
            self.answer(reply)  # the function itself asks for something
        return self._decode(reply["returned"])


def _run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # large, and seldom wanted: every program would carry it

    return asyncio.run(coroutine)


def _copied(base: type, value: Any) -> Any:
    if base is dict:
        return dict(dict.items(value))
    return base(base.__iter__(value))


def _bound(owner: Any, method: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(owner() if isinstance(owner, type) else owner, method)(*args, **kwargs)

    return call


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return "exception" if issubclass(value, BaseException) else "class"
    if isinstance(value, types.CoroutineType):
        return "coroutine"
    return "iterator" if isinstance(value, Iterator) else "object"


def _bases(value: Any) -> list[str]:
    return [base.__name__ for base in value.__mro__] if isinstance(value, type) else []


def _described(error: BaseException) -> list[Any]:
    if isinstance(error, NotPlain):
        return ["TypeError", ["TypeError"], str(error)]
    try:
        text = str(error)[:500]
    except Exception:  # the error is the program's own
        text = traceback.format_exc(limit=0)[:500]
    return [type(error).__name__, [base.__name__ for base in type(error).__mro__], text]
