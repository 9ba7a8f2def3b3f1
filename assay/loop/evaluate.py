"""Held-out evaluation: greedy accuracy, mean@n, unbiased pass@k, majority@k, each with an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from assay.data.prompts import PromptSet
from assay.loop.source import Order, collect, stream_seed
from assay.loop.statistics import Estimate, bootstrap, majority, pass_at_k, wilson
from assay.recipe.schema import EvalRecipe
from assay.records import Group, is_right
from assay.reward.scorer import Scorer
from assay.rollout.engine import Engine
from assay.rollout.sampling import Sampling
from assay.track.phases import Phases

EVAL_ADMISSIONS = 1 << 40
"""Admission numbers of evaluation start here, far from those of training."""


@dataclass(frozen=True)
class Evaluation:
    """What was found on the held-out prompts."""

    estimates: dict[str, Estimate]
    """By name: ``greedy``, ``mean_at_8``, ``pass_at_4``, ``majority_at_8``."""
    groups: tuple[Group, ...]
    """Per prompt: the greedy answer (index 0), then the sampled ones."""
    invalid: int
    """Answers without a verdict; they are in no estimate."""

    def metrics(self) -> dict[str, float]:
        """Flat numbers for the metrics log."""
        flat = {"eval/prompts": float(len(self.groups))}
        for name, e in self.estimates.items():
            flat |= {f"eval/{name}": e.value, f"eval/{name}_low": e.low, f"eval/{name}_high": e.high}
        return flat


async def evaluate(
    engine: Engine,
    scorer: Scorer,
    prompts: PromptSet,
    recipe: EvalRecipe,
    max_tokens: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Evaluation:
    """Answer every held-out prompt greedily and ``recipe.samples`` times by sampling, and judge the answers.

    The sampling seeds do not depend on the step, so two evaluations differ by the weights alone.
    """
    chosen = prompts.prompts[: recipe.limit]
    greedy = Sampling(max_tokens=max_tokens, greedy=True)
    sampled = Sampling(max_tokens=max_tokens, temperature=recipe.temperature)
    rounds = [(greedy, 1, 0), (sampled, recipe.samples, 1)] if recipe.samples else [(greedy, 1, 0)]
    total = len(chosen) * (1 + recipe.samples)
    groups = [Group(p, (), ()) for p in chosen]
    for sampling, n, first in rounds:
        orders = [Order(EVAL_ADMISSIONS + i, p, n, first_index=first) for i, p in enumerate(chosen)]
        before = 0 if first == 0 else len(chosen)
        answers = await collect(
            engine,
            scorer,
            orders,
            sampling,
            stream_seed(seed, "eval"),
            Phases(),
            lambda d, _, b=before: progress(b + d, total),
        )
        for i, order in enumerate(orders):
            rollouts, verdicts = answers[order.admission]
            groups[i] = replace(
                groups[i],
                rollouts=groups[i].rollouts + tuple(rollouts),
                verdicts=groups[i].verdicts + tuple(verdicts),
            )
    return Evaluation(
        estimates=_estimates(groups, recipe.samples),
        groups=tuple(groups),
        invalid=sum(not v.valid for g in groups for v in g.verdicts),
    )


def _estimates(groups: Sequence[Group], samples: int) -> dict[str, Estimate]:
    first = [g.verdicts[0] for g in groups if g.verdicts[0].valid]
    estimates = {"greedy": wilson(sum(is_right(v) for v in first), len(first))}
    rows = [[v for v in g.verdicts[1:] if v.valid] for g in groups]
    rows = [row for row in rows if row]
    if samples == 0 or not rows:
        return estimates
    means = [sum(is_right(v) for v in row) / len(row) for row in rows]
    estimates[f"mean_at_{samples}"] = bootstrap(means)
    full = [row for row in rows if len(row) == samples]
    for k in _powers_of_two(samples):
        passed = [pass_at_k(samples, sum(is_right(v) for v in row), k) for row in full]
        estimates[f"pass_at_{k}"] = bootstrap(passed)
    votes = [majority([v.answer for v in row], [is_right(v) for v in row]) for row in full]
    estimates[f"majority_at_{samples}"] = bootstrap(votes)
    return estimates


def _powers_of_two(limit: int) -> list[int]:
    """2, 4, ... up to ``limit``, and ``limit`` itself (pass@1 is mean@n)."""
    ks = [2**i for i in range(1, limit.bit_length()) if 2**i <= limit]
    return ks if not ks or ks[-1] == limit else [*ks, limit]
