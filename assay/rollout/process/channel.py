"""Messages between two processes over a socket: a length, then a pickle. The parent's end never blocks."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


def framed(message: Any) -> bytes:
    """The bytes that travel."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class Channel:
    """The parent's end: ``hear`` is called with each message, ``ended`` once when the other end is gone."""

    def __init__(self, end: socket.socket, hear: Callable[[Any], None], ended: Callable[[], None]) -> None:
        end.setblocking(False)
        self._socket, self._hear, self._ended = end, hear, ended
        self._received, self._unsent = bytearray(), bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = True

    def attach(self) -> None:
        """Listen from the running event loop."""
        loop = asyncio.get_running_loop()
        if self._open and loop is not self._loop:
            self._loop = loop
            loop.add_reader(self._socket, self._read)
            self._write()

    def send(self, message: Any) -> None:
        """Send now or as soon as there is room; nothing where the other end is gone."""
        if self._open:
            self._unsent += framed(message)
            self._write()

    def close(self) -> None:
        """Hang up."""
        if self._open:
            self._open = False
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            self._socket.close()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the reader is told of the end
            self._unsent.clear()
        if self._loop is not None and not self._loop.is_closed():
            if self._unsent:
                self._loop.add_writer(self._socket, self._write)
            else:
                self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            received = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self.close()
            self._ended()
            return
        self._received += received
        while self._open and (message := self._next()) is not None:
            self._hear(message)

    def _next(self) -> Any:
        """The next whole message; ``None`` (which nobody sends) where there is none yet."""
        if len(self._received) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        message = pickle.loads(memoryview(self._received)[_LENGTH.size : end])
        del self._received[:end]
        return message


class Line:
    """The child's end: blocking, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """Send. Raises OSError when the other end is gone."""
        with self._sending:
            self._socket.sendall(framed(message))

    def receive(self) -> Any:
        """Wait for the next message. Raises EOFError when the other end is gone."""
        return pickle.loads(self._exactly(_LENGTH.unpack(self._exactly(_LENGTH.size))[0]))

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                part = self._socket.recv(min(_CHUNK, size - len(received)))
            except OSError:
                part = b""
            if not part:
                raise EOFError
            received += part
        return bytes(received)
