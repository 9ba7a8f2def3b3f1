"""Estimates with intervals: accuracy, unbiased pass@k, majority@k."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval over ``n`` prompts."""

    value: float
    low: float
    high: float
    n: int


def wilson(successes: float, n: int) -> Estimate:
    """A proportion with Wilson's score interval (Wilson 1927): sound near 0 and 1 and for few trials.

    >>> e = wilson(8, 10); round(e.value, 2), round(e.low, 3), round(e.high, 3)
    (0.8, 0.49, 0.943)
    """
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0)
    p, z2 = successes / n, Z95 * Z95
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return Estimate(p, max(0.0, centre - half), min(1.0, centre + half), n)


def bootstrap(values: Sequence[float], seed: int = 0, resamples: int = 2000) -> Estimate:
    """The mean of per-prompt values with a percentile bootstrap interval over prompts.

    Samples of a prompt are not independent, so the prompt is what is drawn again. Where all values are equal the
    interval has no width: then only their number says how much is known.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    rng, block = np.random.default_rng(seed), max(1, 1_000_000 // x.size)  # so that memory stays bounded
    sizes = [min(block, resamples - done) for done in range(0, resamples, block)]
    means = [x[rng.integers(0, x.size, size=(size, x.size))].mean(axis=1) for size in sizes]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Estimate(float(x.mean()), float(low), float(high), int(x.size))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The chance that at least one of k answers drawn without replacement from n, ``correct`` of them right, is right.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021), unbiased.

    >>> round(pass_at_k(4, 1, 2), 3), pass_at_k(4, 1, 4), pass_at_k(4, 0, 4)
    (0.5, 1.0, 0.0)
    """
    if k > n:
        raise ValueError(f"pass@{k} of {n} answers")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """Is the commonest extracted answer right? Ties are shared; answers that could not be extracted do not vote.

    >>> majority(["4", "5", "4"], [True, False, True]), majority(["4", "5"], [True, False]), majority([None], [False])
    (1.0, 0.5, 0.0)
    """
    votes = Counter(a for a in answers if a is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [a for a, count in votes.items() if count == most]
    right = {a: c for a, c in zip(answers, correct, strict=True) if a is not None}
    return sum(right[w] for w in winners) / len(winners)
