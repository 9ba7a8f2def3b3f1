"""Held-out evaluation: greedy accuracy, mean@n, unbiased pass@k, majority@k, each with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.data.prompts import PromptSet
from assay.loop.invalid import refuse_invalid
from assay.loop.making import Asking, Judge, Making, Progress, make, unheard
from assay.loop.statistics import Estimate, bootstrap, majority, pass_at_k, proportion
from assay.recipe.schema import Recipe
from assay.records import Group, is_right
from assay.rollout.dispatch import Dispatcher
from assay.rollout.engine import sampling_of
from assay.rollout.seeds import stream_seed
from assay.rollout.thinking import ThinkingBudget

EVAL_ADMISSIONS = 1 << 40
"""Admission numbers of evaluation start here, far from those of training."""


@dataclass(frozen=True)
class Evaluation:
    """What was found on the held-out prompts."""

    estimates: dict[str, Estimate]
    """By name: ``greedy``, ``mean_at_8``, ``pass_at_4``, ``majority_at_8``."""
    groups: tuple[Group, ...]
    """Per prompt: the greedy answer (index 0), then the sampled ones."""

    @property
    def invalid(self) -> int:
        """Answers without a verdict; they are in no estimate."""
        return sum(not v.valid for g in self.groups for v in g.verdicts)

    def metrics(self) -> dict[str, float]:
        """Flat numbers for the metrics log."""
        flat: dict[str, float] = {"eval/prompts": len(self.groups)}
        if self.invalid:
            flat["eval/invalid"] = self.invalid
        for name, e in self.estimates.items():
            flat |= {f"eval/{name}": e.value, f"eval/{name}_low": e.low, f"eval/{name}_high": e.high}
        return flat


async def evaluate(
    dispatcher: Dispatcher,
    scorer: Judge,
    prompts: PromptSet,
    recipe: Recipe,
    progress: Progress = unheard,
    thinking: ThinkingBudget | None = None,
) -> Evaluation:
    """Answer every held-out prompt greedily and ``eval.samples`` times by sampling, and judge the answers.

    The sampling seeds do not depend on the step, so two evaluations differ by the weights alone. Raises AssayError when
    more than ``reward.max_invalid`` of the verdicts are invalid.
    """
    chosen, samples = prompts.prompts[: recipe.eval.limit], recipe.eval.samples
    sampled = replace(sampling_of(recipe.rollout), temperature=recipe.eval.temperature)
    rounds = [(sampling_of(recipe.rollout, greedy=True), 1, 0), (sampled, samples, 1)]
    seed, total = stream_seed(recipe.run.seed, "eval"), len(chosen) * (1 + samples)
    groups, done = [Group(p, (), (), i) for i, p in enumerate(chosen)], 0
    for sampling, n, first in rounds[: 1 + (samples > 0)]:
        makings = [Making(EVAL_ADMISSIONS + i, p, n, n, first_index=first) for i, p in enumerate(chosen)]

        def follow() -> None:
            nonlocal done
            done += 1
            progress(done, total)

        await make(makings, dispatcher, scorer, Asking(sampling, seed, thinking=thinking), follow)
        made = [m.group() for m in makings]
        groups = [
            replace(g, rollouts=(*g.rollouts, *m.rollouts), verdicts=(*g.verdicts, *m.verdicts))
            for g, m in zip(groups, made, strict=True)
        ]
        refuse_invalid([v for g in groups for v in g.verdicts], recipe.reward.max_invalid)
    return Evaluation(estimates_over(groups, samples), tuple(groups))


def estimates_over(groups: Sequence[Group], samples: int) -> dict[str, Estimate]:
    """Estimates by name over groups of one greedy and ``samples`` sampled answers, with intervals over problems.

    Invalid verdicts are left out of greedy accuracy and mean@n; pass@k and majority@k need all of a prompt's samples,
    and are over the prompts that have them. Without a verifier that says what the answer was nobody can vote.
    """
    first = [g for g in groups if g.verdicts[0].valid]
    estimates = {"greedy": proportion([is_right(g.verdicts[0]) for g in first], [_problem(g) for g in first])}
    answered = [(_problem(g), row) for g in groups if (row := [v for v in g.verdicts[1:] if v.valid])]
    if not answered:
        return estimates
    problems, rows = zip(*answered, strict=True)
    estimates[f"mean_at_{samples}"] = bootstrap([sum(map(is_right, row)) / len(row) for row in rows], problems)
    full = [(problem, row) for problem, row in answered if len(row) == samples]
    problems, rows = [problem for problem, _ in full], [row for _, row in full]
    for k in _powers_of_two(samples):
        passed = [pass_at_k(samples, sum(map(is_right, row)), k) for row in rows]
        estimates[f"pass_at_{k}"] = bootstrap(passed, problems)
    if any(v.answer is not None for row in rows for v in row):  # a user's function extracts none
        votes = [majority([v.answer for v in row], [is_right(v) for v in row]) for row in rows]
        estimates[f"majority_at_{samples}"] = bootstrap(votes, problems)
    return estimates


def _problem(group: Group) -> str:
    """What its prompt asks, whatever the wording: the unit of which the held-out set is a sample."""
    return group.prompt.problem or group.prompt.id


def _powers_of_two(limit: int) -> list[int]:
    """2, 4, ... up to ``limit``, and ``limit`` itself (pass@1 is mean@n)."""
    ks = [2**i for i in range(1, limit.bit_length()) if 2**i <= limit]
    return ks if not ks or ks[-1] == limit else [*ks, limit]
