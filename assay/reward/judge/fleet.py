"""The replicas of one service: a question goes to the one with least under way, and again elsewhere when it fails.

What can pass (no connection, a hang-up, a time-out, a reply that is no JSON, 408, 425, 429, 5xx) is asked again, after
an exponential wait with jitter or what ``Retry-After`` says; what cannot (any other status) is refused at once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from assay.http import (
    SHOWN,
    Passing,
    Refused,
    Unavailable,
    check_urls,
    need_packages,
    read_key,
    reason,
    refusal,
    without_key,
)
from assay.reward.judge.cache import AnswerCache, content_key
from assay.reward.judge.circuit import Circuit
from assay.reward.judge.options import ServiceOptions

_LONGEST_REPLY = 4 << 20
"""Bytes of a reply that are read: a judge's answer is short."""
_LONGEST_BACKOFF = 30.0
_LONGEST_RETRY_AFTER = 120.0


@dataclass
class Replica:
    """One address, what is under way there, and how it has answered."""

    url: str
    circuit: Circuit
    in_flight: int = 0
    busy_until: float = 0.0
    """It asked to be left alone until then (429, or 503 with Retry-After)."""
    used: int = 0
    """Running number of the last question sent there: breaks ties, so that all are used in turn."""

    @property
    def name(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc

    def ready(self, now: float) -> bool:
        """May it be asked?"""
        return now >= self.busy_until and self.circuit.allows(now)

    def ready_in(self, now: float) -> float:
        """Seconds until it may be asked, as far as that is known."""
        rest = self.circuit.open_until if self.circuit.open else now
        return max(0.0, self.busy_until - now, rest - now)


@dataclass
class Counts:
    """What a fleet has done so far."""

    sent: int = 0
    """Questions sent, attempts counted singly."""
    failed: int = 0
    """Attempts that failed in a way that may pass."""
    unavailable: int = 0
    """Questions that no attempt answered."""


@dataclass
class _Lines:
    """What belongs to one event loop."""

    client: Any
    slots: asyncio.Semaphore


@dataclass
class Fleet:
    """All replicas of a service. ``verifier`` names the reward part's verifier in errors.

    Raises :class:`MissingExtra` without httpx2 and tenacity, :class:`UserError` for a bad address or a missing key.
    """

    verifier: str
    options: ServiceOptions
    counts: Counts = field(default_factory=Counts)
    replicas: list[Replica] = field(init=False)
    cache: AnswerCache = field(init=False)
    _key: str | None = field(init=False, repr=False)
    _lines: _Lines | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        need_packages(f"the verifier {self.verifier}", "judge", "httpx2", "tenacity")
        where = f"verifier {self.verifier!r}, option"
        urls = check_urls(self.options.urls, f"{where} 'urls'")
        circuit = Circuit(self.options.open_after, self.options.cooldown_s)
        self.replicas = [Replica(url, circuit) for url in urls]
        self.cache = AnswerCache(self.options.cache)
        self._key = read_key(self.options.key_env, f"{where} 'key_env'")
        self._numbers = itertools.count(1)

    async def ask(self, path: str, question: Mapping[str, Any]) -> Any:
        """POST ``question`` to ``path`` below a replica's address; the reply's JSON, perhaps from the cache.

        Raises :class:`Refused` or :class:`Unavailable`, with the last reason.
        """
        return await self.cache.get(content_key(path, question), lambda: self._ask(path, question))

    async def close(self) -> None:
        """Hang up. The fleet may be used again, in another event loop too."""
        if self._lines is not None:
            lines, self._lines = self._lines, None
            await lines.client.aclose()

    async def _ask(self, path: str, question: Mapping[str, Any]) -> Any:
        from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt
        from tenacity.wait import wait_exponential_jitter

        start = self.options.backoff_s
        backoff = wait_exponential_jitter(multiplier=start, max=_LONGEST_BACKOFF, jitter=start)

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome is not None else None
            return max(backoff(state), min(getattr(error, "wait", 0.0), _LONGEST_RETRY_AFTER))

        body = json.dumps(question, ensure_ascii=False).encode("utf-8", "backslashreplace")
        last: list[Replica] = []
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(self.options.attempts),
                wait=wait,
                retry=retry_if_exception_type(Passing),
                reraise=True,
            ):
                with attempt:
                    return await self._attempt(path, body, last)
        except Passing as error:
            self.counts.unavailable += 1
            raise Unavailable(f"{error} (asked {self.options.attempts} times)") from None
        raise AssertionError("tenacity returns or raises")

    async def _attempt(self, path: str, body: bytes, last: list[Replica]) -> Any:
        """Ask one replica once; ``last`` is the one that the attempt before asked, if any."""
        lines = self._open()
        async with lines.slots:
            replica = self._choose(last)
            last[:] = [replica]
            replica.in_flight += 1
            replica.used = next(self._numbers)
            replica.circuit = replica.circuit.tried(time.monotonic())
            self.counts.sent += 1
            try:
                found = await self._send(lines.client, replica, path, body)
                replica.circuit = replica.circuit.succeeded()
                return found
            except Refused:
                replica.circuit = replica.circuit.succeeded()
                raise
            except Passing as error:
                self.counts.failed += 1
                now = time.monotonic()
                if error.wait:
                    replica.busy_until, replica.circuit = now + error.wait, replica.circuit.abandoned()
                else:
                    replica.circuit = replica.circuit.failed(now)
                raise
            except BaseException:
                replica.circuit = replica.circuit.abandoned()
                raise
            finally:
                replica.in_flight -= 1

    def _choose(self, last: list[Replica]) -> Replica:
        """The replica with least under way, one that just failed only if it is the last left."""
        now = time.monotonic()
        ready = [replica for replica in self.replicas if replica.ready(now)]
        if not ready:
            names = ", ".join(replica.name for replica in self.replicas)
            soonest = min(replica.ready_in(now) for replica in self.replicas)
            raise Passing(f"no replica answers at present ({names})", soonest)
        return min(ready, key=lambda replica: (replica in last, replica.in_flight, replica.used))

    async def _send(self, client: Any, replica: Replica, path: str, body: bytes) -> Any:
        import httpx2

        limit = self.options.timeout_s
        try:
            # The client's own limits are per read: a byte now and then would keep them from ever running out.
            async with asyncio.timeout(limit), client.stream("POST", replica.url + path, content=body) as reply:
                content = await _read(reply)
        except TimeoutError:
            raise Passing(f"{replica.name}: no reply within {limit:g} s") from None
        except httpx2.RequestError as error:
            raise Passing(f"{replica.name}: {without_key(reason(error), self._key)}") from None
        return self._settled(replica.name, reply, content)

    def _settled(self, name: str, reply: Any, content: bytes) -> Any:
        """The JSON of a reply with status 200; else what its status means."""
        said = without_key(content[: 4 * SHOWN].decode("utf-8", "replace"), self._key)
        wrong = refusal(reply.status_code, said, reply.headers, name)
        if wrong is not None:
            raise wrong
        try:
            return json.loads(content)
        except ValueError:
            kind = without_key(reply.headers.get("content-type", "no content type"), self._key)[:60]
            raise Passing(f"{name}: the reply is no JSON ({kind}): {' '.join(said.split())[:80]}") from None

    def _open(self) -> _Lines:
        if self._lines is None:
            import httpx2

            headers = {"Content-Type": "application/json"}
            if self._key is not None:
                headers["Authorization"] = f"Bearer {self._key}"
            limits = httpx2.Limits(max_connections=self.options.concurrency)
            client = httpx2.AsyncClient(headers=headers, timeout=self.options.timeout_s, limits=limits)
            self._lines = _Lines(client, asyncio.Semaphore(self.options.concurrency))
        return self._lines


async def _read(reply: Any) -> bytes:
    """The reply's body, of one that is too long its beginning: no JSON then."""
    content = b""
    async for part in reply.aiter_bytes():
        content += part
        if len(content) > _LONGEST_REPLY:
            break
    return content
