"""What the tests hold in place of the program's functions and objects: every use is a question to its process.

Answers are plain data, rebuilt here, so that ``==`` between an answer and an expected value is Python's own. An object
that is no plain data stays where it is; it equals nothing but what its own process says of two of its objects.

What its process says of an object beside plain data would be a verdict of its own: an object whose difference to any
number is 0 would pass as that number. So order, arithmetic and ``in`` are asked only of objects that the tests made
themselves, by calling a class under its name (with a capital, as a class is written).
"""

from __future__ import annotations

import builtins
import io
import itertools
import secrets
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

from .wire import Broken, Channel, NotPlain, decode, encode

_FORBIDDEN = ("BaseException", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration")
"""What a program raises must not steer the tests: these become RuntimeError."""


class Missing(Exception):
    """The program has no such name."""


class Near(float):
    """A float that equals others within a tolerance, absolute or relative."""

    tolerance = 0.0

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, float)):
            return abs(float(self) - other) <= self.tolerance * max(1.0, abs(other)) or float(self) == float(other)
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = float.__hash__


class Peer:
    """The connection to the program. ``gone`` is called, and must not return, when the program has left it."""

    def __init__(
        self, channel: Channel, tolerance: float, first_use: Callable[[], None], gone: Callable[[str], None]
    ) -> None:
        self._channel = channel
        self._first_use = first_use
        self._gone = gone
        self._real: Callable[[float], Any] = type("Near", (Near,), {"tolerance": tolerance}) if tolerance else float
        self._callbacks: dict[int, Callable[..., Any]] = {}
        self._numbers = itertools.count()
        self._exceptions: dict[str, type[Exception]] = {}
        self._usual = sys.stdin, sys.stdout, builtins.input
        self.uses = 0
        """How often the tests asked something of the program's objects."""
        self.unsent = ""
        """Why an argument of the tests could not be sent, if one could not."""

    def get(self, name: str) -> Any:
        """The program's global of this name; :class:`Missing` without one."""
        reply = self._ask({"do": "get", "name": name})
        if reply.get("missing"):
            raise Missing(name)
        found = self._decode(reply["value"])
        if isinstance(found, Remote) and name.rpartition(".")[2][:1].isupper():
            object.__setattr__(found, "_named", True)
        return found

    def do(self, what: str, *args: Any, **kwargs: Any) -> Any:
        """An operation on the program's objects: its value, or the exception it raised."""
        self.uses += 1
        if self.uses == 1:
            self._first_use()
        try:
            sent = [self._encode(arg) for arg in args]
            named = {key: self._encode(value) for key, value in kwargs.items()}
        except NotPlain as error:
            self.unsent = str(error)
            raise
        reply = self._ask({"do": what, "args": sent, "kwargs": named, **self._replaced()})
        if reply.get("printed") and sys.stdout is not self._usual[1]:
            sys.stdout.write(_text(reply["printed"]))
        if reply.get("stop"):
            # From anything else it would end a loop of the tests before they have looked at a value.
            raise StopIteration if what == "next" else self._exception("RuntimeError", ["RuntimeError"], "no iterator")
        if "raised" in reply:
            raise self._exception(*reply["raised"])
        for index, now in reply.get("mutated", ()):
            _overwrite(args[index], self._decode(now))
        value = self._decode(reply["value"])
        if isinstance(value, Remote):
            object.__setattr__(value, "_made", _makes(what, args[0]))
        return value

    def _replaced(self) -> dict[str, Any]:
        """What of its input and output the tests have put something else in the place of."""
        stdin, stdout, reads = self._usual
        found: dict[str, Any] = {"captured": True} if sys.stdout is not stdout else {}
        if isinstance(sys.stdin, io.StringIO) and sys.stdin is not stdin:
            found["stdin"] = sys.stdin.read()
        if builtins.input is not reads:
            found["input"] = self._callback(builtins.input)
        return found

    def _ask(self, question: dict[str, Any]) -> Any:
        """Send a question that only an answer made after it can name, and serve what is asked back meanwhile."""
        question["id"] = secrets.token_hex(8)
        try:
            self._channel.send(question)
            while True:
                reply = self._channel.receive()
                if not isinstance(reply, dict):
                    raise Broken("an answer of no known kind")
                if "callback" in reply:
                    self._channel.send(self._called_back(reply))
                elif reply.get("id") == question["id"]:
                    self._check(reply)
                    return reply
                else:
                    raise Broken("an answer to no question")
        except (Broken, RecursionError) as error:
            self._gone(str(error))
            raise

    def _check(self, reply: dict[str, Any]) -> None:
        """Have an answer of another make end the program, not the tests."""
        try:
            if "raised" in reply:
                name, bases, text = reply["raised"]
                if not (isinstance(name, str) and isinstance(text, str) and all(isinstance(b, str) for b in bases)):
                    raise Broken("an exception of no known kind")
            elif not reply.get("stop") and not reply.get("missing"):
                self._decode(reply["value"])
            for index, now in reply.get("mutated", ()):
                if not isinstance(index, int):
                    raise Broken("a change of no known kind")
                self._decode(now)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Broken(f"an answer of no known kind: {type(error).__name__}") from None

    def _called_back(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            function = self._callbacks[asked["callback"]]
            args = [self._decode(arg) for arg in asked["args"]]
            kwargs = {str(key): self._decode(value) for key, value in asked["kwargs"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise Broken(f"a call back of no known kind: {type(error).__name__}") from None
        try:
            return {"returned": self._encode(function(*args, **kwargs))}
        except Exception as error:  # the program called with what it liked
            return {"failed": f"{type(error).__name__}: {error}"[:500]}

    def _encode(self, value: Any) -> Any:
        return encode(value, self._sent)

    def _sent(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return {"remote": object.__getattribute__(value, "_number")}
        if isinstance(value, Near):
            return float(value)
        if isinstance(value, tuple):
            return {"tuple": [self._encode(item) for item in value]}
        if isinstance(value, Iterator) or type(value) in (range, type({}.keys()), type({}.values()), type({}.items())):
            return self._encode(list(value))
        if callable(value):
            return self._callback(value)
        raise NotPlain(f"a {type(value).__name__} cannot be handed to the program")

    def _callback(self, function: Callable[..., Any]) -> dict[str, int]:
        number = next(self._numbers)
        self._callbacks[number] = function
        return {"callback": number}

    def _decode(self, found: Any) -> Any:
        return decode(found, self._received, self._real)

    def _received(self, tag: str, content: Any) -> Any:
        if tag == "namedtuple":
            name, fields, items = content
            return namedtuple(name, fields)(*(self._decode(item) for item in items))
        if tag != "remote":
            raise Broken(f"a value of unknown kind {tag!r}")
        number, kind, name, bases = content
        if kind == "exception":
            return self._exception_class(name, bases)
        remote = Remote(self, number, kind, str(name))
        return _awaited(remote) if kind == "coroutine" else remote

    def _exception_class(self, name: str, bases: list[str]) -> type[Exception]:
        known = next((b for b in bases if isinstance(getattr(builtins, b, None), type)), "Exception")
        base = getattr(builtins, known)
        if known in _FORBIDDEN or not issubclass(base, Exception):
            base = RuntimeError
        if known == name:
            return base
        return self._exceptions.setdefault(name, types.new_class(name, (base,)))

    def _exception(self, name: str, bases: list[str], text: str) -> Exception:
        kind = self._exception_class(name, bases)
        try:
            error = kind(text)
        except TypeError:  # an exception that wants more than a text
            error = RuntimeError(f"{name}: {text}")
        error.remote = True  # type: ignore[attr-defined]
        return error


class Remote:
    """An object of the program."""

    def __init__(self, peer: Peer, number: int, kind: str, name: str) -> None:
        set_here = object.__setattr__
        set_here(self, "_peer", peer)
        set_here(self, "_number", number)
        set_here(self, "_kind", kind)
        set_here(self, "_named", False)
        set_here(self, "_made", False)
        set_here(self, "__name__", name)
        set_here(self, "__qualname__", name)

    def _do(self, what: str, *args: Any) -> Any:
        return object.__getattribute__(self, "_peer").do(what, self, *args)

    def _do_made(self, what: str, other: Any) -> Any:
        """An operation that only objects of the tests' own making are asked for, or two objects."""
        if not (object.__getattribute__(self, "_made") or isinstance(other, Remote)):
            raise TypeError(f"{what}: {object.__getattribute__(self, '__name__')} is no plain data")
        return self._do(what, other)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in its process."""
        return object.__getattribute__(self, "_peer").do("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_assay") or name in ("__wrapped__", "__mro_entries__", "__unittest_skip__"):
            raise AttributeError(name)
        return self._do("attr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._do("setattr", name, value)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and bool(instance._do("isinstance", self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and (self is other or bool(self._do("eq", other)))

    def __hash__(self) -> int:
        return hash(self._do("hash"))

    def __len__(self) -> int:
        return self._do("len")

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return self if object.__getattribute__(self, "_kind") == "iterator" else self._do("iter")

    def __next__(self) -> Any:
        return self._do("next")

    def __getitem__(self, key: Any) -> Any:
        return self._do("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._do("setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        self._do("delitem", key)

    def __contains__(self, item: Any) -> bool:
        return bool(self._do_made("contains", item))

    def __str__(self) -> str:
        return _text(self._do("str"))

    def __repr__(self) -> str:
        return _text(self._do("repr"))

    def __lt__(self, other: Any) -> bool:
        return bool(self._do_made("lt", other))

    def __le__(self, other: Any) -> bool:
        return bool(self._do_made("le", other))

    def __gt__(self, other: Any) -> bool:
        return bool(self._do_made("gt", other))

    def __ge__(self, other: Any) -> bool:
        return bool(self._do_made("ge", other))

    def __add__(self, other: Any) -> Any:
        return self._do_made("add", other)

    def __sub__(self, other: Any) -> Any:
        return self._do_made("sub", other)

    def __mul__(self, other: Any) -> Any:
        return self._do_made("mul", other)

    def __truediv__(self, other: Any) -> Any:
        return self._do_made("truediv", other)

    def __neg__(self) -> Any:
        if not object.__getattribute__(self, "_made"):
            raise TypeError("neg: no plain data")
        return self._do("neg")

    def __enter__(self) -> Any:
        return self._do("enter")

    def __exit__(self, *_: object) -> None:
        self._do("exit")


def _makes(what: str, target: Any) -> bool:
    """Does an operation on this object make one of the tests' own making?"""
    if what == "call":
        kind, named = (object.__getattribute__(target, key) for key in ("_kind", "_named"))
        return kind == "class" and named
    return what in ("add", "sub", "mul", "truediv", "neg") and object.__getattribute__(target, "_made")


async def _awaited(coroutine: Remote) -> Any:
    """A coroutine of the program, run to its end in its process when the tests wait for it."""
    return coroutine._do("await")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _overwrite(argument: Any, now: Any) -> None:
    """Give a list, dict or set of the tests the content that the program left in its copy."""
    if type(argument) is not type(now) or not isinstance(argument, (list, dict, set)):
        return
    if isinstance(argument, list):
        argument[:] = now
    else:
        argument.clear()
        argument.update(now)
