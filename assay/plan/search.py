"""Every split of the GPUs under every bound on staleness, simulated on the same groups; the best and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.plan.basis import Basis
from assay.plan.calibrate import all_threads
from assay.plan.layout import Layout, layouts
from assay.plan.levers import Lever, levers
from assay.plan.simulation import simulate
from assay.plan.tally import Prediction
from assay.plan.terms import Terms
from assay.rollout.process.factory import Threads, split_threads

STALENESS: tuple[int | None, ...] = (0, 1, 2, 4, None)
"""The bounds that are tried."""
WORTH = 0.05
"""A staler regime has to save this share of the step to be preferred."""


@dataclass(frozen=True)
class Option:
    """One way to run, and what is predicted of it."""

    layout: Layout
    max_staleness: int | None
    prediction: Prediction


@dataclass(frozen=True)
class Plan:
    """All that was tried, and what to take."""

    options: tuple[Option, ...]
    best: Option
    """The least stale of those whose step is within `WORTH` of the shortest."""
    fastest: Option
    levers: tuple[Lever, ...]
    """What else could be turned, at the best option."""
    basis: Basis
    terms: Terms
    gpus: int


def search(basis: Basis, terms: Terms, gpus: int, *, steps: int | None = None, seed: int = 0) -> Plan:
    """Simulate every option. Without GPUs: one process for both sides, or one for each.

    ``steps``: of each option; absent, as many as make 8,000 answers, between 12 and 60.

    Raises UserError where the model fits on no split of them.
    """
    bounds = tuple(dict.fromkeys((*STALENESS, terms.max_staleness)))
    steps = steps or min(60, max(12, 8000 // (terms.prompts_per_step * terms.group_size)))
    options = []
    for eta in bounds:
        for layout in layouts(gpus, basis.costs) if gpus else processes(terms, basis.threads, eta):
            if eta != 0 and layout.shared:
                continue
            found = simulate(basis.costs, basis.work, _at(terms, eta), layout, steps=steps, seed=seed)
            options.append(Option(layout, eta, found))
    fastest = min(options, key=lambda o: o.prediction.step_s)
    best = recommended(options)
    turned = levers(basis, _at(terms, best.max_staleness), best.layout, steps, seed)
    return Plan(tuple(options), best, fastest, tuple(turned), basis, terms, gpus)


def recommended(options: Sequence[Option]) -> Option:
    """The least stale option within `WORTH` of the shortest step; of those equally stale, the quickest."""
    limit = min(o.prediction.step_s for o in options) * (1 + WORTH)
    near = [o for o in options if o.prediction.step_s <= limit]
    return min(near, key=lambda o: (_bound(o.max_staleness), o.prediction.step_s))


def processes(terms: Terms, measured: Threads | None, eta: int | None) -> list[Layout]:
    """The two ways of a machine without GPUs: one process, or one for generation beside the trainer's.

    Sides that take turns have all threads each; those that work at once share them out as the engine does it. Speed is
    taken to be proportional to threads, of which ``measured`` had theirs.
    """
    had = measured or all_threads()

    def layout(threads: Threads, shared: bool) -> Layout:
        faster = threads.replica / had.replica, threads.trainer / had.trainer
        return Layout(1, 1, shared, "process", *faster)

    total = all_threads(terms.threads).trainer
    apart = split_threads(all_threads().trainer, terms.threads, terms.engine_threads, 1, together=eta != 0)
    return [layout(Threads(total, total), True), layout(apart, False)]


def _at(terms: Terms, eta: int | None) -> Terms:
    """The terms under another bound; without one there must be one on groups: the recipe's, or four batches."""
    most = terms.max_groups or (4 * terms.prompts_per_step if eta is None else None)
    return replace(terms, max_staleness=eta, max_groups=most)


def _bound(eta: int | None) -> float:
    return float("inf") if eta is None else eta
