"""Every metric a run may log, in one table. A name that is not here cannot be logged.

``python -m assay.track.glossary`` prints the page docs/metrics.md that is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType

from assay.errors import AssayError, nearest
from assay.track.metric import Metric

CLIP_BAND = (0.1, 0.3)
"""Healthy share of clipped tokens, low and high together, when a batch is reused."""

AREAS: Mapping[str, str] = MappingProxyType(
    {
        "reward": "What the verifiers gave, over the rollouts of the step.",
        "verdict": "How many rollouts of the step had each outcome.",
        "group": "What the step's groups were made of. Only a mixed group has something to learn from.",
        "rollout": "The completions themselves.",
        "staleness": "How old the rollouts are that are trained on, where generation runs ahead "
        "(`regime.max_staleness` above 0).",
        "update": "The optimizer step and the mathematics behind it.",
        "sft": "Supervised warm-up on given completions (`assay sft`).",
        "mismatch": "How far the sampler is from the trainer on the tokens that it sampled: precision, kernels and, "
        "with staleness, older weights. Over the rollouts that are forwarded before the weights move: with a live "
        "anchor those that have an advantage.",
        "drift": "How far the policy has moved from the one that samples, before each publish (the recipe's `drift`).",
        "sync": "Handing new weights to the engine.",
        "eval": "Held-out problems, never trained on. Ends named _low and _high bound a 95% interval, over problems.",
        "time": "Where the seconds of a step went. Phases that overlap add up to more than the step.",
        "speed": "Tokens per second, and how near that is to what the machine could do.",
        "memory": "Memory.",
    }
)
"""The areas of metrics, in the order of the page, each with what it covers."""

GLOSSARY: tuple[Metric, ...] = (
    # reward
    Metric(
        "reward/mean",
        "reward",
        "Mean reward of the step's valid rollouts, shaping included.",
        "rises; watch it with eval/greedy, which shaping and luck of the draw do not move",
        "It wanders by several hundredths from step to step: each step asks other prompts.",
    ),
    Metric("reward/std", "reward", "Standard deviation of the rewards over the step's valid rollouts (ddof 1)."),
    Metric("reward/part/*", "score", "Mean unweighted score of one verifier, by its name in the recipe."),
    Metric(
        "reward/watch/*",
        "score",
        "Mean score of a verifier of `reward.watch`, which is no part of the reward.",
        "rises with the reward",
        "Where the reward rises and this does not, the policy is pleasing the verifier, not solving the task.",
    ),
    Metric(
        "reward/correct",
        "share",
        "Mean score of the first reward part: how many answers are right, whatever the shaping.",
        "rises",
        "reward/mean may rise by format and length alone; this one cannot.",
    ),
    Metric(
        "reward/valid_share",
        "share",
        "Share of rollouts whose verdict carries a reward.",
        (0.95, inf),
        "The rest failed on the verifier's side: they are left out, never counted as 0.",
    ),
    # verdict
    Metric("verdict/scored", "count", "The verifier gave a score."),
    Metric(
        "verdict/no_answer",
        "count",
        "No answer was found in the completion; its reward is the verifier's least.",
    ),
    Metric("verdict/program_timeout", "count", "The policy's own program ran out of time."),
    Metric("verdict/program_crash", "count", "The policy's own program failed."),
    Metric(
        "verdict/unverifiable",
        "count",
        "Stalled or broke the verifier twice while a known-good one passed: the least reward there is.",
        (-inf, 0.0),
    ),
    Metric("verdict/verifier_error", "count", "The verifier raised an exception: no reward.", (-inf, 0.0)),
    Metric("verdict/verifier_timeout", "count", "The verifier ran out of time: no reward.", (-inf, 0.0)),
    Metric("verdict/unavailable", "count", "A judge or service could not be reached: no reward.", (-inf, 0.0)),
    # group
    Metric(
        "group/all_fail",
        "share",
        "Share of groups in which every rollout failed alike.",
        "falls",
        "Near 1 the task is too hard for this model: nothing is learned from such groups.",
    ),
    Metric(
        "group/mixed",
        "share",
        "Share of groups whose rewards differ: the only ones that pull on the weights.",
        (0.2, inf),
    ),
    Metric(
        "group/all_pass",
        "share",
        "Share of groups in which every rollout is right.",
        "rises",
        "Near 1 the task is used up: harder prompts are needed.",
    ),
    Metric("group/no_signal", "share", "Share of groups with fewer than two valid verdicts.", (-inf, 0.05)),
    Metric("group/count", "count", "Groups in the step's batch."),
    Metric("group/extra", "count", "Groups generated to replace ones without signal (dynamic sampling)."),
    Metric("group/unused", "count", "Groups generated and not trained on: compute spent on finding mixed ones."),
    # rollout
    Metric("rollout/tokens_mean", "tokens", "Mean length of a completion."),
    Metric("rollout/tokens_max", "tokens", "Longest completion."),
    Metric("rollout/tokens_mean_correct", "tokens", "Mean length of right completions."),
    Metric(
        "rollout/tokens_mean_wrong",
        "tokens",
        "Mean length of wrong completions.",
        note="Dividing the loss by length lets long wrong answers off lightly: watch this one grow.",
    ),
    Metric(
        "rollout/truncated_share",
        "share",
        "Share of completions cut at rollout.max_tokens.",
        (-inf, 0.1),
        "A cut answer is usually marked wrong: a high share punishes thinking, not mistakes.",
    ),
    Metric(
        "rollout/answers_mean",
        "count",
        "Numbers in a completion, on average.",
        note="Above 1 the policy may be listing guesses: a last-number verifier rewards only one of them.",
    ),
    Metric(
        "rollout/duplicate_share",
        "share",
        "Share of completions that repeat another of their group word for word.",
        note="It rises as the policy grows sure; near 1 there is nothing left to compare.",
    ),
    Metric("rollout/retried", "count", "Rollouts sampled anew because their verdict was the verifier's fault."),
    Metric(
        "rollout/forced_share",
        "share",
        "Share of completions whose thinking span was closed by force (`rollout.thinking`).",
    ),
    Metric("rollout/cancelled_share", "share", "Share of rollouts cut off once enough of their group were there."),
    Metric("rollout/cancelled_tokens", "tokens", "Tokens that were sampled of them in vain."),
    Metric(
        "rollout/length_bias",
        "tokens",
        "Mean length of what is kept less that of everything started, cut-off rollouts at the length they had.",
        note="Below 0: oversampling favours short answers, by at least this much.",
    ),
    # staleness
    Metric("staleness/mean", "versions", "Mean age of a rollout when it is trained on, by its oldest token."),
    Metric("staleness/max", "versions", "Largest such age: never above regime.max_staleness."),
    Metric("staleness/running", "count", "Groups in the making when the step began to train."),
    Metric("staleness/waiting", "count", "Complete groups left for later steps."),
    Metric(
        "staleness/due",
        "count",
        "Groups in the making that the next step must wait for, as they would be too old after it.",
        note="Often above 0: answers are longer than regime.max_staleness allows for, and the trainer waits for them.",
    ),
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
    Metric("update/tokens_forwarded", "tokens", "Tokens sent through the model's layers; shared prompts once."),
    Metric(
        "update/padding_share",
        "share",
        "Padding among the tokens sent through the model's layers.",
        note="0 but for models whose attention does not go through SDPA (Gemma 2 with its soft cap).",
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
    # eval
    Metric("eval/prompts", "count", "Held-out prompts asked."),
    Metric("eval/invalid", "count", "Answers that the verifier failed on; they are in no estimate.", (-inf, 0.0)),
    Metric("eval/greedy", "share", "Held-out accuracy of the likeliest answer.", "rises"),
    Metric("eval/greedy_low", "share", "Lower end of its interval."),
    Metric("eval/greedy_high", "share", "Upper end of its interval."),
    Metric("eval/mean_at_*", "share", "Held-out accuracy averaged over n sampled answers a problem.", "rises"),
    Metric("eval/mean_at_*_low", "share", "Lower end of its interval."),
    Metric("eval/mean_at_*_high", "share", "Upper end of its interval."),
    Metric(
        "eval/pass_at_*",
        "share",
        "Unbiased chance that at least one of k sampled answers is right.",
        note="It may fall while accuracy rises: the policy grows sure of one way of answering.",
    ),
    Metric("eval/pass_at_*_low", "share", "Lower end of its interval."),
    Metric("eval/pass_at_*_high", "share", "Upper end of its interval."),
    Metric("eval/majority_at_*", "share", "Accuracy of the commonest of k sampled answers."),
    Metric("eval/majority_at_*_low", "share", "Lower end of its interval."),
    Metric("eval/majority_at_*_high", "share", "Upper end of its interval."),
    # time, speed, memory
    Metric("time/generate", "s", "Sampling completions."),
    Metric(
        "time/score",
        "s",
        "Waiting for verdicts.",
        note="Verdicts given while others are sampled cost nothing here.",
    ),
    Metric("time/update", "s", "Forward, backward and optimizer."),
    Metric("time/publish", "s", "Handing the new weights to the sampler."),
    Metric("time/evaluate", "s", "Held-out evaluation."),
    Metric("time/checkpoint", "s", "Writing a checkpoint."),
    Metric("time/step", "s", "The whole step, by the wall clock."),
    Metric("speed/generate_tokens_s", "tokens/s", "Sampled tokens over the seconds of generation."),
    Metric("speed/update_tokens_s", "tokens/s", "Forwarded tokens over the seconds of the update."),
    Metric(
        "speed/generate_limit_share",
        "share",
        "The least time that the arithmetic of generation could take, over the time that it took.",
        note="The limit is a short matrix product timed when the run starts, in the precision of generation.",
    ),
    Metric(
        "speed/update_limit_share",
        "share",
        "The same of the update: forward and backward of each prompt and response once, nothing computed twice.",
        note="In the precision of training. Padding and recomputation are no work that is needed: they lower it.",
    ),
    Metric("memory/peak_mb", "MB", "Peak memory of the process, or of the accelerator where there is one."),
)
"""Every metric, in the order of the page."""

_EXACT: Mapping[str, Metric] = MappingProxyType({m.name: m for m in GLOSSARY if not m.is_pattern})
# The pattern with most literal text wins: mean_at_*_low before mean_at_*.
_PATTERNS: tuple[Metric, ...] = tuple(sorted((m for m in GLOSSARY if m.is_pattern), key=lambda m: -len(m.name)))


def lookup(name: str) -> Metric:
    """Return the entry of ``name``, an exact one before a pattern.

    Raises :class:`AssayError` for a name that no entry covers.

    >>> lookup("eval/mean_at_8_low").name
    'eval/mean_at_*_low'
    >>> lookup("update/los")
    Traceback (most recent call last):
    assay.errors.AssayError: unknown metric 'update/los' (did you mean 'update/loss'?): \
