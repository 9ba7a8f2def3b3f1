"""How far the sampler is from the trainer on the same tokens, before and after correction, as metrics.

Of tokens drawn by the sampler, with q its probability of a token, p the trainer's and x = log p - log q::

    KL(sampler, trainer)   k1: mean of -x            k3: mean of e^x - x - 1
    KL(trainer, sampler)   k1: mean of x e^x         k3: mean of x e^x - e^x + 1
    perplexity ratio       exp(mean of -x): the trainer's perplexity over the sampler's

All four estimates have the KL as expectation; k3 is never negative and less noisy. Where the trainer weighs a token by
w the sampler is as good as one that had drawn it with probability w q: the same numbers over the tokens that are left,
with log q + log w for log q, say what a correction has not corrected.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from assay.objective.correction import Correction, log_weights
from assay.objective.kl import k3
from assay.objective.layout import Layout, only
from assay.objective.ratio import LOG_LIMIT
from assay.objective.tally import Tally

EDGES = (-2.0, -0.5, -0.1, -0.01, 0.01, 0.1, 0.5, 2.0)
"""Between the bins of the histograms of log-weights, nats; the first and the last bin are open."""
LAGS = (0, 1, 2, 4, 8, 16)
"""Last version lag of each bin by staleness; one more holds what is staler."""


def bin_names() -> tuple[str, ...]:
    """The bins of a log-weight, from the most negative one on.

    >>> bin_names()[0], bin_names()[4], bin_names()[-1]
    ('below_-2', '-0.01_to_0.01', 'above_2')
    """
    inner = (f"{low:g}_to_{high:g}" for low, high in pairwise(EDGES))
    return (f"below_{EDGES[0]:g}", *inner, f"above_{EDGES[-1]:g}")


def lag_names() -> tuple[str, ...]:
    """The bins of a version lag.

    >>> lag_names()
    ('0', '1', '2', '3-4', '5-8', '9-16', '17+')
    """
    spans = [(low + 1, high) for low, high in pairwise(LAGS)]
    return (str(LAGS[0]), *(f"{a}-{b}" if a < b else str(b) for a, b in spans), f"{LAGS[-1] + 1}+")


def mismatch(
    anchor_logprobs: Tensor,
    sampler_logprobs: Tensor,
    tokens: Tensor,
    layout: Layout,
    lags: Tensor | None = None,
) -> Tally:
    """All that is said of an uncorrected sampler, over ``tokens`` (N,) bool where both log-probs are finite.

    ``lags`` (N,) long: how many versions older than the trainer the sampler of each token was; where any is older, the
    gap is also told apart by that.
    """
    known = tokens & anchor_logprobs.isfinite() & sampler_logprobs.isfinite()
    logs = log_weights(anchor_logprobs, sampler_logprobs, known)
    by_rollout = layout.sum_by_sequence(logs, known)[layout.count_by_sequence(known) > 0]
    tally = gap(anchor_logprobs, sampler_logprobs, known, "mismatch")
    tally += _shares(by_rollout, logs[known])
    tally += _histogram(logs[known], "token") + _histogram(by_rollout, "sequence")
    if lags is not None and bool((lags[known] > 0).any()):
        tally += _by_lag(logs[known], lags[known])
    return tally


def corrected_mismatch(
    anchor_logprobs: Tensor,
    sampler_logprobs: Tensor,
    correction: Correction,
    tokens: Tensor,
    layout: Layout,
    by_sequence: bool,
) -> Tally:
    """What is left of the gap over the ``tokens`` (N,) bool that count, each weighed.

    The weight of a whole rollout (``by_sequence``) is spread evenly over its tokens.
    """
    known = tokens & anchor_logprobs.isfinite() & sampler_logprobs.isfinite()
    weight = torch.where(known, correction.weights, torch.ones_like(correction.weights)).log()
    if by_sequence:
        weight = weight / layout.count_by_sequence(known).clamp(min=1)[layout.sequence]
    return gap(anchor_logprobs, only(sampler_logprobs, known) + weight, known, "mismatch/corrected")


def gap(anchor_logprobs: Tensor, sampler_logprobs: Tensor, known: Tensor, prefix: str) -> Tally:
    """Distances of log-probs and of probabilities, their correlation, KL both ways and the perplexity ratio.

    Over the ``known`` (N,) bool tokens, at which both log-probs are finite; log-ratios are clamped to ±20 in the KL.
    """
    if not bool(known.any()):
        return Tally()
    anchor, sampler = anchor_logprobs[known], sampler_logprobs[known]
    x = (anchor - sampler).clamp(-LOG_LIMIT, LOG_LIMIT)
    ratio, away = x.exp(), anchor.exp() - sampler.exp()
    number = known.sum()
    means = {
        "logprob_abs_mean": (anchor - sampler).abs(),
        "prob_abs_mean": away.abs(),
        "kl": k3(x),
        "kl_k1": -x,
        "kl_reverse": x * ratio - x.expm1(),
        "kl_reverse_k1": x * ratio,
    }
    sums = {name: (values.sum(), number) for name, values in means.items()}
    sums["perplexity_ratio"] = ((-x).mean().exp(), torch.ones_like(number))
    sums["prob_correlation"] = _correlation(anchor.exp(), sampler.exp())
    maxima = {"logprob_abs_max": (anchor - sampler).abs().max(), "prob_abs_max": away.abs().max()}
    return Tally.of(
        {f"{prefix}/{name}": pair for name, pair in sums.items()},
        {f"{prefix}/{name}": value for name, value in maxima.items()},
    )


def effective_sample_share(logs: Tensor) -> Tensor:
    """(sum w)^2 / (n sum w^2) of w = exp(logs) (n,): 1 for equal weights, near 1/n if one outweighs all.

    Nothing is clamped: a common factor cancels, so the largest weight is taken as 1. Of nothing it is 0.
    """
    if len(logs) == 0:
        return logs.new_zeros(())
    weights = (logs - logs.max()).exp()
    return weights.sum().square() / (len(logs) * weights.square().sum())


def _correlation(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Pearson's, as numerator and denominator; a denominator of 0 where either varies by no more than rounding."""
    a, b = one - one.mean(), other - other.mean()
    varies = (a.abs().max() > 1e-6 * one.mean()) & (b.abs().max() > 1e-6 * other.mean())
    return (a * b).sum(), (a.square().sum() * b.square().sum()).sqrt() * varies


