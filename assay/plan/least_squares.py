"""Least squares with coefficients that cannot be negative: seconds per unit of work are none below 0."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np


def nonnegative(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """The c >= 0 that minimise sum over rows of ((features c - seconds) / seconds)^2.

    Errors are relative, so that long steps do not outweigh short ones; then all are scaled so that the fitted seconds
    add up to the measured ones, which they otherwise fall short of on a machine that is slow at times. Solved for every
    subset of the few columns; the best one whose coefficients are all positive is the answer (the others are 0 there).

    >>> [round(c, 6) for c in nonnegative([[1, 2], [1, 4], [1, 8]], [5.0, 9.0, 17.0])]
    [1.0, 2.0]
    """
    y = np.asarray(seconds, dtype=np.float64)
    x = np.asarray(features, dtype=np.float64) / y[:, None]
    best, found = float("inf"), np.zeros(x.shape[1])
    for count in range(1, x.shape[1] + 1):
        for chosen in map(list, combinations(range(x.shape[1]), count)):
            scale = np.abs(x[:, chosen]).max(axis=0)
            if not scale.all():
                continue
            part, *_ = np.linalg.lstsq(x[:, chosen] / scale, np.ones(len(y)), rcond=None)
            error = float(((x[:, chosen] / scale) @ part - 1) @ ((x[:, chosen] / scale) @ part - 1))
            if part.min() > 0 and error < best * (1 - 1e-9):
                best, found = error, np.zeros(x.shape[1])
                found[chosen] = part / scale
    fitted = float((x * y[:, None] @ found).sum())
    return (found * (float(y.sum()) / fitted) if fitted > 0 else found).tolist()
