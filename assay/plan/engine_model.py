"""An engine that is numbers: slots, continuous batching, a cache of so many tokens.

Its time is made of stretches that lie between two step boundaries: *idle*, a *prefill*, decoding steps of the same
rows, or a *pause* in which weights change. Who is running changes at boundaries only, so a stretch of steps lasts until
the first of its rows ends, the cache is full, or somebody comes and a slot is free: one event, however many tokens.

A prefill of n tokens gives a first token to each row that enters; an answer of L tokens then takes L - 1 steps. A
group's prompt is prefilled once while the weights stay, as the native engine and vLLM's prefix cache both do.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from assay.errors import UserError
from assay.plan.costs import Costs


@dataclass(eq=False)
class Answer:
    """One rollout on its way."""

    group: int
    index: int
    prompt_tokens: int
    length: int
    """Tokens that it will have."""
    made: int = 0
    """Tokens that it has; kept up to date while it is not running."""
    version: int | None = None
    """The version that sampled its first token."""
    ends: int = field(default=0, repr=False)
    """The engine's step count at which it is done, while it runs."""
    running: bool = field(default=False, repr=False)
    urgent: bool = False
    """Does it go before those that wait, and into a slot beyond the others? A probe does."""

    @property
    def tokens(self) -> int:
        """Of prompt and answer."""
        return self.prompt_tokens + self.made


Stretch = Literal["idle", "start", "prefill", "decode", "pause"]


