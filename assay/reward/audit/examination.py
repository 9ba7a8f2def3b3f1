"""All attacks on all rows through the workers -> what was accepted and rejected, with examples."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from assay.recipe.schema import RewardPart
from assay.reward.audit.attack import Attack, Expect, attacks
from assay.reward.audit.subject import Subject
from assay.reward.jury import Jury
from assay.reward.scorer import load_source
from assay.reward.verifier import Judgement

_KEPT = 3
"""Examples kept of each attack."""
_RIGHT = 0.5
"""From this score on a completion counts as accepted: what accuracy is counted by."""


@dataclass(frozen=True)
class Example:
    """A completion that got the wrong verdict."""

    source: str
    gold: str
    completion: str
    judgement: Judgement


@dataclass
class Result:
    """What became of one attack."""

    attack: Attack
    tried: int = 0
    failed: int = 0
    """Accepted where it had to be rejected, or the reverse."""
    without_verdict: int = 0
    """Of those tried: the verifier gave no reward. A rejection, and where it had to accept a failure."""
    examples: list[Example] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Share of failures."""
        return self.failed / self.tried if self.tried else 0.0

    def add(self, subject: Subject, completion: str, judgement: Judgement) -> None:
        """Count one verdict."""
        self.tried += 1
        self.without_verdict += judgement.score is None
        accepted = judgement.score is not None and judgement.score >= _RIGHT
        if accepted != (self.attack.expect == "accept"):
            self.failed += 1
            if len(self.examples) < _KEPT:
                self.examples.append(Example(subject.source, subject.gold, completion, judgement))


@dataclass(frozen=True)
class Audit:
    """What became of every attack that applied."""

    results: Sequence[Result]
    rows: int

    def rate(self, expect: Expect) -> float:
        """The share of failures of all attempts that had to be accepted (false rejects), or rejected."""
        chosen = [result for result in self.results if result.attack.expect == expect]
        tried = sum(result.tried for result in chosen)
        return sum(result.failed for result in chosen) / tried if tried else 0.0

    @property
    def false_accepts(self) -> float:
        """Share of wrong completions that were accepted."""
        return self.rate("reject")

    @property
    def false_rejects(self) -> float:
        """Share of right completions that were rejected."""
        return self.rate("accept")


async def examine(subjects: Iterable[Subject], part: RewardPart, *, workers: int = 2, timeout_s: float = 30.0) -> Audit:
    """Try every attack on every row. Raises :class:`UserError` when the verifier cannot be loaded."""
    results = {name: Result(attacks[name]) for name in attacks}
    rows = 0
    jury = Jury([load_source(part)], workers=workers, timeout_s=timeout_s)
    try:
        for subject in subjects:
            rows += 1
            tries = [(name, text) for name in attacks for text in attacks[name].completions(subject)]
            cases = [replace(subject.case, completion=text, tokens=max(1, len(text.split()))) for _, text in tries]
            found = await asyncio.gather(*(jury.judge(0, [case]) for case in cases))
            for (name, text), [finding] in zip(tries, found, strict=True):
                results[name].add(subject, text, finding.judgement)
    finally:
        await asyncio.to_thread(jury.close)
    return Audit([result for result in results.values() if result.tried], rows)
