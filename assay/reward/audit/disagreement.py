"""Completions on which verifiers disagree: one of them is wrong, and a person can tell which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.recipe.schema import RewardPart
from assay.records import Verdict
from assay.reward.offline import Columns, score_lines

_RIGHT = 0.5


@dataclass(frozen=True)
class Disagreement:
    """One completion and what each verifier said of it."""

    id: str
    verdicts: tuple[Verdict, ...]
    """In the order of the verifiers."""


@dataclass(frozen=True)
class Comparison:
    """What several verifiers said of a file of completions."""

    verifiers: tuple[str, ...]
    lines: int
    accepted: tuple[int, ...]
    """Per verifier, how many it accepted."""
    disagreements: tuple[Disagreement, ...]


async def compare(
    lines: Sequence[bytes],
    name: str,
    parts: Sequence[RewardPart],
    *,
    columns: Columns | None = None,
    workers: int = 2,
    timeout_s: float = 30.0,
) -> Comparison:
    """Judge every line by every part; a verdict without a reward agrees with nobody but its like."""
    found: list[list[tuple[str, Verdict]]] = []
    for part in parts:
        scored = score_lines(lines, name, part, workers=workers, timeout_s=timeout_s, columns=columns)
        found.append([(one.id, one.verdict) async for one in scored])
    rows = list(zip(*found, strict=True))
    apart = [
        Disagreement(row[0][0], tuple(verdict for _, verdict in row))
        for row in rows
        if len({_accepts(verdict) for _, verdict in row}) > 1
    ]
    accepted = tuple(sum(_accepts(verdict) is True for _, verdict in column) for column in found)
    return Comparison(tuple(part.verifier for part in parts), len(rows), accepted, tuple(apart))


def _accepts(verdict: Verdict) -> bool | None:
    return None if verdict.reward is None else verdict.reward >= _RIGHT


def texts(lines: Iterable[bytes], limit: int) -> list[bytes]:
    """The first ``limit`` lines that are not blank."""
    chosen: list[bytes] = []
    for line in lines:
        if line.strip():
            chosen.append(line)
        if len(chosen) == limit:
            break
    return chosen
