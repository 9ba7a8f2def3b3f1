"""What a plan rests on: costs and workload, and for each figure whether it was measured, given or guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from assay.plan.costs import Costs
from assay.plan.workload import Workload
from assay.rollout.process.factory import Threads

Origin = Literal["measured", "given", "computed", "guess"]


@dataclass(frozen=True)
class Note:
    """One thing that the plan rests on."""

    what: str
    figure: str
    origin: Origin
    """``measured`` in a run or here; ``given`` in a file; ``computed`` from sizes and rates; ``guess``."""
    why: str = ""


@dataclass(frozen=True)
class Basis:
    """Costs and work to simulate, with their notes."""

    costs: Costs
    work: Workload
    notes: tuple[Note, ...] = ()
    threads: Threads | None = None
    """CPU threads of each side when the costs were measured; ``None``: each has a device of its own."""
