"""What each piece of the work costs in seconds, of one engine and of one trainer: the cost model of the simulation."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from functools import cached_property

from pydantic import Field

from assay.plan.distribution import Constant, Distribution
from assay.recipe.schema import Section


class PrefillCost(Section):
    """Forwarding prompts before their first token can be sampled: seconds = fixed_s + per_token_s * tokens."""

    fixed_s: float = Field(default=0.0, ge=0)
    """Seconds of each prefill, however short."""
    per_token_s: float = Field(default=0.0, ge=0)
    """Seconds of each token."""

    def seconds(self, tokens: int) -> float:
        """Seconds of a prefill; 0 of nothing."""
        return self.fixed_s + self.per_token_s * tokens if tokens else 0.0


class DecodeCost(Section):
    """One token for every running answer: seconds = step_s(rows) + per_cached_token_s * tokens in the cache."""

    steps: dict[int, float] = Field(min_length=1)
    """Seconds of a step by the number of running answers; linear between them, beyond the last by the last slope."""
    per_cached_token_s: float = Field(default=0.0, ge=0)
    """Seconds for each token that the running answers attend to."""

    @cached_property
    def _points(self) -> tuple[list[int], list[float]]:
        rows = sorted(self.steps)
        return rows, [self.steps[r] for r in rows]

    def model_post_init(self, context: object) -> None:
        """Refuse what cannot be, when it is read."""
        rows, seconds = self._points
        if rows[0] < 1 or min(seconds) <= 0:
            raise ValueError("decode.steps needs rows of at least 1 and seconds above 0")
        if any(b < a for a, b in itertools.pairwise(seconds)):
            raise ValueError("decode.steps must not fall with more rows")

    def step_s(self, rows: int) -> float:
        """Seconds of one step of ``rows`` running answers, empty caches.

        >>> DecodeCost(steps={1: 0.01, 11: 0.02}).step_s(6), DecodeCost(steps={1: 0.01, 11: 0.02}).step_s(21)
        (0.015, 0.03)
        """
        known, seconds = self._points
        if rows <= known[0] or len(known) == 1:
            return seconds[0]
        right = min(bisect_left(known, rows), len(known) - 1)
        left = right - 1
        slope = (seconds[right] - seconds[left]) / (known[right] - known[left])
        return seconds[left] + slope * (rows - known[left])

    def seconds(self, rows: int, steps: int, cached: int) -> float:
        """Seconds of so many steps of the same rows, which hold ``cached`` tokens before the first of them.

        Each step adds a token to each row: sum over i < n of step_s + c (cached + rows i).
        """
        attended = steps * cached + rows * steps * (steps - 1) // 2
        return steps * self.step_s(rows) + self.per_cached_token_s * attended

    def steps_within(self, rows: int, seconds: float, cached: int) -> int:
        """The fewest steps that take at least so many seconds: where an engine is next between two steps."""
        a = self.per_cached_token_s * rows / 2
        b = self.step_s(rows) + self.per_cached_token_s * (cached - rows / 2)
        guess = seconds / b if a <= 0 else (math.sqrt(b * b + 4 * a * seconds) - b) / (2 * a)
        steps = max(0, math.floor(guess))
        while self.seconds(rows, steps, cached) < seconds * (1 - 1e-12):
            steps += 1
        return steps


class UpdateCost(Section):
    """An optimizer step on a batch: fixed_s + per_token_s * trained tokens + scored_token_s * scored tokens."""

    fixed_s: float = Field(default=0.0, ge=0)
    """Seconds of each update, whatever its batch: the optimizer, and waiting for ranks."""
    per_token_s: float = Field(default=0.0, ge=0)
    """Seconds of each token that goes forward and backward, on one trainer GPU (or process)."""
    scored_token_s: float = Field(default=0.0, ge=0)
    """Seconds of each token that goes forward alone: the anchor's log-probs, the reference model's."""
    scaling: float = Field(default=1.0, gt=0, le=1)
    """Share of the ideal speed-up that each doubling of the trainer's GPUs gives."""

    def seconds(self, trained: float, scored: float, gpus: int) -> float:
        """Seconds on ``gpus`` GPUs: the tokens' part is divided by gpus * scaling^log2(gpus)."""
        speed = gpus * self.scaling ** math.log2(gpus)
        return self.fixed_s + (self.per_token_s * trained + self.scored_token_s * scored) / speed


class Costs(Section):
    """Seconds of everything, of one engine and one training GPU."""

    prefill: PrefillCost = PrefillCost()
    """Prompts, and answers whose cache is computed anew under new weights."""
    decode: DecodeCost
    """Answers."""
    update: UpdateCost
    """Training."""
    publish_s: float = Field(default=0.0, ge=0)
    """Handing the weights to the engines; neither side works meanwhile."""
    probe_tokens: int = Field(default=0, ge=0)
    """Tokens of the probe that an engine then answers, before all others and among them, while the trainer waits."""
    probe_prompt_tokens: int = Field(default=1, ge=1)
    """Tokens of its prompt."""
    wake_s: float = Field(default=0.0, ge=0)
    """Added to each publish where engine and trainer share GPUs, for moving one GPU's worth of everything out and in
    again; divided by their number."""
    overhead_s: float = Field(default=0.0, ge=0)
    """Of each step, what is none of the phases: metrics, logs, checkpoints."""
    verifier: Distribution = Constant(value=0.0)
    """Seconds of one verdict."""
    verifier_workers: int | None = Field(default=None, ge=1)
    """Verdicts found at once; absent: ``reward.workers``."""
    kv_tokens: int | None = Field(default=None, ge=1)
    """Tokens that an engine's cache holds; absent: no bound but the slots."""
    engine_gpus: int = Field(default=1, ge=1)
    """GPUs of one engine (tensor parallel)."""
    least_trainer_gpus: int = Field(default=1, ge=1)
    """The fewest GPUs whose memory holds the weights, gradients and optimizer."""

    def at_speed(self, engine: float, trainer: float) -> Costs:
        """The same with engines and trainer so many times as fast; publishing and verdicts wait for other things."""
        p, d, u = self.prefill, self.decode, self.update
        return self.model_copy(
            update={
                "prefill": PrefillCost(fixed_s=p.fixed_s / engine, per_token_s=p.per_token_s / engine),
                "decode": DecodeCost(
                    steps={rows: s / engine for rows, s in d.steps.items()},
                    per_cached_token_s=d.per_cached_token_s / engine,
                ),
                "update": UpdateCost(
                    fixed_s=u.fixed_s / trainer,
                    per_token_s=u.per_token_s / trainer,
                    scored_token_s=u.scored_token_s / trainer,
                    scaling=u.scaling,
                ),
            }
        )
