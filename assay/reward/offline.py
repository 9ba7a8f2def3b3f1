"""Scoring a file of completions, whoever made them: lines in, verdicts out, in order, through the killable workers.

A line that cannot be read gets a ``verifier_error`` in its place, so that line n of the output is always line n
of the input; the command says so at the end, with file and line. Only a few lines are held at a time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from assay.errors import UserError
from assay.recipe.override import read_pair
from assay.recipe.schema import RewardPart
from assay.records import Verdict
from assay.reward.combine import Term, combine
from assay.reward.jury import Jury
from assay.reward.line import ScoredLine, read_line, readers
from assay.reward.scorer import load_source

_AHEAD = 32
"""Lines under way per worker: enough that one at its time limit keeps no other worker waiting for its turn to print."""


_TIMED_OUT = ("program_timeout", "verifier_timeout", "unverifiable")


@dataclass(frozen=True)
class Scored:
    """One line's verdict."""

    id: str
    verifier: str
    verdict: Verdict
    unreadable: str = ""
    """Why the line could not be read."""

    def to_json(self) -> str:
        """The line of output: ``id``, ``reward``, ``outcome``, ``answer``, ``message``."""
        verdict = self.verdict
        shown = {
            "id": self.id,
            "reward": verdict.reward,
            "outcome": verdict.outcome,
            "answer": verdict.answer,
            "message": verdict.message,
        }
        return json.dumps(shown)


@dataclass
class Tally:
    """What was scored so far, by verifier."""

    count: int = 0
    rewarded: int = 0
    reward: float = 0.0
    seconds: float = 0.0
    timed_out: float = 0.0
    """Of the seconds, those of programs and verifiers that were stopped at their time limit."""
    outcomes: dict[str, int] = field(default_factory=dict)

    def add(self, verdict: Verdict) -> None:
        """Count one more verdict."""
        self.count += 1
        self.seconds += verdict.seconds
        if verdict.outcome in _TIMED_OUT:
            self.timed_out += verdict.seconds
        self.outcomes[verdict.outcome] = self.outcomes.get(verdict.outcome, 0) + 1
        if verdict.reward is not None:
            self.rewarded += 1
            self.reward += verdict.reward


@dataclass(frozen=True)
class Columns:
    """Names of the columns in files that call them otherwise."""

    completion: str = "completion"
    gold: str = "gold"


def parse_lines(lines: Iterable[str | bytes], name: str, columns: Columns) -> Iterator[tuple[str, Any]]:
    """(file:line, the object, or the UserError of a line that is none); blank lines are passed over."""
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8") if isinstance(line, bytes) else line
            if not text.strip():
                continue
            row = json.loads(text)
        except UnicodeDecodeError as error:
            yield where, UserError(f"{where}: not UTF-8 text (byte {error.start + 1}): save it as UTF-8")
            continue
        except (ValueError, RecursionError) as error:
            yield where, UserError(f"{where}: not valid JSON ({error}): mend or remove this line")
            continue
        if not isinstance(row, dict):
            yield where, UserError(f"{where}: a line must be an object with 'completion', not {type(row).__name__}")
            continue
        renamed = {"completion": columns.completion, "gold": columns.gold}
        yield where, {**row, **{ours: row[theirs] for ours, theirs in renamed.items() if theirs in row}}


def part_of(verifier: str | None, options: Mapping[str, Any]) -> RewardPart:
    """The reward part that judges the lines; UserError for options without a verifier, or an unknown one."""
    if verifier is None:
        if options:
            raise UserError(f"option {next(iter(options))!r} belongs to a verifier: name it with --verifier")
        return RewardPart(verifier="row")
    if not options and verifier in readers:
        return RewardPart(verifier="row", options={"kind": verifier})
    return RewardPart(verifier=verifier, options=dict(options))


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """``key=value`` words as a verifier's options, the values YAML; UserError for another form.

    >>> read_settings(["extract=boxed", "tolerance=1e-3"])
    {'extract': 'boxed', 'tolerance': 0.001}
    """
    return dict(read_pair(word, "verifier option", "extract=boxed") for word in words)


async def score_lines(
    lines: Iterable[str | bytes],
    name: str,
    part: RewardPart,
    *,
    workers: int = 2,
    timeout_s: float = 30.0,
    columns: Columns | None = None,
) -> AsyncIterator[Scored]:
    """The verdict of every line, in order. ``name`` is the file's, for messages.

    Raises :class:`UserError` before anything is read when the verifier cannot be loaded.
    """
    known = _known(part)
    jury = Jury([load_source(part)], workers=workers, timeout_s=timeout_s)
    waiting: deque[asyncio.Task[Scored]] = deque()
    try:
        for where, row in parse_lines(lines, name, columns or Columns()):
            waiting.append(asyncio.create_task(_score(jury, where, row, known)))
            while waiting and (waiting[0].done() or len(waiting) >= _AHEAD * workers):
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.to_thread(jury.close)


def _known(part: RewardPart) -> str | None:
    """The kind that every line is read as; ``None``: its own."""
    return part.options.get("kind") if part.verifier == "row" else part.verifier


async def _score(jury: Jury, where: str, row: Any, kind: str | None) -> Scored:
    try:
        if isinstance(row, UserError):
            raise row
        line: ScoredLine = read_line(row, where, kind)
    except UserError as error:
        name = str(row.get("id", where)) if isinstance(row, dict) else where
        return Scored(name, "", Verdict(None, "verifier_error", message=str(error)), str(error))
    [finding] = await jury.judge(0, [line.case])
    verdict = combine([Term(line.verifier)], [finding.judgement], finding.seconds)
    message = verdict.message.removeprefix(f"{line.verifier}: ")
    return Scored(line.id, line.verifier, replace(verdict, message=message))


@dataclass
class Summary:
    """What a whole file gave: counts by verifier, the first unreadable line, the time."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def add(self, scored: Scored) -> None:
        """Count one more line."""
        if scored.unreadable:
            self.unreadable.append(scored.unreadable)
        else:
            self.tallies.setdefault(scored.verifier, Tally()).add(scored.verdict)

    @property
    def count(self) -> int:
        """Lines judged."""
        return sum(tally.count for tally in self.tallies.values())

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self.began
