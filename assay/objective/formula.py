"""The resolved objective in words and numbers, as `assay explain` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.objective.advantage import ESTIMATORS
from assay.objective.aggregation import AGGREGATIONS
from assay.objective.correction import CORRECTIONS
from assay.objective.kl import ESTIMATES
from assay.objective.loss import LOSSES
from assay.objective.objective import needs_anchor
from assay.objective.ratio import RATIOS
from assay.recipe.schema import CorrectionRecipe, KlRecipe, ObjectiveRecipe

ANCHORS: Mapping[str, str] = {
    "live": "the policy's own log-probs, detached: the ratio is exactly 1 and the clips are idle",
    "recompute": (
        "log-probs by the training engine before the first inner step: the ratio is 1 there and moves with the weights"
    ),
    "rollout": "the sampler's log-probs: the ratio carries the engine's mismatch",
}
"""What each anchor means."""


def numbers(settings: ObjectiveRecipe, max_tokens: int) -> dict[str, Any]:
    """Values for the placeholders of the registered formulas, those that depend on several keys included."""
    divisor = "" if settings.scale == "none" else f" / (std of {settings.scale} r + {settings.eps:g})"
    dual = "" if settings.dual_clip is None else f", for A < 0 at most {settings.dual_clip:g} |A|"
    flat = settings.model_dump(exclude={"kl", "correction"})
    text = {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in flat.items()}
    constant = str(settings.constant_tokens or max_tokens)
    return text | {"divisor": divisor, "dual": dual, "constant": constant}


def describe(
    settings: ObjectiveRecipe, max_tokens: int, epochs: int = 1, minibatches: int = 1
) -> list[tuple[str, str]]:
    """Return (label, formula with this recipe's numbers) for every part of the objective that takes effect.

    ``max_tokens`` is ``rollout.max_tokens``; ``epochs`` and ``minibatches`` resolve ``anchor: auto``. Raises
    UserError for unknown names and for an anchor that contradicts the rest.

    >>> dict(describe(ObjectiveRecipe(clip_high=0.28), max_tokens=256))["policy loss"]
    'l_t = -min(r A, clip(r, 1 - 0.2, 1 + 0.28) A)'
    """
    values = numbers(settings, max_tokens)
    anchor = needs_anchor(settings, epochs, minibatches)
    policy = LOSSES[settings.loss]
    lines = [("advantage", ESTIMATORS[settings.estimator].formula.format_map(values))]
    lines.append(("anchor", f"{anchor}: {ANCHORS[anchor]}"))
    if "ratio" in policy.keys:
        lines.append(("ratio", RATIOS[settings.ratio].formula))
    lines.append(("policy loss", "l_t = " + policy.formula.format_map(values)))
    lines += describe_correction(settings.correction)
    if settings.mask_truncated:
        lines.append(("truncated answers", "leave numerator and denominator; their reward moves the baseline"))
    lines += describe_kl(settings.kl)
    if settings.entropy != 0:
        lines.append(("entropy", f"l_t is increased by -{settings.entropy:g} H_t"))
    lines.append(("aggregation", "loss = " + AGGREGATIONS[settings.aggregation].formula.format_map(values)))
    return lines


def describe_kl(settings: KlRecipe) -> list[tuple[str, str]]:
    """The KL term, or nothing with a coefficient of 0."""
    if settings.coefficient == 0:
        return []
    plus = settings.estimator.endswith("+")
    body = ESTIMATES[settings.estimator.removesuffix("+")].formula + (" with k2's gradient" if plus else "")
    target = "l_t is increased by" if settings.where == "loss" else "each token's reward is decreased by"
    text = f"{target} {settings.coefficient:g} ({body}), x = ref - policy"
    if settings.controller == "adaptive":
        text += f"; coefficient steered to a KL of {settings.target:g} per token over {settings.horizon} rollouts"
    return [("KL", text)]


def describe_correction(settings: CorrectionRecipe) -> list[tuple[str, str]]:
    """The correction and the rejection, where there are any."""
    lines = []
    values = {key: f"{value:g}" for key, value in settings.model_dump().items() if isinstance(value, float)}
    if settings.kind != "none":
        over = "" if settings.level == "token" else "sum over the rollout of "
        formula = CORRECTIONS[settings.kind].formula.format_map(values)
        lines.append(("correction", f"l_t is multiplied by {formula}; w = exp({over}anchor - sampler)"))
    if settings.reject_low is not None or settings.reject_high is not None:
        low = 0 if settings.reject_low is None else settings.reject_low
        high = "infinity" if settings.reject_high is None else f"{settings.reject_high:g}"
        lines.append(("rejection", f"rollouts with exp(mean of anchor - sampler) outside [{low:g}, {high}]"))
    return lines
