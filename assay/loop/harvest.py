"""What a step's generation brings in, and what the loop asks of whoever brings it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from assay.loop.in_flight import InFlight
from assay.records import Group, Rollout
from assay.rollout.engine import Stats


@dataclass(frozen=True)
class Harvest:
    """What a step's generation brought in."""

    groups: tuple[Group, ...]
    """What the step is trained on, in the order of admission; none where nothing had signal."""
    unused: tuple[Group, ...] = ()
    """Generated and judged, then left out for want of signal (dynamic sampling)."""
    extra: int = 0
    """Groups admitted beyond ``prompts_per_step``."""
    replaced: tuple[Group, ...] = ()
    """The rollouts that were sampled anew because their verdict was invalid, with those verdicts."""
    cancelled: tuple[Rollout, ...] = ()
    """Rollouts that were cut off because enough others of their group were there (oversampling)."""
    sampling: Stats = Stats()
    """What the engine computed since the last harvest."""
    origin: Literal["generated", "given"] = "generated"
    """Were its answers sampled, or given to be imitated? The name under which their tokens are counted."""
    version: int = 0
    """The policy's version that is trained on them: batches consumed before this one."""
    ahead: bool = False
    """May generation run ahead of training, so that rollouts have an age?"""
    running: int = 0
    """Groups in the making when the step began to train."""
    waiting: int = 0
    """Complete groups that were left for later steps."""
    due: int = 0
    """Groups in the making that the next step cannot do without."""

    @property
    def retried(self) -> int:
        """How many rollouts were sampled anew."""
        return sum(len(g.rollouts) for g in self.replaced)

    @property
    def generated(self) -> tuple[Group, ...]:
        """All groups, used or not, as they came to be."""
        return self.groups + self.unused


class Source(Protocol):
    """Anything that hands the loop a step's groups; its counters and what is in flight are part of a checkpoint."""

    cursor: int
    admissions: int

    async def next_groups(self) -> Harvest:
        """The groups of the next step."""
        ...

    async def in_flight(self, version: int) -> InFlight:
        """What is started and not trained on after ``version`` batches."""
        ...

    def known(self, version: int) -> InFlight:
        """The same without asking the engine, as when it is gone: unfinished answers are begun anew."""
        ...

    def restore(self, in_flight: InFlight, version: int) -> None:
        """Go on after ``version`` batches, with what was in flight then."""
        ...

    async def drained(self) -> None:
        """Wait until no answer is being made; none is begun before the next call of `next_groups`."""
        ...

    async def discard(self) -> int:
        """Give up every group that is not trained on; returns how many those were."""
        ...

    def drop_to_sync(self) -> None:
        """Start groups for the very next batch alone from now on."""
        ...

    async def close(self) -> None:
        """Take back what is in flight."""
        ...