def _shares(by_rollout: Tensor, by_token: Tensor) -> Tally:
    """Effective sample shares of the untruncated weights."""
    one = by_token.new_ones(()) * (len(by_rollout) > 0)
    found = {"sequence": by_rollout, "token": by_token}
    return Tally.of({f"update/ess_{name}": (effective_sample_share(logs), one) for name, logs in found.items()})


def _histogram(logs: Tensor, level: str) -> Tally:
    """The share of log-weights in each bin of `bin_names`; an edge belongs to the bin below it."""
    bins = torch.bucketize(logs, logs.new_tensor(EDGES))
    counts, number = torch.bincount(bins, minlength=len(EDGES) + 1), logs.new_tensor(len(logs))
    names = (f"mismatch/{level}_weight/{name}" for name in bin_names())
    return Tally.of({name: (count, number) for name, count in zip(names, counts, strict=True)})


def _by_lag(logs: Tensor, lags: Tensor) -> Tally:
    """Share of tokens, KL and effective token sample, for the version lags that occur."""
    bins = torch.bucketize(lags, lags.new_tensor(LAGS))
    tally, number = Tally(), logs.new_tensor(len(logs))
    for place, name in enumerate(lag_names()):
        mine = logs[bins == place]
        if len(mine) == 0:
            continue
        count = logs.new_tensor(len(mine))
        pairs = {
            "share": (count, number),
            "kl": (k3(mine).sum(), count),
            "ess_token": (effective_sample_share(mine), torch.ones_like(count)),
        }
        tally += Tally.of({f"mismatch/lag/{name}/{what}": pair for what, pair in pairs.items()})
    return tally
