"""What every part that asks a service can be told."""

from __future__ import annotations

from pydantic import Field

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
