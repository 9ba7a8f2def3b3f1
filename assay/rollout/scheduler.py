"""Who runs: waiting answers enter free slots in the order of request and index, finished ones leave at once.

Urgent ones go before those that wait, and into a slot beyond ``max_running`` where all are taken.

The *warm* ones, whose keys and values are cached, always hold slots 0 to A - 1, so that every forward computes A rows
and none is wasted; those that need a prefill stand behind them. While an urgent one runs, the prefills of the others
wait: after a publish all running ones need one. Every decision is a function of the order of submission and of lengths,
never of the clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from assay.rollout.sequence import Sequence


class Scheduler:
    """The queue and the slots; ``running[i]`` is the sequence in slot i."""

    def __init__(self, max_running: int) -> None:
        self.max_running = max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def busy(self) -> bool:
        """Is anything waiting or running?"""
        return bool(self.waiting or self.running)

    @property
    def next_up(self) -> tuple[int, ...] | None:
        """The tokens of the first that waits."""
        return self.waiting[0].everything() if self.waiting else None

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences behind those that wait, urgent ones before all that are not."""
        for sequence in sequences:
            place = len(self.waiting)
            if sequence.request.urgent:
                place = sum(s.request.urgent for s in self.waiting)
            self.waiting.insert(place, sequence)

    def admit(self) -> None:
        """Move waiting sequences into free slots, first come first served."""
        while self.waiting and (len(self.running) < self.max_running or self.waiting[0].request.urgent):
            sequence = self.waiting.popleft()
            sequence.started = time.perf_counter()
            self.running.append(sequence)
        self.running[self.warm :] = sorted(self.running[self.warm :], key=lambda s: not s.request.urgent)

    @property
    def warm(self) -> int:
        """How many running ones are cached: slots 0 to this."""
        return sum(s.cached > 0 for s in self.running)

    @property
    def due(self) -> list[int]:
        """The slots behind the warm ones that are to be filled now."""
        urgent = any(s.request.urgent for s in self.running)
        cold = range(self.warm, len(self.running))
        return [slot for slot in cold if self.running[slot].request.urgent or not urgent]

    def retire(self) -> tuple[list[Sequence], list[tuple[int, int]]]:
        """Take out the finished: (finished, moves), each move (from, to) closing a gap with the last warm slot.

        Moves are to be carried out in order, before the cache is used again.
        """
        finished = [s for s in self.running if s.finish]
        warm = [s for s in self.running if s.cached]
        cold = [s for s in self.running if not s.cached and not s.finish]
        moves: list[tuple[int, int]] = []
        slot = 0
        while slot < len(warm):
            if not warm[slot].finish:
                slot += 1
                continue
            last = warm.pop()
            if slot < len(warm):
                warm[slot] = last
                if not last.finish:
                    moves.append((len(warm), slot))
        self.running = [*warm, *cold]
        return finished, moves

    def cancel(self, request_id: int) -> list[Sequence]:
        """Take the request's sequences out of the queue, mark its running ones; return the former."""
        unstarted = [s for s in self.waiting if s.request.id == request_id]
        self.waiting = deque(s for s in self.waiting if s.request.id != request_id)
        for sequence in (*unstarted, *self.running):
            if sequence.request.id == request_id:
                sequence.finish = "cancelled"
        return unstarted
