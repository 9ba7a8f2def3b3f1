"""What else would change the step: the keys that one might turn, each tried alone on the option that is best."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from assay.plan.basis import Basis
from assay.plan.layout import Layout
from assay.plan.simulation import simulate
from assay.plan.tally import Prediction
from assay.plan.terms import Terms

CUT = 0.05
"""Share of the answers that the cap which is tried would cut."""


@dataclass(frozen=True)
class Lever:
    """A key turned, and what would come of it."""

    setting: str
    """As it is written on the command line."""
    price: str
    """What it costs besides."""
    prediction: Prediction


def levers(basis: Basis, terms: Terms, layout: Layout, steps: int, seed: int) -> list[Lever]:
    """Try each key that could matter under these terms."""
    return [
        Lever(setting, price, simulate(basis.costs, basis.work, changed, layout, steps=steps, seed=seed))
        for setting, price, changed in _changes(basis, terms)
    ]


def _changes(basis: Basis, terms: Terms) -> Iterator[tuple[str, str, Terms]]:
    cap, cut = capped(basis, terms)
    if cap < terms.max_tokens:
        yield f"rollout.max_tokens={cap}", f"cuts {cut:.0%} of the answers", replace(terms, max_tokens=cap)
    if not terms.oversample:
        more = max(1, terms.group_size // 4)
        price = "cancels the slowest of each group: favours short answers"
        yield f"rollout.oversample={more}", price, replace(terms, oversample=more)
    workers = basis.costs.verifier_workers or terms.verifier_workers
    if basis.costs.verifier_workers is None:
        yield f"reward.workers={2 * workers}", "", replace(terms, verifier_workers=2 * workers)
    if terms.max_staleness != 0 and terms.in_flight and not terms.keep_cache:
        price = "keys and values of old weights: inexact, measured as mismatch"
        yield "regime.kv=keep", price, replace(terms, keep_cache=True)
    if terms.max_staleness != 0 and terms.sync_every == 1:
        yield "sync.every=2", "answers are a version older", replace(terms, sync_every=2)
    yield f"rollout.max_running={2 * terms.slots}", "memory of the cache", replace(terms, slots=2 * terms.slots)


def capped(basis: Basis, terms: Terms) -> tuple[int, float]:
    """The cap that `CUT` of the answers would reach, and the share that does, of 4,000 drawn."""
    rng = random.Random(0)
    drawn: list[int] = []
    while len(drawn) < 4000:
        drawn += basis.work.group(len(drawn), rng, terms.group_size, terms.max_tokens).lengths
    drawn.sort()
    cap = drawn[int((1 - CUT) * len(drawn))]
    return cap, sum(n >= cap for n in drawn) / len(drawn)
