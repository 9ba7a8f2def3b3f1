"""What every part that asks a service can be told."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from pydantic import Field

from assay.errors import UserError
from assay.recipe.schema import Section


class ServiceOptions(Section):
    """Where a service is, and how patiently it is asked."""

    urls: list[str] = Field(min_length=1)
    """Base address of each replica, such as `http://10.0.0.5:8000/v1`."""
    key_env: str | None = None
    """Name of the environment variable that holds the key; absent: no key is sent."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Longest time for one question, from connecting to the last byte of the reply."""
    attempts: int = Field(default=5, ge=1)
    """How often a question is asked before its verdict is `unavailable`."""
    backoff_s: float = Field(default=0.5, ge=0)
    """Wait before the second attempt; it doubles with each, with jitter, up to 30 s."""
    concurrency: int = Field(default=32, ge=1)
    """Questions under way at once, over all replicas."""
    open_after: int = Field(default=3, ge=1)
    """Failures in a row after which a replica is left alone."""
    cooldown_s: float = Field(default=10.0, ge=0)
    """How long it is left alone before one question tries it."""
    cache: int = Field(default=4096, ge=0)
    """How many answers are kept, so that the same question is asked once; 0: none."""


def check_urls(urls: Sequence[str], verifier: str) -> tuple[str, ...]:
    """The addresses without a trailing slash; UserError for one that is no plain http address.

    What is wrong is said without the address, which may hold a password.

    >>> check_urls(["http://127.0.0.1:8000/v1/"], "judge")
    ('http://127.0.0.1:8000/v1',)
    """
    for number, url in enumerate(urls, start=1):
        parts = urlsplit(url)
        where = f"verifier {verifier!r}, option 'urls', address {number}"
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{where}: must begin with http:// or https:// and name a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise UserError(f"{where}: holds a user, a password, a query or a fragment; give a key by key_env")
    if len(set(urls)) < len(urls):
        raise UserError(f"verifier {verifier!r}, option 'urls': an address stands there twice")
    return tuple(url.rstrip("/") for url in urls)


def read_key(key_env: str | None, verifier: str) -> str | None:
    """The key that the environment holds; UserError where the variable is missing or its name looks like a key."""
    if key_env is None:
        return None
    where = f"verifier {verifier!r}, option 'key_env'"
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", key_env):
        raise UserError(f"{where}: must be the name of an environment variable in capitals, such as JUDGE_API_KEY")
    key = os.environ.get(key_env, "").strip()
    if not key:
        raise UserError(f"{where}: the environment variable {key_env} is not set; export it before the run")
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"{where}: what {key_env} holds is no key: it has characters that no header can carry")
    return key
