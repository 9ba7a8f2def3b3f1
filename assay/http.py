"""What everything that asks a server over HTTP shares: addresses, keys, and what a failure means.

Judges and engines differ in how they ask; that a hang-up may pass and a 404 will not, that a key stands in the
environment and in no message, is the same for both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from assay.errors import MissingExtra, UserError

PASSING = frozenset({408, 425, 429})
"""Statuses below 500 after which the same question may be answered."""
SHOWN = 200
"""Characters of a server's complaint that are passed on."""


class Unavailable(Exception):
    """No answer could be had, and why, in a line without any key."""


class Refused(Unavailable):
    """The service will not answer this question, however often it is asked."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Passing(Unavailable):
    """It failed in a way that may pass; ``wait`` is how long the service asks to be left alone."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


def need_packages(feature: str, extra: str, *packages: str) -> None:
    """Raise :class:`MissingExtra` where one of the ``packages`` of an extra cannot be imported."""
    for package in packages:
        try:
            __import__(package)
        except ImportError:
            raise MissingExtra(feature, package, extra) from None


def check_urls(urls: Sequence[str], where: str) -> tuple[str, ...]:
    """The addresses without a trailing slash; UserError for one that is no plain http address.

    What is wrong is said without the address, which may hold a password; ``where`` names the key that holds them.

    >>> check_urls(["http://127.0.0.1:8000/v1/"], "rollout.servers")
    ('http://127.0.0.1:8000/v1',)
    """
    for number, url in enumerate(urls, start=1):
        parts, place = urlsplit(url), f"{where}, address {number}"
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{place}: must begin with http:// or https:// and name a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise UserError(f"{place}: holds a user, a password, a query or a fragment; give a key by key_env")
    if len(set(urls)) < len(urls):
        raise UserError(f"{where}: an address stands there twice")
    return tuple(url.rstrip("/") for url in urls)


def read_key(key_env: str | None, where: str) -> str | None:
    """The key that the environment holds; UserError where the variable is missing or its name looks like a key.

    ``where`` names the setting that ``key_env`` is the value of.
    """
    if key_env is None:
        return None
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", key_env):
        raise UserError(f"{where}: must be the name of an environment variable in capitals, such as JUDGE_API_KEY")
    key = os.environ.get(key_env, "").strip()
    if not key:
        raise UserError(f"{where}: the environment variable {key_env} is not set; export it before the run")
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"{where}: what {key_env} holds is no key: it has characters that no header can carry")
    return key


def without_key(text: str, key: str | None) -> str:
    """``text`` without the key, which a server may repeat in what it complains of."""
    return text.replace(key, "***") if key else text


def refusal(status: int, said: str, headers: Mapping[str, str], name: str) -> Unavailable | None:
    """What a reply's status means: ``None`` for 200; ``said`` is the beginning of its body, without any key."""
    if status == 200:
        return None
    said = " ".join(said.split())[:SHOWN]
    if status in PASSING or status >= 500:
        wait = retry_after(headers.get("retry-after")) if status in (429, 503) else 0.0
        return Passing(f"{name}: status {status}: {said}", wait)
    return Refused(f"{name}: status {status}: {said}", status)


def reason(error: Exception) -> str:
    """A failure of the transport in a few words.

    >>> reason(ConnectionResetError("reset by peer")), reason(EOFError())
    ('ConnectionResetError: reset by peer', 'EOFError')
    """
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def retry_after(value: str | None, now: datetime | None = None) -> float:
    """Seconds that a Retry-After header asks for: a number, or a date; 0 without one that can be read.

    >>> retry_after("2"), retry_after(None), retry_after("soon")
    (2.0, 0.0, 0.0)
    >>> retry_after("Wed, 21 Oct 2026 07:28:00 GMT", datetime(2026, 10, 21, 7, 27, tzinfo=UTC))
    60.0
    """
    if value is None:
        return 0.0
    try:
        if value.strip().replace(".", "", 1).isdigit():
            return float(value)
        until = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())
