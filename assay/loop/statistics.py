"""Estimates with intervals: accuracy, unbiased pass@k, majority@k.

One problem may be asked in several wordings, and its answers are then right or wrong together. What is independent is
the problem, so intervals are over problems: a ratio estimate of clusters, with as many degrees of freedom as there are
problems, less one. Where every prompt is its own problem they are the intervals over prompts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval over ``n`` prompts."""

    value: float
    low: float
    high: float
    n: int


def wilson(successes: float, n: int, effective: float | None = None) -> Estimate:
    """A proportion with Wilson's score interval (Wilson 1927): sound near 0 and 1 and for few trials.

    ``effective``: how many independent trials the ``n`` are worth; absent, ``n``.

    >>> e = wilson(8, 10); round(e.value, 2), round(e.low, 3), round(e.high, 3)
    (0.8, 0.49, 0.943)
    """
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0)
    p, z2, m = successes / n, Z95 * Z95, n if effective is None else effective
    if m == 0:
        return Estimate(p, 0.0, 1.0, n)
    centre = (p + z2 / (2 * m)) / (1 + z2 / m)
    half = Z95 / (1 + z2 / m) * math.sqrt(p * (1 - p) / m + z2 / (4 * m * m))
    return Estimate(p, max(0.0, centre - half), min(1.0, centre + half), n)


def proportion(right: Sequence[bool], problems: Sequence[str]) -> Estimate:
    """The share of right answers; ``problems`` says of each which problem it answers. See `effective_number`.

    >>> e = proportion([True, True, False, False], ["a", "a", "b", "b"]); e.value, e.n
    (0.5, 4)
    """
    return wilson(sum(right), len(right), effective_number(right, problems))


def effective_number(right: Sequence[bool], problems: Sequence[str]) -> float:
    """How many independent answers these are worth (Kish 1965; Korn and Graubard 1998).

    n / max(1, D w^2), with the design effect D = sum over problems of (sum of e)^2 / sum of e^2, e the right answers
    less their mean, and `widening` w. All right or all wrong does not show how alike the answers to a problem are; they
    are then taken to be all alike: D = sum over problems of size^2 / n.

    >>> effective_number([True, False, True], ["a", "b", "c"]), effective_number([True, True], ["a", "a"])
    (3.0, 0.0)
    """
    x = np.asarray(right, dtype=np.float64)
    places, sizes = _clusters(problems)
    if x.size == sizes.size:
        return float(x.size)
    e = x - x.mean()
    spread = float(e @ e)
    sums = np.bincount(places, e)
    effect = float(sums @ sums) / spread if spread else float(sizes @ sizes) / x.size
    return x.size / max(1.0, effect * widening(sizes.size, x.size) ** 2)


def bootstrap(
    values: Sequence[float], problems: Sequence[str] | None = None, seed: int = 0, resamples: int = 2000
) -> Estimate:
    """The mean of per-prompt values with a percentile bootstrap interval over problems.

    ``problems`` says of each value which problem its prompt asks; absent, each its own. Samples of a prompt are not
    independent, nor are wordings of a problem, so the problem is what is drawn again; the interval is wider by
    `widening`, within the values. Where all values are equal it has no width: then only their number says how much is
    known.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    places, sizes = _clusters(range(x.size) if problems is None else problems)
    sums, k = np.bincount(places, x), sizes.size
    if k == 1:
        return Estimate(float(x.mean()), float(x.min()), float(x.max()), int(x.size))
    rng, block = np.random.default_rng(seed), max(1, 1_000_000 // k)  # so that memory stays bounded
    blocks = [min(block, resamples - done) for done in range(0, resamples, block)]
    draws = (rng.integers(0, k, size=(size, k)) for size in blocks)
    means = [sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1) for drawn in draws]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    mean, wider = float(x.mean()), widening(k, x.size)
    if wider > 1:
        low, high = max(mean - wider * (mean - low), x.min()), min(mean + wider * (high - mean), x.max())
    return Estimate(mean, float(low), float(high), int(x.size))


def widening(problems: int, prompts: int) -> float:
    """How much wider an interval is for resting on ``problems`` in place of as many independent ``prompts``.

    sqrt(K / (K - 1)) t(K - 1) / (sqrt(n / (n - 1)) t(n - 1)), t the 97.5 % point of Student's distribution.

    >>> widening(9, 9), round(widening(5, 50), 2), widening(1, 2)
    (1.0, 1.53, inf)
    """
    if problems == prompts:
        return 1.0
    if problems == 1:
        return math.inf
    return _student(problems) / _student(prompts)


@cache
def _student(n: int) -> float:
    """sqrt(n / (n - 1)) times the 97.5 % point of Student's t with n - 1 degrees of freedom, by bisection."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, n - 1) < 0.95 else (low, middle)
    return math.sqrt(n / (n - 1)) * math.sqrt(n - 1) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """P(|t| < sqrt(degrees) tan(angle)), of the finite series for whole degrees of freedom (Student 1908)."""
    odd, c = degrees % 2, math.cos(angle)
    term = c if odd else 1.0
    total = term if degrees > 1 else 0.0
    for i in range(3 if odd else 2, degrees - 1, 2):
        term *= c * c * (i - 1) / i
        total += term
    return (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total


def _clusters(labels: Sequence[object]) -> tuple[np.ndarray, np.ndarray]:
    """The place of each label's cluster, in the order in which clusters come, and the size of each."""
    order = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    places = np.array([order[label] for label in labels], dtype=np.int64)
    return places, np.bincount(places).astype(np.float64)


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
