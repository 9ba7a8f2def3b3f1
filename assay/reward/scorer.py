"""A prompt and its rollouts -> verdicts: the recipe's parts are judged and summed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from assay.data.conventions import column_at
from assay.errors import UserError
from assay.recipe.derived import OVERLONG, part_names, watch_names
from assay.recipe.schema import RewardPart, RewardRecipe, WatchPart
from assay.records import Prompt, Rollout, Verdict
from assay.reward.combine import Term, combine
from assay.reward.floor import Floor
from assay.reward.function import is_function, read_source
from assay.reward.jury import Jury
from assay.reward.selection import parts_for
from assay.reward.trial import Finding
from assay.reward.verifier import Case, Part
from assay.reward.verifiers.length import Length, LengthOptions


class Scorer:
    """Judges rollouts by a reward recipe. Any number of ``score`` calls may run at once.

    ``max_tokens`` is the cap of a completion. Starting loads every verifier in the workers and raises
    :class:`UserError` for an unknown verifier, a wrong option, a function that cannot be used, or two parts
    of one name. Close it, or use it in ``with`` or ``async with``: then no process is left.
    """

    def __init__(self, recipe: RewardRecipe, max_tokens: int) -> None:
        parts = [load_source(part) for part in (*recipe.parts, *recipe.watch)]
        self._gold = recipe.gold
        self._max_tokens = max_tokens
        self._overlong: Length | None = None
        if recipe.overlong_buffer > 0:
            self._overlong = Length(_shape(recipe))
        self.names: tuple[str, ...] = distinct_names(recipe)
        """Names of the parts, in the order of the recipe, then ``overlong`` if it is on."""
        self._recipe = recipe
        self._terms = [Term(name, part.weight, part.when) for name, part in zip(self.names, recipe.parts, strict=False)]
        self._watched = {len(recipe.parts) + place: name for place, name in enumerate(watch_names(recipe))}
        self._jury = Jury(parts, workers=recipe.workers, timeout_s=recipe.timeout_s)
        shaping = [(1.0, self._overlong.lowest)] if self._overlong is not None else []
        weights = [part.weight for part in recipe.parts]
        self._floor = Floor([*zip(weights, self._jury.lowest, strict=False), *shaping])

    @property
    def per_group(self) -> bool:
        """Does a part see all rollouts of a prompt at once? Then none can be judged before its siblings."""
        return any(self._jury.per_group)

    async def score(self, prompt: Prompt, rollouts: Sequence[Rollout]) -> list[Verdict]:
        """The verdict of each rollout, in the order given. Nothing that a verifier does makes it raise."""
        if not rollouts:
            return []
        try:
            chosen = parts_for(self._recipe, prompt.columns)
        except UserError as error:
            return [Verdict(None, "verifier_error", message=str(error)) for _ in rollouts]
        wants_ids = self._jury.wants_ids
        judged = await asyncio.gather(
            *(
                self._jury.judge(index, [self._case(prompt, rollout, wants_ids[index]) for rollout in rollouts])
                for index in (*chosen, *self._watched)
            )
        )
        by_part, watched = judged[: len(chosen)], list(zip(*judged[len(chosen) :], strict=True))
        terms = [self._terms[index] for index in chosen]
        if self._overlong is not None:
            cases = [self._case(prompt, rollout) for rollout in rollouts]
            by_part.append([Finding(self._overlong(case), 0.0) for case in cases])
            terms.append(Term(OVERLONG, added=True))
            chosen = [*chosen, len(self._terms)]
        found = list(zip(*by_part, strict=True))
        for findings in found:
            self._floor.see(chosen, [finding.judgement for finding in findings])
        verdicts = [
            combine(
                terms,
                [finding.judgement for finding in findings],
                sum(finding.seconds for finding in findings),
                self._recipe.combine,
                self._floor.scores(chosen),
            )
            for findings in found
        ]
        names = tuple(self._watched.values())
        return (
            [_watched(v, names, findings) for v, findings in zip(verdicts, watched, strict=True)] if names else verdicts
        )

    def _case(self, prompt: Prompt, rollout: Rollout, wants_ids: bool = False) -> Case:
        return Case(
            completion=rollout.text,
            gold=column_at(prompt.columns, self._gold),
            prompt=prompt.text,
            messages=tuple(dict(message) for message in prompt.messages),
            columns=dict(prompt.columns),
            tokens=len(rollout),
            finish=rollout.finish,
            max_tokens=self._max_tokens,
            token_ids=rollout.token_ids if wants_ids else (),
        )

    def processes(self) -> list[int]:
        """Process ids of the workers."""
        return self._jury.processes()

    def close(self) -> None:
        """Kill the workers, hang up on services; verdicts still awaited fail. May be called twice."""
        self._jury.close()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Scorer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


def _shape(recipe: RewardRecipe) -> LengthOptions:
    return LengthOptions.model_validate({"buffer": recipe.overlong_buffer, "penalty": recipe.overlong_penalty})


def _watched(verdict: Verdict, names: Sequence[str], findings: Sequence[Finding]) -> Verdict:
    """The verdict with what the watched verifiers say in its parts; its reward and outcome stay what they are."""
    scores = {name: finding.judgement.score for name, finding in zip(names, findings, strict=True)}
    return replace(verdict, parts={**verdict.parts, **scores})


def distinct_names(recipe: RewardRecipe) -> tuple[str, ...]:
    """The names of the parts (`assay.recipe.derived.part_names`); a :class:`UserError` if two are the same."""
    names = part_names(recipe)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"two reward parts are called {twice[0]!r}: give one of them another name (reward.parts.name)")
    return names


def load_source(part: RewardPart | WatchPart) -> Part:
    """A part as workers load it, with its function's source; UserError for a file that cannot be read."""
    name = part.name or part.verifier
    if not is_function(part.verifier):
        return Part(name, part.verifier, part.options)
    verifier, source = read_source(part.verifier)
    return Part(name, verifier, part.options, source)
