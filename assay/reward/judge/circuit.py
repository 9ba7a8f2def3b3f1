"""Is a replica worth asking? A circuit opens after failures in a row, and lets one question through when it has rested.

Pure: a circuit is replaced at each event, and the time is handed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_LONGEST = 8
"""Failed trials double the rest, up to this multiple."""


@dataclass(frozen=True)
class Circuit:
    """What is known of a replica's health (Nygard, Release It!).

    >>> down = Circuit(open_after=1, cooldown_s=10).failed(now=0)
    >>> down.allows(9), down.allows(10), down.tried(10).allows(10), down.tried(10).succeeded().allows(10)
    (False, True, False, True)
    """

    open_after: int = 3
    """Failures in a row that open it."""
    cooldown_s: float = 10.0
    """How long it stays open the first time; each failed trial doubles it, up to eight times this."""
    failures: int = 0
    """Failures in a row."""
    open_until: float = -math.inf
    """When an open circuit may be tried."""
    trying: bool = False
    """Is the one question under way that decides whether it closes?"""

    @property
    def open(self) -> bool:
        """Has it failed too often since it last answered?"""
        return self.failures >= self.open_after

    def allows(self, now: float) -> bool:
        """May the replica be asked?"""
        return not self.open or (now >= self.open_until and not self.trying)

    def tried(self, now: float) -> Circuit:
        """A question is on its way."""
        return replace(self, trying=True) if self.open else self

    def abandoned(self) -> Circuit:
        """A question was given up: that says nothing of the replica."""
        return replace(self, trying=False)

    def succeeded(self) -> Circuit:
        """It answered."""
        return replace(self, failures=0, open_until=-math.inf, trying=False)

    def failed(self, now: float) -> Circuit:
        """It did not answer as it should."""
        failures = self.failures + 1
        rests = min(2.0 ** max(0, failures - self.open_after), _LONGEST)
        until = now + self.cooldown_s * rests if failures >= self.open_after else self.open_until
        return replace(self, failures=failures, open_until=until, trying=False)
