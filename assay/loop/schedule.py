"""Who may start and what a step is trained on: admission, deadlines and batches as arithmetic, without a clock.

Groups are admitted against the published version and trained on as they complete, so that no finished work is ever
thrown away for its age. With P prompts a step, staleness bound η, v batches consumed and the engine at version e:

- *admission*: a group may start while fewer than (η + e − v + 1)·P are untrained (running, or complete and waiting),
- *deadline*: its oldest token is at least of version e, so the last batch that may take it is the one consumed at
  version e + η; that batch waits for it,
- *batch*: groups in the order of completion, but never so that a later batch would have to hold more than P groups
  that are due: a younger group may overtake an older one only while places are left for all that are due.

Without the third rule the second cannot be kept: at P = 1 and η = 2 two groups left over from version 0 can both fall
due in batch 2. With it the bound holds for any timing, and at η = 0 nothing ever waits for a group of another batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Place:
    """A group's place in the schedule."""

    admission: int
    due: int | None
    """The version whose batch takes it at the latest; ``None``: any."""
    blank: bool = False
    """Complete without signal and not to be replaced: it takes its place in a batch and adds nothing to it."""


@dataclass
class Schedule:
    """The groups of a run that are started and not yet trained on.

    >>> schedule = Schedule(prompts_per_step=2, max_staleness=1)
    >>> schedule.room(published=0)
    4
    >>> for admission in range(4):
    ...     schedule.admit(admission, published=0)
    >>> for admission in (3, 1):
    ...     schedule.complete(admission)
    >>> schedule.next_batch(), schedule.version, schedule.room(published=0), schedule.room(published=1)
    ([3, 1], 1, 0, 2)
    """

    prompts_per_step: int
    """P: groups of a batch."""
    max_staleness: int | None = 0
    """η; ``None``: no bound but ``max_groups``."""
    max_groups: int | None = None
    """Most untrained groups; ``None``: as many as η admits."""
    max_extra: int | None = None
    """Groups without signal that are replaced in a step; ``None``: none is left out."""
    last_version: int | None = None
    """Batches of the whole run: no group is started that none of them could take; ``None``: endless."""
    dropped: bool = False
    """Has the run dropped to staleness 0? What was started before keeps its deadline."""
    in_order: bool = False
    """Batches take groups in the order of admission, not of completion: a function of indices alone."""
    version: int = 0
    """v: batches consumed."""
    extra: int = 0
    """Replacements admitted for the batch in the making."""
    running: dict[int, Place] = field(default_factory=dict)
    """Started and not complete, by admission."""
    ready: dict[int, Place] = field(default_factory=dict)
    """Complete and not yet trained on, in the order of completion."""

    def __post_init__(self) -> None:
        if self.max_staleness is None and self.max_groups is None:
            raise ValueError("without a bound on staleness there must be one on groups")
        if self.max_groups is not None and self.max_groups < self.prompts_per_step:
            raise ValueError(f"{self.max_groups} groups can never fill a batch of {self.prompts_per_step}")

    @property
    def bound(self) -> int | None:
        """The staleness bound for groups that start now."""
        return 0 if self.dropped else self.max_staleness

    @property
    def untrained(self) -> int:
        """Groups started and not trained on."""
        return len(self.running) + len(self.ready)

    def room(self, published: int) -> int:
        """How many groups may start now, with the engine at version ``published``."""
        bounds = [self.max_groups]
        if self.bound is not None:
            bounds.append((self.bound + published - self.version + 1) * self.prompts_per_step)
        if self.last_version is not None:
            bounds.append((self.last_version - self.version) * self.prompts_per_step)
        return max(0, min(b for b in bounds if b is not None) - self.untrained)

    def admit(self, admission: int, published: int) -> None:
        """Start a group, with the engine at version ``published``."""
        if not self.room(published):
            raise ValueError(f"there is no room for group {admission}")
        due = None if self.bound is None else published + self.bound
        self.running[admission] = Place(admission, due)

    def complete(self, admission: int, signal: bool = True) -> None:
        """A group has its verdicts. Without ``signal`` its place is free again, or blank once ``extra`` is used up."""
        place = self.running.pop(admission)
        if signal or self.max_extra is None:
            self.ready[admission] = place
        elif self.extra < self.max_extra:
            self.extra += 1
        else:
            self.ready[admission] = replace(place, blank=True)

    def next_batch(self) -> list[int] | None:
        """Consume the next batch: its admissions, blank ones left out; ``None`` while it must wait for a group."""
        taken = self._chosen()
        if len(taken) < self.prompts_per_step:
            return None
        self.version += 1
        self.extra = 0
        places = [self.ready.pop(admission) for admission in taken]
        return [p.admission for p in places if not p.blank]

    def waits_for(self) -> list[int]:
        """The running groups that the next batch cannot do without: those due in it."""
        return [a for a, p in self.running.items() if p.due is not None and p.due <= self.version]

    def discard(self) -> list[int]:
        """Forget every untrained group, as after a rollback; returns their admissions."""
        gone = [*self.running, *self.ready]
        self.running, self.ready, self.extra = {}, {}, 0
        return gone

    def _chosen(self) -> list[int]:
        """Complete groups for the next batch, as many as can be known to be in it."""
        if self.in_order:
            first = sorted([*self.running, *self.ready])[: self.prompts_per_step]
            return first if all(a in self.ready for a in first) else []
        owed, taken = self._owed(), []
        for admission, place in self.ready.items():
            left = self.prompts_per_step - len(taken)
            if left == 0:
                break
            after = {d: n - (place.due is not None and place.due <= d) for d, n in owed.items()}
            if max(after.values(), default=0) <= left - 1:
                owed = after
                taken.append(admission)
        return taken

    def _owed(self) -> dict[int, int]:
        """By deadline d: how many of the groups due at d or before the next batch must take, so that later ones can
        take the rest: their number, less P for each batch from the next but one to that of d."""
        dues = [p.due for p in (*self.running.values(), *self.ready.values()) if p.due is not None]
        return {
            d: sum(due <= d for due in dues) - max(0, d - self.version) * self.prompts_per_step
            for d in sorted(set(dues))
        }