class EngineModel:
    """One engine. The caller hands on the clock: nothing happens but in `submit`, `publish`, `cancel` and `advance`."""

    def __init__(self, costs: Costs, slots: int, *, keep_cache: bool = False) -> None:
        """``slots``: answers at once. ``keep_cache``: running answers keep their cache under new weights."""
        self._costs = costs
        self._slots = slots
        self._keep_cache = keep_cache
        self._waiting: deque[Answer] = deque()
        self._running: dict[Answer, None] = {}
        self._ends: list[tuple[int, int, Answer]] = []
        self._entering: list[Answer] = []
        self._known: set[int] = set()
        self._cold = False
        self._stretch: Stretch = "idle"
        self._from = self._until = 0.0
        self._planned = 0
        self._steps = 0
        self._order = 0
        self._cached = 0
        self._publishes: deque[tuple[int, float]] = deque()
        self.version = 0
        self.busy = {"prefill": 0.0, "decode": 0.0, "pause": 0.0}
        """Seconds spent on each."""
        self.row_seconds = 0.0
        """Seconds of decoding, times rows."""
        self.generated = 0
        """Tokens of the answers that ended here."""

    @property
    def load(self) -> int:
        """Answers waiting or running."""
        return len(self._waiting) + len(self._running)

    @property
    def next(self) -> float:
        """When it is to be advanced next; infinity while idle."""
        return self._until if self._stretch != "idle" else math.inf

    def submit(self, answers: Iterable[Answer], now: float) -> None:
        """Queue answers; those for which a slot is free enter at the next boundary."""
        for answer in answers:
            (self._waiting.appendleft if answer.urgent else self._waiting.append)(answer)
        if self._stretch == "idle":
            self._start(now)
        elif self._stretch == "decode" and self._fits():
            self._end_early(now)

    def publish(self, version: int, now: float, seconds: float) -> None:
        """Take new weights, for so many seconds, from the next boundary on."""
        if self._stretch == "decode":
            self._end_early(now)
        self._publishes.append((version, seconds))
        if self._stretch == "idle":
            self._start(now)

    def cancel(self, group: int, now: float) -> list[Answer]:
        """Take a group's unfinished answers out, as they are at the last boundary; returns them."""
        gone = [a for a in self._waiting if a.group == group]
        self._waiting = deque(a for a in self._waiting if a.group != group)
        mine = [a for a in self._running if a.group == group]
        if mine and self._stretch == "decode":
            self._end_early(now)
        for answer in mine:
            if answer in self._entering:
                self._entering.remove(answer)
            self._leave(answer)
        return gone + mine

    def advance(self, now: float) -> list[Answer]:
        """Come to the end of the stretch, which is ``now``; returns the answers that ended with it."""
        lasted = now - self._from
        if self._stretch == "prefill":
            self.busy["prefill"] += lasted
            self._filled()
        elif self._stretch == "decode":
            self.busy["decode"] += lasted
            self.row_seconds += lasted * len(self._running)
            self._steps += self._planned
            self._cached += self._planned * len(self._running)
        elif self._stretch == "pause":
            self.busy["pause"] += lasted
            self.version, _ = self._publishes.popleft()
            self._known.clear()
            self._cold = bool(self._running) and not self._keep_cache
        done = self._ended()
        self._begin(now)
        return done

    def _start(self, now: float) -> None:
        """Out of idleness at once, but after everything else that happens now: who comes together enters together."""
        self._stretch, self._from, self._until = "start", now, now

    def _begin(self, now: float) -> None:
        """The next stretch, from a boundary."""
        self._from = now
        if self._publishes:
            return self._stretch_to("pause", self._publishes[0][1])
        while self._waiting and self._fits():
            self._enter(self._waiting.popleft())
        if self._entering or self._cold:
            return self._stretch_to("prefill", self._costs.prefill.seconds(self._cold_tokens()))
        if not self._running:
            return self._stretch_to("idle", 0.0)
        steps = self._ends[0][0] - self._steps
        if (room := self._steps_in_cache()) is not None:
            while room == 0:
                self._preempt()
                room = self._steps_in_cache() or 0
            steps = min(self._ends[0][0] - self._steps, room)
        self._planned = steps
        return self._stretch_to("decode", self._costs.decode.seconds(len(self._running), steps, self._cached))

    def _stretch_to(self, kind: Stretch, seconds: float) -> None:
        self._stretch, self._until = kind, self._from + seconds

    def _end_early(self, now: float) -> None:
        """End the decoding stretch at the first boundary from now on."""
        rows, decode = len(self._running), self._costs.decode
        steps = min(self._planned, decode.steps_within(rows, now - self._from, self._cached))
        self._planned = steps
        self._until = max(now, self._from + decode.seconds(rows, steps, self._cached))

    def _fits(self) -> bool:
        """May the first in the queue enter?"""
        if not self._waiting or (len(self._running) >= self._slots and not self._waiting[0].urgent):
            return False
        limit, first = self._costs.kv_tokens, self._waiting[0]
        if limit is None or first.urgent:
            return True
        if first.prompt_tokens + first.length > limit:
            raise UserError(
                f"an answer of {first.length} tokens to a prompt of {first.prompt_tokens} does not fit into the cache "
                f"of {limit} tokens: give an engine more GPUs, or lower rollout.max_tokens"
            )
        ahead = self._cached + sum(a.tokens for a in self._entering)
        return ahead + first.tokens + len(self._running) < limit

    def _enter(self, answer: Answer) -> None:
        answer.running = True
        self._running[answer] = None
        self._entering.append(answer)

    def _cold_tokens(self) -> int:
        """Tokens that the prefill forwards: each entering group's prompt once, and what is to be computed anew."""
        tokens = self._cached if self._cold else 0
        for answer in self._entering:
            if answer.made:
                tokens += answer.tokens
            elif answer.group not in self._known:
                self._known.add(answer.group)
                tokens += answer.prompt_tokens
        return tokens

    def _filled(self) -> None:
        """A prefill gives each of its rows a token: one step for all rows where their caches were cold, too."""
        if self._cold:
            self._steps += 1
            self._cached += len(self._running) - len(self._entering)
            self._cold = False
        for answer in self._entering:
            if answer.version is None:
                answer.version = self.version
            answer.ends = self._steps + answer.length - answer.made - 1
            self._order += 1
            heapq.heappush(self._ends, (answer.ends, self._order, answer))
            self._cached += answer.tokens + 1
        self._entering = []

    def _ended(self) -> list[Answer]:
        done: list[Answer] = []
        while self._ends and self._ends[0][0] <= self._steps:
            answer = self._ends[0][2]
            self._leave(answer)
            done.append(answer)
            self.generated += answer.made
        return done

    def _leave(self, answer: Answer) -> None:
        """Out of its slot, with its tokens counted."""
        del self._running[answer]
        answer.running = False
        entry = next((e for e in self._ends if e[2] is answer), None) if self._ends[:1] else None
        if entry is None:
            return  # it was only entering
        if self._ends[0] is entry:
            heapq.heappop(self._ends)
        else:
            self._ends.remove(entry)
            heapq.heapify(self._ends)
        answer.made = answer.length - (answer.ends - self._steps)
        self._cached -= answer.tokens

    def _steps_in_cache(self) -> int | None:
        """Steps until the cache is full; ``None`` where it has no bound."""
        limit = self._costs.kv_tokens
        return None if limit is None else max(0, (limit - self._cached) // len(self._running))

    def _preempt(self) -> None:
        """Send the row that entered last back to the queue's head; its cache is computed anew when it returns."""
        last = next(reversed(self._running))
        self._leave(last)
        self._waiting.appendleft(last)
