"""Token rewards (N,) and ``Signals`` -> token advantages (N,): one function per estimator, found by name.

A new estimator is one function in one file, imported here, under the ``estimator`` decorator of
``estimator.py``.
"""

from assay.objective.advantage import baseline, critic, group, plain, whitened
from assay.objective.advantage.critic import gae
from assay.objective.advantage.estimator import ESTIMATORS, Advantage, Estimator, Signals, estimator

__all__ = [
    "ESTIMATORS",
    "Advantage",
    "Estimator",
    "Signals",
    "baseline",
    "critic",
    "estimator",
    "gae",
    "group",
    "plain",
    "whitened",
]
