"""Objective and update: terms that do not contradict each other, in batches that can be cut."""

from __future__ import annotations

from collections.abc import Iterator

from assay.recipe.checks.refusal import Refusal, check
from assay.recipe.derived import anchor_needs, corrects, rejects_sequences
from assay.recipe.names import ESTIMATORS
from assay.recipe.schema import Recipe


@check
def unbuilt_estimator(recipe: Recipe) -> Iterator[Refusal]:
    """``gae`` and ``remax`` are functions without the machinery that feeds them."""
    name = recipe.objective.estimator
    if name in ESTIMATORS and ESTIMATORS[name].lacks:
        lacks = ESTIMATORS[name].lacks
        yield Refusal("objective.estimator", f"{name!r} needs {lacks}: not built yet; grpo or rloo needs none")


@check
def live_anchor(recipe: Recipe) -> Iterator[Refusal]:
    """A live anchor makes the ratio 1, which is wrong wherever log-probs are needed earlier."""
    needs = anchor_needs(recipe)
    if recipe.objective.anchor == "live" and needs:
        yield Refusal("objective.anchor", f"'live' is not exact here, because {' and '.join(needs)}: use auto")


@check
def rollout_anchor(recipe: Recipe) -> Iterator[Refusal]:
    """With the sampler as anchor there is no mismatch left to correct."""
    if recipe.objective.anchor == "rollout" and corrects(recipe.objective.correction):
        reason = "'rollout' leaves nothing to correct, as its weight would be 1: use auto, or drop the correction"
        yield Refusal("objective.anchor", reason)


@check
def clip_range(recipe: Recipe) -> Iterator[Refusal]:
    """A ratio is above 0, so a lower clip beyond 1 clips nothing; the loss in log space has no such limit."""
    objective = recipe.objective
    if objective.clip_low > 1 and objective.loss != "geo_mean":
        reason = f"{objective.clip_low:g} is above 1, and no ratio is below 0: use at most 1 (1: no lower clip)"
        yield Refusal("objective.clip_low", reason)
    if objective.dual_clip is not None and objective.dual_clip <= 1 + objective.clip_high:
        reason = f"{objective.dual_clip:g} must be above 1 + clip_high = {1 + objective.clip_high:g}"
        yield Refusal("objective.dual_clip", reason)


@check
def kl_term(recipe: Recipe) -> Iterator[Refusal]:
    """The KL's keys that contradict each other."""
    kl = recipe.objective.kl
    name = recipe.objective.estimator
    if kl.controller == "adaptive" and kl.coefficient == 0:
        reason = "'adaptive' multiplies the coefficient, and 0 stays 0: give kl.coefficient a start above 0"
        yield Refusal("objective.kl.controller", reason)
    if kl.coefficient > 0 and kl.where == "reward":
        if kl.estimator.endswith("+"):
            plain = kl.estimator.rstrip("+")
            reason = f"{kl.estimator!r} changes only a gradient, and a KL in the reward has none: use {plain!r}"
            yield Refusal("objective.kl.estimator", reason)
        if name in ESTIMATORS and not ESTIMATORS[name].token_rewards:
            reason = f"'reward' never reaches {name!r}, which reads the reward's parts: use 'loss'"
            yield Refusal("objective.kl.where", reason)


@check
def correction_bands(recipe: Recipe) -> Iterator[Refusal]:
    """Empty bands reject everything."""
    correction = recipe.objective.correction
    if correction.kind == "mask" and correction.low >= correction.high:
        reason = f"{correction.low:g} is not below correction.high = {correction.high:g}: no token would be left"
        yield Refusal("objective.correction.low", reason)
    low, high = correction.reject_low, correction.reject_high
    if low is not None and high is not None and low >= high:
        reason = f"{low:g} is not below correction.reject_high = {high:g}: every sequence would be rejected"
        yield Refusal("objective.correction.reject_low", reason)
    if rejects_sequences(correction) and ((low or 0) > 1 or (high is not None and high < 1)):
        yield Refusal(
            f"objective.correction.reject_{'low' if (low or 0) > 1 else 'high'}",
            "leaves out 1, the weight of a sampler without mismatch: such sequences would all be rejected",
        )


@check
def batch_division(recipe: Recipe) -> Iterator[Refusal]:
    """A batch of so many groups cannot be divided further."""
    minibatches, prompts = recipe.update.minibatches, recipe.rollout.prompts_per_step
    if minibatches > prompts:
        reason = f"{minibatches} are more than rollout.prompts_per_step = {prompts} groups: use at most {prompts}"
        yield Refusal("update.minibatches", reason)


@check
def token_budget(recipe: Recipe) -> Iterator[Refusal]:
    """A micro-batch must hold the longest prompt with its answer."""
    budget = recipe.update.tokens_per_microbatch
    prompt, answer = recipe.data.max_prompt_tokens, recipe.rollout.max_tokens
    if recipe.data.train and budget < prompt + answer:
        reason = (
            f"{budget} may not hold one rollout of data.max_prompt_tokens + rollout.max_tokens = "
            f"{prompt} + {answer} tokens: use at least {prompt + answer}"
        )
        yield Refusal("update.tokens_per_microbatch", reason)