every metric needs an entry in GLOSSARY (assay/track/glossary.py)
    """
    found = _EXACT.get(name) or next((m for m in _PATTERNS if m.matches(name)), None)
    if found is None:
        raise AssayError(
            f"unknown metric {name!r}{nearest(name, _EXACT)}: "
            "every metric needs an entry in GLOSSARY (assay/track/glossary.py)"
        )
    return found


def is_timing(name: str) -> bool:
    """Is the metric a measurement of time or memory, and so exempt from bit-equality of resumed runs?

    >>> is_timing("time/update"), is_timing("update/loss")
    (True, False)
    """
    return name.startswith(("time/", "speed/", "memory/"))


def page() -> str:
    """Return docs/metrics.md: a table for each area, in the order of :data:`GLOSSARY`."""
    lines = [
        "# Metrics",
        "",
        "Generated by `python -m assay.track.glossary`; edit `assay/track/glossary.py`, not this page.",
        "Each line of a run's `metrics.jsonl` (and `evals.jsonl`) is one step:",
        '`{"step": 12, "reward/mean": 0.61, ...}`.',
        "A number that could not be measured, or that was NaN or infinite, is `null`.",
        "A `*` stands for any text. A share lies between 0 and 1.",
    ]
    for area, intro in AREAS.items():
        lines += ["", f"## {area}", "", intro, "", "| metric | unit | meaning | healthy | note |"]
        lines.append("| --- | --- | --- | --- | --- |")
        for m in GLOSSARY:
            if m.name.startswith(f"{area}/"):
                lines.append(f"| `{m.name}` | {m.unit} | {m.meaning} | {m.healthy_text} | {m.note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
