"""What comes of it, and what it costs: held-out problems, time, speed, memory."""

from __future__ import annotations

from math import inf

from assay.track.metric import Metric

RUNNING: tuple[Metric, ...] = (
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
"""In the order of the page."""
