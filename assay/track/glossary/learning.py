"""What an update does, how far sampler and policy are apart, and the handing over of weights."""

from __future__ import annotations

from math import inf

from assay.track.metric import Metric

CLIP_BAND = (0.1, 0.3)
"""Healthy share of clipped tokens, low and high together, when a batch is reused."""

LEARNING: tuple[Metric, ...] = (
    # update
    Metric(
        "update/loss",
        "loss",
        "The number that was minimised: policy loss plus KL and entropy terms. Advantages are centred and "
        "the ratio is near 1, so they nearly cancel, however well the run learns.",
        note="Near 0 by construction: watch the reward, not the loss.",
    ),
    Metric(
        "update/policy_loss",
        "loss",
        "The policy term of the loss alone.",
        note="Its gradient matters, not its value: near 0 by construction.",
    ),
    Metric(
        "update/grad_norm",
        "norm",
        "Global norm of the gradient before clipping.",
        "steady; a jump of ten times is a bad batch or the start of a collapse",
    ),
    Metric("update/learning_rate", "rate", "Learning rate of the last optimizer step."),
    Metric(
        "update/ratio_mean",
        "ratio",
        "Mean importance ratio, policy against anchor.",
        (0.9, 1.1),
        "Exactly 1 while a batch is used once.",
    ),
    Metric("update/ratio_max", "ratio", "Largest importance ratio.", note="Exactly 1 while a batch is used once."),
    Metric(
        "update/clip_low_share",
        "share",
        "Share of tokens whose ratio fell below 1 - clip_low where that clips the loss.",
        "10% to 30% together with clip_high_share when a batch is reused (epochs or minibatches above 1)",
        "0 by construction: a batch used once never clips.",
    ),
    Metric(
        "update/clip_high_share",
        "share",
        "Share of tokens whose ratio rose above 1 + clip_high where that clips the loss.",
        "10% to 30% together with clip_low_share when a batch is reused (epochs or minibatches above 1)",
        "0 by construction: a batch used once never clips.",
    ),
    Metric(
        "update/dual_clip_share",
        "share",
        "Share of tokens held by the dual clip (negative advantage, huge ratio).",
    ),
    Metric(
        "update/kl_anchor",
        "nats/token",
        "KL of the updated policy from the anchor: how far the weights moved within the step.",
        (-inf, 0.1),
        "0 by construction when a batch is used once: it is measured before the weights move.",
    ),
    Metric(
        "update/kl_reference",
        "nats/token",
        "KL from the reference model: how far training has moved in all.",
        "grows slowly; a sudden climb precedes most collapses",
    ),
    Metric("update/kl_coefficient", "factor", "Coefficient of the KL term; the adaptive controller moves it."),
    Metric(
        "update/entropy",
        "nats/token",
        "Mean entropy of the policy's next-token distribution on the tokens that were forwarded.",
        (0.1, inf),
        "Answers without advantage, often the surest, are not forwarded and not in it. "
        "It falls as the policy grows sure. Near 0 it no longer explores and a dip is hard to leave.",
    ),
    Metric(
        "update/rejected_share",
        "share",
        "Share of tokens rejected for the sampler's mismatch; they leave the loss and its denominator.",
        (-inf, 0.05),
    ),
    Metric(
        "update/ess_sequence",
        "share",
        "Effective sample size of the untruncated sequence weights, over their number.",
        (0.5, inf),
        "At 50% half of the batch says nothing about the present policy.",
    ),
    Metric(
        "update/ess_token",
        "share",
        "Effective sample size of the token weights, over their number.",
        (0.9, inf),
    ),
    Metric(
        "update/advantage_abs_mean",
        "advantage",
        "Mean size of the advantages: how much there was to learn.",
        note="Groups without signal have 0 and pull it down.",
    ),
    Metric(
        "update/tokens_forwarded",
        "tokens",
        "Tokens sent through the model's layers; shared prompts, and what prompts share, once.",
    ),
    Metric(
        "update/padding_share",
        "share",
        "Padding, and beginnings of prompts that others share, among the tokens sent through the model's layers.",
        note="On a processor 0 but for models whose attention does not go through SDPA (Gemma 2 with its soft cap).",
    ),
    Metric(
        "update/tokens_counted",
        "tokens",
        "Response tokens that the loss counts: its denominator under `token`.",
    ),
    Metric(
        "update/sequences_skipped_share",
        "share",
        "Share of rollouts not forwarded because their advantage is 0.",
        note="Saved compute, same gradient: they still count in every denominator.",
    ),
    Metric("update/optimizer_steps", "count", "Optimizer steps taken on the batch."),
    Metric(
        "update/skipped_steps",
        "count",
        "Optimizer steps left out: NaN or infinity in the loss or gradient, or nothing left to learn from.",
        (-inf, 0.0),
    ),
    Metric("update/lone_groups", "count", "Groups with fewer than two valid rollouts; their advantage is 0."),
    Metric(
        "update/small_std_groups",
        "count",
        "Groups whose reward deviation is below objective.min_std; their advantage is 0.",
        note="Groups that all pass or all fail are among them.",
    ),
    # sft
    Metric("sft/loss", "nats/token", "Negative log-prob of the given completions, as aggregated.", "falls"),
    Metric("sft/tokens_mean", "tokens", "Mean length of the given completions."),
    # mismatch
    Metric(
        "mismatch/logprob_abs_mean",
        "nats",
        "Mean distance of sampler and trainer log-probs of a token.",
        (-inf, 0.05),
        "bfloat16 alone makes 0.01 to 0.03; float32 about 0.00001 (docs/mismatch.md).",
    ),
    Metric("mismatch/logprob_abs_max", "nats", "Largest distance of sampler and trainer log-probs of a token."),
    Metric(
        "mismatch/prob_abs_mean",
        "probability",
        "Mean distance of sampler and trainer probabilities of a token.",
        note="Rare tokens have large distances of log-probs and small ones of probabilities.",
    ),
    Metric("mismatch/prob_abs_max", "probability", "Largest distance of sampler and trainer probabilities of a token."),
    Metric(
        "mismatch/prob_correlation",
        "correlation",
        "Pearson correlation of sampler and trainer probabilities over the step's tokens.",
        (0.98, inf),
    ),
    Metric(
        "mismatch/kl",
        "nats/token",
        "KL(sampler, trainer), the estimate k3: mean of e^x - x - 1 with x = trainer - sampler log-prob.",
        (-inf, 0.01),
    ),
    Metric(
        "mismatch/kl_k1",
        "nats/token",
        "KL(sampler, trainer), the estimate k1: mean of -x.",
        note="Unbiased as k3 is, and noisier: it may be negative.",
    ),
    Metric("mismatch/kl_reverse", "nats/token", "KL(trainer, sampler), the estimate k3: mean of x e^x - e^x + 1."),
    Metric("mismatch/kl_reverse_k1", "nats/token", "KL(trainer, sampler), the estimate k1: mean of x e^x."),
    Metric(
        "mismatch/perplexity_ratio",
        "ratio",
        "The trainer's perplexity of the sampled tokens over the sampler's own.",
        (0.95, 1.05),
    ),
    Metric(
        "mismatch/corrected/*",
        "as uncorrected",
        "The same number after correction: over the tokens left, with weight times probability for the sampler's.",
        note="What the truncation of weights leaves uncorrected; 0 where no weight was truncated.",
    ),
    Metric(
        "mismatch/token_weight/*",
        "share",
        "Share of tokens whose log-weight (trainer - sampler log-prob) lies in a bin; an edge belongs below.",
    ),
    Metric("mismatch/sequence_weight/*", "share", "The same of rollouts, whose log-weight is their tokens' sum."),
    Metric(
        "mismatch/lag/*/share",
        "share",
        "Share of tokens whose sampler was so many versions older than the trainer; only where any was older.",
    ),
    Metric(
        "mismatch/lag/*/kl", "nats/token", "KL(sampler, trainer) over the tokens of that lag.", "grows with the lag"
    ),
    Metric("mismatch/lag/*/ess_token", "share", "Effective sample size of their token weights, over their number."),
    Metric(
        "mismatch/kv_gap",
        "nats",
        "KL of a running answer's next token, from the keys and values that `regime.kv: keep` kept over a publish, to "
        "those computed anew under the new weights; one answer is measured after each publish.",
        (-inf, 0.01),
    ),
    # drift
    Metric(
        "drift/kl",
        "nats/token",
        "KL of the moved policy from the one that samples, whole vocabulary, on answers sampled once.",
        note="Exact on its tokens: no sampling noise. What is never said in those answers it does not see.",
    ),
    Metric("drift/ess", "share", "Effective sample size of the step's sequence weights, as drift.ess is held to it."),
    Metric(
        "drift/surprise",
        "deviations",
        "Standard deviations of the log gradient norm above its running mean.",
        (-inf, 4.0),
    ),
    Metric("drift/action", "code", "What was done: 0 nothing, 1 warn, 2 publish, 3 sync, 4 rollback."),
    Metric("drift/rollbacks", "count", "Rollbacks to the present good checkpoint."),
    # sync
    Metric(
        "sync/probe_gap",
        "nats/token",
        "Mean distance of engine and trainer log-probs on a few probe tokens, after each publish.",
        note="A large one stops the run: the weights did not arrive at the engine.",
    ),
)
"""In the order of the page."""
