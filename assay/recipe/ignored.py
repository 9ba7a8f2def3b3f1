"""Keys that count only together with another one: set without it they would be ignored, so they are refused.

A key is *set* when the recipe or an override writes it and its value is not the one that the default or the
preset gives anyway (a saved recipe writes every key, and must stay readable).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from assay.recipe.checks import Refusal
from assay.recipe.derived import has_held_out, native_process
from assay.recipe.keys import flatten
from assay.recipe.names import (
    ESTIMATOR_KEYS,
    ESTIMATORS,
    LOSS_KEYS,
    LOSSES,
    reads_of_estimator,
    reads_of_loss,
)
from assay.recipe.presets import overlay
from assay.recipe.schema import Recipe


class Rule(NamedTuple):
    """``key`` counts only where ``read`` says so."""

    key: str
    read: Callable[[Recipe], bool]
    why: Callable[[Recipe], str]
    """Reads on after "is set, but": who does not read it, or what is off."""


def _says(text: str) -> Callable[[Recipe], str]:
    return lambda recipe: text


def _loss_rule(key: str) -> Rule:
    users = ", ".join(name for name, keys in LOSSES.items() if key in keys)
    return Rule(
        f"objective.{key}",
        lambda recipe: key in reads_of_loss(recipe.objective.loss),
        lambda recipe: f"objective.loss = {recipe.objective.loss} does not read it (read by: {users})",
    )


def _estimator_rule(key: str) -> Rule:
    users = ", ".join(name for name, facts in ESTIMATORS.items() if key in facts.reads)
    return Rule(
        f"objective.{key}",
        lambda recipe: key in reads_of_estimator(recipe.objective.estimator),
        lambda recipe: f"objective.estimator = {recipe.objective.estimator} does not read it (read by: {users})",
    )


def _drift_rule(measure: str) -> Rule:
    return Rule(
        f"drift.{measure}_action",
        lambda recipe: getattr(recipe.drift, measure) is not None,
        _says(f"drift.{measure} has no threshold"),
    )


def _divides(recipe: Recipe) -> bool:
    """Is there a standard deviation to divide by, for the estimators whose divisor ``scale`` chooses?"""
    return "scale" not in reads_of_estimator(recipe.objective.estimator) or recipe.objective.scale != "none"


def _has_kl(recipe: Recipe) -> bool:
    return recipe.objective.kl.coefficient > 0


def _adapts(recipe: Recipe) -> bool:
    return recipe.objective.kl.controller == "adaptive"


def _runs_ahead(recipe: Recipe) -> bool:
    return recipe.regime.max_staleness != 0


def _renders(recipe: Recipe) -> bool:
    return recipe.data.template != "none"


RULES: tuple[Rule, ...] = (
    *(_loss_rule(key) for key in sorted(LOSS_KEYS)),
    *(_estimator_rule(key) for key in sorted(ESTIMATOR_KEYS)),
    *(
        Rule(f"objective.{key}", _divides, _says("objective.scale = none divides by nothing"))
        for key in ("eps", "min_std")
    ),
    Rule(
        "objective.constant_tokens",
        lambda r: r.objective.aggregation == "constant",
        lambda r: f"objective.aggregation = {r.objective.aggregation} divides by no constant",
    ),
    *(
        Rule(f"objective.kl.{key}", _has_kl, _says("objective.kl.coefficient = 0: there is no KL term"))
        for key in ("estimator", "where")
    ),
    *(
        Rule(f"objective.kl.{key}", _adapts, _says("objective.kl.controller = fixed does not steer"))
        for key in ("target", "horizon")
    ),
    Rule(
        "objective.correction.low",
        lambda r: r.objective.correction.kind == "mask",
        lambda r: f"objective.correction.kind = {r.objective.correction.kind} has no lower edge (mask has)",
    ),
    *(
        Rule(
            f"objective.correction.{key}",
            lambda r: r.objective.correction.kind != "none",
            _says("objective.correction.kind = none weighs nothing"),
        )
        for key in ("high", "level")
    ),
    Rule(
        "reward.overlong_penalty",
        lambda r: r.reward.overlong_buffer > 0,
        _says("reward.overlong_buffer = 0 punishes nothing"),
    ),
    Rule(
        "rollout.max_extra_groups",
        lambda r: r.rollout.dynamic_sampling,
        _says("rollout.dynamic_sampling = false replaces no group"),
    ),
    Rule(
        "sync.backend",
        lambda r: r.rollout.engine in ("vllm", "vllm_server"),
        lambda r: f"rollout.engine = {r.rollout.engine} has one way only (vllm and vllm_server have several)",
    ),
    Rule(
        "rollout.servers",
        lambda r: r.rollout.engine in ("vllm_server", "llama_server", "openai"),
        lambda r: f"rollout.engine = {r.rollout.engine} asks no server",
    ),
    Rule(
        "sync.gguf",
        lambda r: r.rollout.engine == "llama_server",
        lambda r: f"rollout.engine = {r.rollout.engine} is given no GGUF",
    ),
    Rule(
        "rollout.allow_stale",
        lambda r: r.rollout.engine == "openai",
        lambda r: f"rollout.engine = {r.rollout.engine} is given every new version",
    ),
    Rule(
        "rollout.dtype",
        lambda r: r.rollout.engine != "openai",
        _says("the servers of rollout.engine = openai have a precision of their own"),
    ),
    Rule(
        "rollout.dtype",
        lambda r: r.rollout.engine != "llama_server",
        _says("rollout.engine = llama_server has the precision of sync.gguf"),
    ),
    Rule(
        "rollout.replicas",
        lambda r: r.rollout.engine not in ("transformers", "openai", "vllm"),
        lambda r: f"rollout.engine = {r.rollout.engine} starts no replicas",
    ),
    Rule(
        "rollout.replicas",
        lambda r: not r.rollout.servers,
        _says("rollout.servers are the replicas"),
    ),
    *(
        Rule(f"regime.{key}", _runs_ahead, _says("regime.max_staleness = 0 has no answers in flight at new weights"))
        for key in ("in_flight", "kv")
    ),
    Rule(
        "regime.kv",
        lambda r: r.regime.in_flight,
        _says("regime.in_flight = false finishes answers under the weights they began with"),
    ),
    Rule("regime.max_groups", _runs_ahead, _says("regime.max_staleness = 0 admits one batch of groups anyway")),
    *(_drift_rule(measure) for measure in ("kl", "ess", "surprise")),
    Rule(
        "rollout.graphs",
        lambda r: r.rollout.engine == "native",
        lambda r: f"rollout.engine = {r.rollout.engine} has graphs of its own or none (vllm: options.enforce_eager)",
    ),
    Rule(
        "rollout.process",
        lambda r: r.rollout.engine == "native",
        lambda r: f"rollout.engine = {r.rollout.engine} chooses its own processes",
    ),
    *(
        Rule(
            f"rollout.{key}",
            lambda r: r.rollout.engine != "transformers",
            _says("rollout.engine = transformers runs in the trainer's process, as it is"),
        )
        for key in ("options", "timeout_s")
    ),
    *(
        Rule(
            f"rollout.{key}",
            lambda r: r.rollout.engine != "native" or native_process(r) == "own",
            _says("the native engine runs in the trainer's process (rollout.process: own gives it one)"),
        )
        for key in ("options", "timeout_s")
    ),
    Rule("eval.temperature", lambda r: r.eval.samples > 0, _says("eval.samples = 0 samples nothing")),
    *(
        Rule(f"eval.{key}", has_held_out, _says("there are no held-out prompts (data.holdout or data.eval)"))
        for key in ("samples", "temperature", "limit")
    ),
    Rule("track.project", lambda r: bool(r.track.trackers), _says("track.trackers = [] names nobody to tell it")),
    Rule(
        "update.min_ratio",
        lambda r: r.update.schedule != "constant",
        _says("update.schedule = constant does not fall"),
    ),
    *(
        Rule(key, _renders, _says("data.template = none renders no chat template"))
        for key in ("model.chat_template", "data.enable_thinking")
    ),
)
"""Every such key. A key may have several rules."""


def ignored_keys(recipe: Recipe, explicit: Collection[str]) -> Iterator[Refusal]:
    """Refuse each key of ``explicit`` that is set and not read."""
    values = flatten(recipe)
    usual = flatten(Recipe.model_validate(overlay(recipe.preset) if recipe.preset is not None else {}))
    refused: set[str] = set()
    for rule in RULES:
        key = rule.key
        if key in explicit and key not in refused and values[key] != usual[key] and not rule.read(recipe):
            refused.add(key)
            yield Refusal(key, f"is set, but {rule.why(recipe)}: leave it out")
