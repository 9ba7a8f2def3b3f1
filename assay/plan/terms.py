"""What of a recipe decides the timing of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.recipe.derived import choose_anchor, extra_groups
from assay.recipe.schema import Recipe


@dataclass(frozen=True)
class Terms:
    """Sizes and rules, by the names of the recipe's keys."""

    prompts_per_step: int = 16
    group_size: int = 8
    max_tokens: int = 256
    slots: int = 128
    """``rollout.max_running``."""
    slots_together: bool = False
    """Are they those of all engines together (native), rather than of each?"""
    max_staleness: int | None = 0
    max_groups: int | None = None
    max_extra: int | None = None
    """Replacements of groups without signal in a step; ``None``: no dynamic sampling."""
    oversample: int = 0
    in_flight: bool = True
    keep_cache: bool = False
    """``regime.kv: keep``."""
    sync_every: int = 1
    verifier_workers: int = 1
    threads: int | None = None
    """``run.threads``: CPU threads of the trainer."""
    engine_threads: int | None = None
    """``rollout.options.threads``: CPU threads of a generation process."""
    stream: bool = True
    """Are answers judged while others are sampled? The loop always does; False shows what that saves."""
    share_prompts: bool = True
    epochs: int = 1
    train_all: bool = False
    """Are groups without signal forwarded too, because a KL or entropy term moves them?"""
    scored_passes: int = 0
    """Forward passes before the first backward one: the anchor's, the reference model's."""

    def slots_of_each(self, engines: int) -> int:
        """Answers that one of so many engines generates at once."""
        return -(-self.slots // engines) if self.slots_together else self.slots

    def publishes(self, version: int, published: int) -> bool:
        """Are the engines given this version, after ``published``?"""
        due = self.sync_every if self.max_staleness is None else min(self.sync_every, self.max_staleness + 1)
        return version - published >= due

    def tokens(self, groups: Sequence[tuple[int, Sequence[int], bool]]) -> tuple[float, float]:
        """(Tokens forward and backward, tokens forward alone) of a batch of (prompt tokens, lengths, signal).

        A shared prompt counts once; groups whose advantages are all 0 are left out unless ``train_all``.
        """
        once = sum(
            prompt * (1 if self.share_prompts else len(lengths)) + sum(lengths)
            for prompt, lengths, signal in groups
            if signal or self.train_all
        )
        return once * self.epochs, once * self.scored_passes


def terms_of(recipe: Recipe) -> Terms:
    """The terms that a recipe writes down."""
    rollout, regime, objective = recipe.rollout, recipe.regime, recipe.objective
    eta, every = regime.max_staleness, recipe.sync.every
    max_groups = regime.max_groups
    if eta is None and max_groups is None:
        max_groups = 4 * rollout.prompts_per_step
    return Terms(
        prompts_per_step=rollout.prompts_per_step,
        group_size=rollout.group_size,
        max_tokens=rollout.max_tokens,
        slots=rollout.max_running,
        slots_together=rollout.engine == "native",
        max_staleness=eta,
        max_groups=max_groups,
        max_extra=extra_groups(recipe) if rollout.dynamic_sampling else None,
        oversample=rollout.oversample,
        in_flight=regime.in_flight,
        keep_cache=regime.kv == "keep",
        sync_every=1 if every == "drift" else every,
        verifier_workers=recipe.reward.workers,
        threads=recipe.run.threads,
        engine_threads=rollout.options.get("threads"),
        share_prompts=recipe.update.share_prompts,
        epochs=recipe.update.epochs,
        train_all=objective.kl.coefficient > 0 or objective.entropy != 0,
        scored_passes=(choose_anchor(recipe).kind == "recompute") + (objective.kl.coefficient > 0),
    )
