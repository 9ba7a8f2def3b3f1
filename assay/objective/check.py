"""Which keys of the objective take effect, and which combinations contradict themselves."""

from __future__ import annotations

from assay.errors import UserError
from assay.objective.advantage import ESTIMATORS
from assay.objective.aggregation import AGGREGATIONS
from assay.objective.correction import CORRECTIONS
from assay.objective.kl import CONTROLLERS
from assay.objective.loss import LOSSES
from assay.objective.objective import needs_anchor
from assay.recipe.schema import ObjectiveRecipe


def used_keys(settings: ObjectiveRecipe) -> frozenset[str]:
    """Return the objective's keys (``clip_low``, ``kl.target``) that can change something under the others'
    values.

    A key that a user wrote and that isn't here does nothing, and should be refused. Raises UserError for
    unknown names. A clip is used also where the batch gets one optimizer step: it is idle there, not ignored.
    """
    used = {"estimator", "anchor", "loss", "aggregation", "mask_truncated", "entropy", "kl.coefficient"}
    used |= {"correction.kind", "correction.reject_low", "correction.reject_high"}
    used |= ESTIMATORS[settings.estimator].keys | LOSSES[settings.loss].keys
    if "scale" in used and settings.scale == "none":
        used -= {"eps", "min_std"}
    if settings.aggregation == "constant":
        used.add("constant_tokens")
    if settings.kl.coefficient > 0:
        used |= {"kl.estimator", "kl.where", "kl.controller"}
        if settings.kl.controller == "adaptive":
            used |= {"kl.target", "kl.horizon"}
    used |= {f"correction.{key}" for key in CORRECTIONS[settings.correction.kind].keys}
    return frozenset(used - {"kl.reward"})


def check(settings: ObjectiveRecipe, *, epochs: int, minibatches: int, group_size: int) -> None:
    """Raise UserError for an unknown name, or for a combination that cannot work, with the reason."""
    chosen = ESTIMATORS[settings.estimator]
    for registry, name in (
        (LOSSES, settings.loss),
        (AGGREGATIONS, settings.aggregation),
        (CONTROLLERS, settings.kl.controller),
    ):
        registry[name]
    if chosen.group_baseline and group_size < 2:
        raise UserError(
            f"rollout.group_size: {group_size} gives {chosen.name} nothing to compare an answer with; "
            "set it to 2 or more"
        )
    if settings.kl.where == "reward" and settings.kl.coefficient > 0 and "kl.reward" not in chosen.keys:
        raise UserError(
            f"objective.kl.where: reward does nothing with estimator {chosen.name}, "
            "which reads the reward's parts; set it to loss"
        )
    correction = settings.correction
    refuse_empty_band({"reject_low": correction.reject_low, "reject_high": correction.reject_high})
    if correction.kind == "mask":
        refuse_empty_band({"low": correction.low, "high": correction.high})
    needs_anchor(settings, epochs, minibatches)


def refuse_empty_band(band: dict[str, float | None]) -> None:
    """Raise UserError when the lower of two edges, by key, is not below the upper one: it would reject everything."""
    (low_key, low), (high_key, high) = band.items()
    if low is not None and high is not None and low >= high:
        raise UserError(
            f"objective.correction.{low_key}: {low:g} is not below {high_key} {high:g}: nothing is kept"
        )
