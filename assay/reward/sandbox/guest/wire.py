"""Plain data over a socket: length-prefixed JSON with tags for what JSON lacks, and nothing that can run.

Only values of exactly the built-in types are plain; a subclass may carry methods (an ``__eq__`` that always says yes)
and is none. What comes off the wire is built here, by the reader, so a comparison of it is Python's own.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_FRAME = 32 << 20
"""Longest message in bytes."""
MAX_DEPTH = 200
"""Deepest nesting of a value."""

_BIG = 1 << 53
_TEXTS: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    bytes: ("bytes", bytes.hex, bytes.fromhex),
    Decimal: ("decimal", str, Decimal),
    Fraction: ("fraction", str, Fraction),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: (
        "timedelta",
        lambda d: f"{d.days} {d.seconds} {d.microseconds}",
        lambda text: timedelta(*(int(part) for part in text.split())),
    ),
}
_READ_TEXT = {tag: read for tag, _, read in _TEXTS.values()}


class NotPlain(Exception):
    """A value that is not plain data."""


class Broken(Exception):
    """The other side closed the connection or does not keep to the protocol."""


def encode(value: Any, other: Callable[[Any], Any] | None = None, depth: int = 0) -> Any:
    """JSON for a plain value; ``other`` encodes what is not plain, else :class:`NotPlain` is raised.

    >>> encode((1, {"a": 2.5}))
    {'tuple': [1, {'dict': [['a', 2.5]]}]}
    """
    kind = type(value)
    if value is None or kind is bool or kind is str or (kind is float and value - value == 0):
        return value
    if kind is int:
        return value if -_BIG < value < _BIG else {"int": hex(value)}
    if kind is float:
        return {"float": str(value)}
    if kind is complex:
        return {"complex": [encode(value.real), encode(value.imag)]}
    if kind in _TEXTS:
        tag, write, _ = _TEXTS[kind]
        return {tag: write(value)}
    if depth > MAX_DEPTH:
        raise NotPlain("nested too deeply")
    if kind is list:
        return [encode(item, other, depth + 1) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [encode(item, other, depth + 1) for item in value]}
    if kind in _mappings():
        return {"dict": [[encode(k, other, depth + 1), encode(v, other, depth + 1)] for k, v in dict.items(value)]}
    if kind is range:
        return {"range": [encode(part) for part in (value.start, value.stop, value.step)]}
    if kind is _deque():
        return {"deque": [encode(item, other, depth + 1) for item in value]}
    if other is not None:
        return other(value)
    raise NotPlain(f"a {kind.__name__} is no plain data")


def decode(
    found: Any, other: Callable[[str, Any], Any] | None = None, real: Callable[[float], Any] = float, depth: int = 0
) -> Any:
    """The value of its JSON, always of built-in types; :class:`Broken` for what :func:`encode` never writes.

    ``other`` reads tags that are not of plain data; ``real`` makes the floats.

    >>> decode(encode({(1, 2): {3}, "n": 2**70})) == {(1, 2): {3}, "n": 2**70}
    True
    """
    if depth > MAX_DEPTH:
        raise Broken("nested too deeply")
    if isinstance(found, list):
        return [decode(item, other, real, depth + 1) for item in found]
    if isinstance(found, float):
        return real(found)
    if not isinstance(found, dict):
        return found
    if len(found) != 1:
        raise Broken("a value of no known kind")
    ((tag, content),) = found.items()
    try:
        return _decode_tagged(tag, content, other, real, depth + 1)
    except (TypeError, ValueError, ArithmeticError, OverflowError) as error:
        raise Broken(f"a wrong {tag}: {type(error).__name__}") from None


def _decode_tagged(
    tag: str, content: Any, other: Callable[[str, Any], Any] | None, real: Callable[[float], Any], depth: int
) -> Any:
    if tag == "int":
        return int(content, 16)
    if tag == "float":
        return real(float(content))
    if tag in _READ_TEXT:
        return _READ_TEXT[tag](content)
    if tag == "complex":
        return complex(*(decode(part) for part in content))
    if tag in _COLLECTIONS:
        return _COLLECTIONS[tag](decode(item, other, real, depth) for item in content)
    if tag == "range":
        return range(*(decode(part) for part in content))
    if tag == "deque":
        return _deque()(decode(item, other, real, depth) for item in content)
    if tag == "dict":
        return {decode(k, other, real, depth): decode(v, other, real, depth) for k, v in content}
    if other is not None:
        return other(tag, content)
    raise Broken(f"a value of unknown kind {tag!r}")


_COLLECTIONS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def _deque() -> Any:
    from collections import deque

    return deque


def _mappings() -> tuple[type, ...]:
    from collections import Counter, OrderedDict, defaultdict

    return dict, Counter, OrderedDict, defaultdict


class Channel:
    """Messages over a stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def fileno(self) -> int:
        """The descriptor, for waiting."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send one message; :class:`Broken` when the other side is gone or the message is too long."""
        payload = json.dumps(message).encode()
        if len(payload) > MAX_FRAME:
            raise Broken(f"a message of {len(payload)} bytes")
        try:
            self._socket.sendall(struct.pack(">I", len(payload)) + payload)
        except OSError as error:
            raise Broken(f"the connection is closed: {error.strerror}") from None

    def receive(self) -> Any:
        """The next message; :class:`Broken` at the end of the connection, or for anything but a message."""
        (length,) = struct.unpack(">I", self._exactly(4))
        if length > MAX_FRAME:
            raise Broken(f"a message of {length} bytes")
        try:
            return json.loads(self._exactly(length))
        except (ValueError, RecursionError) as error:
            raise Broken(f"no message: {type(error).__name__}") from None

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _exactly(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            try:
                part = self._socket.recv(min(length - len(parts), 1 << 20))
            except OSError as error:
                raise Broken(f"the connection is closed: {error.strerror}") from None
            if not part:
                raise Broken("the connection is closed")
            parts += part
        return bytes(parts)
