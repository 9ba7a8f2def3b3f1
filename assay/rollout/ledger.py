"""What a fleet has in flight: every rollout by its name, who makes it, and how it is asked for again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from assay.records import Finish, Rollout
from assay.rollout.engine import Request

Owner = TypeVar("Owner")
Name = tuple[int, int]
"""(request id, index): no two rollouts in flight share it."""


@dataclass(eq=False)
class Flight(Generic[Owner]):
    """A rollout that was asked for and is not finished."""

    request: Request
    """As it was submitted, for all its rollouts."""
    index: int
    owner: Owner | None = None
    """Who makes it; ``None`` while it is between two."""
    sent: bool = False
    """Has the owner taken the request in?"""
    losses: int = 0
    """How often an owner could not finish it."""
    cancelled: bool = False
    known: Rollout | None = None
    """What a lost owner had made of it."""

    @property
    def name(self) -> Name:
        """By which it is found."""
        return self.request.id, self.index

    def rollout(self, finish: Finish) -> Rollout:
        """The record of what is known of it, ended for this reason."""
        if self.known is not None:
            return replace(self.known, finish=finish)
        return Rollout(self.request.prompt.id, self.index, self.request.begun, finish, "")


@dataclass
class Ledger(Generic[Owner]):
    """All flights by name."""

    flights: dict[Name, Flight[Owner]] = field(default_factory=dict)

    def enter(self, request: Request) -> list[Flight[Owner]]:
        """Note a request. Raises ValueError when one of its rollouts is in flight already."""
        flights = [Flight[Owner](request, i) for i in range(request.first_index, request.first_index + request.n)]
        twice = [f.name for f in flights if f.name in self.flights]
        if twice:
            raise ValueError(f"rollout {twice[0][1]} of request {twice[0][0]} is in flight already")
        self.flights.update({f.name: f for f in flights})
        return flights

    def strike(self, flights: Iterable[Flight[Owner]]) -> None:
        """Forget them."""
        for flight in flights:
            self.flights.pop(flight.name, None)

    def owned(self, owner: Owner) -> list[Flight[Owner]]:
        """The flights of one owner, in the order of submission."""
        return [f for f in self.flights.values() if f.owner is owner]

    def of_request(self, request_id: int) -> list[Flight[Owner]]:
        """The flights of all requests with this id."""
        return [f for f in self.flights.values() if f.request.id == request_id]

    def find(self, owner: Owner, request_id: int, index: int) -> Flight[Owner] | None:
        """The flight that ``owner`` makes under this name; ``None`` for one that is no longer its own."""
        flight = self.flights.get((request_id, index))
        return flight if flight is not None and flight.owner is owner else None


def requests_for(flights: Iterable[Flight[Owner]]) -> Iterator[tuple[Request, list[Flight[Owner]]]]:
    """Requests that ask for ``flights`` anew, each with its own.

    One that has tokens goes on behind them, by itself; neighbours of one request that have none stay together.
    """
    together: list[Flight[Owner]] = []
    for flight in flights:
        begun = flight.known.segments if flight.known is not None else flight.request.begun
        if begun:
            yield replace(flight.request, n=1, first_index=flight.index, begun=begun), [flight]
            continue
        last = together[-1] if together else None
        if last is not None and (last.request is not flight.request or last.index + 1 != flight.index):
            yield _joined(together), together
            together = []
        together.append(flight)
    if together:
        yield _joined(together), together


def _joined(flights: list[Flight[Owner]]) -> Request:
    return replace(flights[0].request, n=len(flights), first_index=flights[0].index)
