"""One server over HTTP: questions with a JSON answer, and answers that arrive event by event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from assay.http import SHOWN, Passing, Unavailable, reason, refusal, without_key

_LONGEST_EVENT = 64 << 20
"""Bytes of one event or reply that are read: the log-probs of a whole vocabulary fit."""


class Client:
    """The connection to one server. Used from one event loop; made without touching the network."""

    def __init__(self, url: str, *, timeout_s: float, key: str | None = None) -> None:
        """``timeout_s``: longest silence. ``key``: sent as a bearer token, and kept out of every message."""
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self._key = key
        self._client: Any = None

    @property
    def name(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc

    async def get(self, path: str) -> Any:
        """The JSON at ``path``. Raises Passing or Refused."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that ``path`` answers ``body`` with. Raises Passing or Refused."""
        return await self._ask("POST", path, body)

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The server-sent events that ``path`` answers ``body`` with, until the server closes or says ``[DONE]``.

        A reply in JSON is one event, or in a list several.
        Close it to interrupt the server. Raises Passing or Refused: nothing is retried here, and silence is for the
        caller to judge, since a server may send comments while it computes nothing.
        """
        import httpx2

        try:
            async with self._open().stream("POST", self.url + path, content=_encoded(body)) as reply:
                await self._check(reply)
                kind = reply.headers.get("content-type", "no content type")
                if kind.startswith("application/json"):
                    found = self._parsed(await reply.aread())
                    for event in found if isinstance(found, list) else [found]:
                        yield self._sound(event)
                    return
                if not kind.startswith("text/event-stream"):
                    raise Passing(f"{self.name}: no event stream but {without_key(kind, self._key)[:60]}")
                async with aclosing(_lines(reply.aiter_bytes(), self.name)) as lines:
                    async for line in lines:
                        if line == b"data: [DONE]":
                            return
                        for mark in (b"data:", b"error:"):
                            if line.startswith(mark):
                                yield self._sound(self._parsed(line.removeprefix(mark)))
        except httpx2.RequestError as error:
            raise Passing(f"{self.name}: {without_key(reason(error), self._key)}") from None

    async def close(self) -> None:
        """Hang up."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _open(self) -> Any:
        if self._client is None:
            import httpx2

            headers = {"Content-Type": "application/json"}
            if self._key is not None:
                headers["Authorization"] = f"Bearer {self._key}"
            timeout = httpx2.Timeout(None, connect=self.timeout_s)
            # No connection is used twice: servers close them behind a stream, and a question sent into that is lost.
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
            self._client = httpx2.AsyncClient(headers=headers, timeout=timeout, limits=limits)
        return self._client

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        import httpx2

        content = None if body is None else _encoded(body)
        try:
            async with asyncio.timeout(self.timeout_s):
                reply = await self._open().request(method, self.url + path, content=content)
        except TimeoutError:
            raise Passing(f"{self.name}: no reply within {self.timeout_s:g} s") from None
        except httpx2.RequestError as error:
            raise Passing(f"{self.name}: {without_key(reason(error), self._key)}") from None
        await self._check(reply)
        return self._parsed(reply.content)

    async def _check(self, reply: Any) -> None:
        if reply.status_code == 200:
            return
        content = (await reply.aread())[: 4 * SHOWN].decode("utf-8", "replace")
        wrong = refusal(reply.status_code, without_key(content, self._key), reply.headers, self.name)
        raise wrong if wrong is not None else Unavailable(self.name)

    def _sound(self, event: Any) -> dict[str, Any]:
        if not isinstance(event, dict):
            raise Passing(f"{self.name}: an event is no JSON object")
        if "error" in event:
            said = without_key(json.dumps(event["error"]), self._key)
            raise Passing(f"{self.name}: {said[:SHOWN]}")
        return event

    def _parsed(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError:
            said = without_key(content[:80].decode("utf-8", "replace"), self._key)
            raise Passing(f"{self.name}: the reply is no JSON: {' '.join(said.split())}") from None


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()


async def _lines(chunks: AsyncIterator[bytes], name: str) -> AsyncGenerator[bytes, None]:
    """The lines of a stream of bytes, without their ends; Passing for one that has no end."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")
        if len(rest) > _LONGEST_EVENT:
            raise Passing(f"{name}: an event of more than {_LONGEST_EVENT >> 20} MB")
    if rest.strip():
        yield rest.rstrip(b"\r")
