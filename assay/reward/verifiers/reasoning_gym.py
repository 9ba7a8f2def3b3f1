"""``reasoning_gym``: the task's own ``score_answer`` on the extracted answer (Stojanovski et al. 2025).

The prompt's columns say which task: ``reasoning_gym_task`` (its name), or ``data_source``
(``reasoning_gym:NAME``), with ``task_options`` where it was not built with its defaults. The generated item
(``question``, ``answer``, ``metadata``) is the column ``entry``, or those three columns themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.errors import MissingExtra, nearest
from assay.recipe.schema import Section
from assay.reward.extraction import Place, extract, place_answer
from assay.reward.verifier import Case, Judgement, Verifier, no_answer, register, verifier_error

Score = Callable[[str, Mapping[str, Any]], float]


class ReasoningGymOptions(Section):
    """Options of ``reasoning_gym``."""

    extract: Place = "tagged"
    """Where the answer stands: `tagged`, `boxed`, `last_line` or `whole` completion."""
    tag: str = "answer"
    """The tag that `tagged` reads."""
    partial: bool = False
    """Keep the task's partial credit. Most tasks give some to any text that contains the answer (`13` for 3 earns
    half), so by default only full marks are a score."""


@register("reasoning_gym", ReasoningGymOptions)
def reasoning_gym(options: ReasoningGymOptions) -> Verifier:
    """Build the verifier; raises :class:`MissingExtra` without the package."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise MissingExtra("the reasoning_gym verifier", "reasoning-gym", "gym") from None
    return ReasoningGym(options, DATASETS)


@dataclass(frozen=True)
class ReasoningGym:
    """Score 1 where the task gives full marks, else 0; with ``partial`` the task's own score in [0, 1]."""

    options: ReasoningGymOptions
    tasks: Mapping[str, tuple[Any, Any]]
    """Name -> the task's class and its config's class."""
    scores: dict[str, Score] = field(default_factory=dict)
    """Those made so far: a task is built once per worker."""

    def __call__(self, case: Case) -> Judgement:
        """Extract and score; missing columns and an unknown task are the data's fault."""
        name = _task_name(case.columns)
        entry = case.columns.get("entry", case.columns)
        if name is None or not isinstance(entry, Mapping) or not {"question", "answer", "metadata"} <= set(entry):
            return verifier_error("the row lacks the columns of a reasoning_gym task: its name, and its entry")
        if name not in self.tasks:
            return verifier_error(f"reasoning_gym has no task {name!r}{nearest(name, self.tasks)}")
        found = extract(case, self.options.extract, self.options.tag)
        if found.text is None:
            return no_answer(found.why)
        score = self._score(name, case.columns.get("task_options") or {})
        given = float(score(found.text, entry))
        if self.options.partial:
            return Judgement(given, "scored", found.text)
        return Judgement(float(given >= 1), "scored", found.text, f"{given:.2g} by the task" if 0 < given < 1 else "")

    def _score(self, name: str, task_options: Mapping[str, Any]) -> Score:
        key = json.dumps([name, task_options], sort_keys=True, default=str)
        if key not in self.scores:
            task, config = self.tasks[name]
            self.scores[key] = task(config=config(**task_options)).score_answer
        return self.scores[key]

    def canary(self, gold: Any) -> str:
        """The gold answer where the verifier looks for it."""
        return place_answer(str(gold), self.options.extract, self.options.tag)


def _task_name(columns: Mapping[str, Any]) -> str | None:
    """Which task a row comes from.

    >>> _task_name({"data_source": "reasoning_gym:gcd"}), _task_name({"reasoning_gym_task": "lcm"})
    ('gcd', 'lcm')
    """
    name, source = columns.get("reasoning_gym_task"), columns.get("data_source")
    if isinstance(name, str):
        return name
    return source.partition(":")[2] if isinstance(source, str) and source.startswith("reasoning_gym:") else None
