"""How far the sampler is from the anchor: gaps of log-probs and effective sample sizes, as metrics."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.objective.correction import log_weights
from assay.objective.kl import k3
from assay.objective.layout import Layout
from assay.objective.tally import Tally


def mismatch(anchor_logprobs: Tensor, sampler_logprobs: Tensor, tokens: Tensor) -> Tally:
    """Gap of the engine's and the trainer's log-probs, over ``tokens`` (N,) bool where both are finite."""
    known = tokens & anchor_logprobs.isfinite() & sampler_logprobs.isfinite()
    gap, number = log_weights(anchor_logprobs, sampler_logprobs, known), known.sum()
    sums = {"mismatch/logprob_abs_mean": (gap.abs().sum(), number), "mismatch/kl": (k3(gap).sum(), number)}
    return Tally.of(sums, {"mismatch/logprob_abs_max": gap.abs().max()} if bool(known.any()) else {})


def sample_sizes(anchor_logprobs: Tensor, sampler_logprobs: Tensor, tokens: Tensor, layout: Layout) -> Tally:
    """Effective sample shares of the untruncated weights anchor / sampler, by sequence and by token."""
    known = tokens & anchor_logprobs.isfinite()
    logs = log_weights(anchor_logprobs, sampler_logprobs, known)
    whole = layout.sum_by_sequence(logs, known)[layout.count_by_sequence(known) > 0]
    one = torch.ones((), device=logs.device) * (len(whole) > 0)
    shares = {
        "update/ess_sequence": effective_sample_share(whole),
        "update/ess_token": effective_sample_share(logs[known]),
    }
    return Tally.of({name: (value, one) for name, value in shares.items()})


def effective_sample_share(logs: Tensor) -> Tensor:
    """(sum w)^2 / (n sum w^2) of w = exp(logs) (n,): 1 for equal weights, near 1/n if one outweighs all.

    Nothing is clamped: a common factor cancels, so the largest weight is taken as 1. Of nothing it is 0.
    """
    if len(logs) == 0:
        return logs.new_zeros(())
    weights = (logs - logs.max()).exp()
    return weights.sum().square() / (len(logs) * weights.square().sum())
