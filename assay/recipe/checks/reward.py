"""Reward: parts that can be told apart, added up and switched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from assay.recipe.checks.refusal import Refusal, check
from assay.recipe.derived import WATCH, part_names, watch_names
from assay.recipe.schema import Recipe


@check
def reward_parts(recipe: Recipe) -> Iterator[Refusal]:
    """Parts must be told apart, weigh something, and be several where the estimator normalises each."""
    parts = recipe.reward.parts
    for name, times in Counter(part_names(recipe.reward)).items():
        if times > 1:
            yield Refusal("reward.parts", f"{times} parts are called {name!r}: give each its own name")
    for name, times in Counter(watch_names(recipe.reward)).items():
        if times > 1:
            yield Refusal("reward.watch", f"{times} verifiers are called {name!r}: give each its own name")
    for name in part_names(recipe.reward):
        if name.startswith(WATCH):
            yield Refusal("reward.parts", f"{name!r} begins as the names of reward.watch do: use another name")
    if all(part.weight == 0 for part in parts):
        yield Refusal("reward.parts", "all weights are 0: every reward would be 0")
    if recipe.objective.estimator == "gdpo" and len(parts) == 1:
        reason = "'gdpo' normalises several reward parts apart, and there is one: use grpo, or add a part"
        yield Refusal("objective.estimator", reason)


@check
def reward_gates(recipe: Recipe) -> Iterator[Refusal]:
    """A gate looks back at a part that is there; sums and products are read by estimators of the one reward."""
    reward = recipe.reward
    names = part_names(reward)
    for place, part in enumerate(reward.parts):
        if part.when is not None and part.when.part not in names[:place]:
            known = ", ".join(names[:place]) or "none: the first part has no gate"
            reason = f"{part.when.part!r} is no earlier part (earlier: {known})"
            yield Refusal(f"reward.parts[{place}].when.part", reason)
    gated = any(part.when for part in reward.parts)
    if recipe.objective.estimator == "gdpo" and (gated or reward.combine == "product"):
        reason = "'gdpo' adds up the parts itself and reads neither gates nor products: use grpo, or a plain sum"
        yield Refusal("objective.estimator", reason)
    if reward.combine == "product":
        for place, part in enumerate(reward.parts):
            if part.weight != 1:
                reason = f"{part.weight:g} only scales a product (reward.combine): leave it out"
                yield Refusal(f"reward.parts[{place}].weight", reason)


@check
def reward_rows(recipe: Recipe) -> Iterator[Refusal]:
    """Parts for some rows need the column that tells the rows apart, and the reverse."""
    reward = recipe.reward
    chosen = [place for place, part in enumerate(reward.parts) if part.rows]
    if reward.verifier_column is None and chosen:
        yield Refusal(f"reward.parts[{chosen[0]}].rows", "needs reward.verifier_column, whose values it lists")
    if reward.verifier_column is not None and not chosen:
        reason = f"{reward.verifier_column!r} chooses nothing: no part of reward.parts has rows (say rows: [math])"
        yield Refusal("reward.verifier_column", reason)
    for place, part in enumerate(reward.parts):
        taken = {value for earlier in reward.parts[:place] for value in earlier.rows}
        if part.rows and set(part.rows) <= taken:
            reason = f"{', '.join(part.rows)} are all judged by earlier parts: the first part with a name is taken"
            yield Refusal(f"reward.parts[{place}].rows", reason)


@check
def overlong_share(recipe: Recipe) -> Iterator[Refusal]:
    """A punished share of less than a token punishes nothing."""
    share, cap = recipe.reward.overlong_buffer, recipe.rollout.max_tokens
    if 0 < share * cap < 1:
        reason = f"{share:g} of rollout.max_tokens = {cap} is less than a token: use {1 / cap:.3g} or more, or 0"
        yield Refusal("reward.overlong_buffer", reason)
