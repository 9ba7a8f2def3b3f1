"""What a step is trained on: rewards, verdicts, groups, completions and their age."""

from __future__ import annotations

from math import inf

from assay.track.metric import Metric

EXPERIENCE: tuple[Metric, ...] = (
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
)
"""In the order of the page."""
