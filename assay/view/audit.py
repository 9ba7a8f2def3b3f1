"""The command `assay audit`: a verifier is attacked, and what it let through is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from assay.data.sources import read_rows
from assay.errors import UserError
from assay.recipe.schema import RewardPart
from assay.reward.audit.disagreement import Comparison, compare, texts
from assay.reward.audit.examination import Audit, Example, examine
from assay.reward.audit.subject import dress_of, subjects
from assay.reward.function import is_function
from assay.reward.offline import Columns, part_of, read_settings
from assay.reward.verifier import verifiers
from assay.track.text import one_line

_DISAGREEMENTS = 20
"""Disagreements shown in full."""


@dataclass(frozen=True)
class Thresholds:
    """The shares of failures that are still accepted."""

    false_accept: float = 0.0
    false_reject: float = 0.02


def audit(
    verifier: str,
    data: str,
    settings: Sequence[str],
    console: Console,
    *,
    limit: int,
    gold: str,
    form: str | None,
    thresholds: Thresholds,
    workers: int,
    timeout_s: float,
) -> bool:
    """Attack the verifier with the rows of a data spec and print the result; is it within the thresholds?

    Raises :class:`UserError` for an unknown verifier or option, data that cannot be read, and rows of which
    none has a gold answer.
    """
    options = read_settings(settings)
    if not is_function(verifier):
        verifiers[verifier](options)
    dress = dress_of(verifier, options, form)
    rows = list(islice(subjects(read_rows(data), verifier, dress, gold), limit))
    if not rows:
        raise UserError(f"{data}: no row has a right answer in the column {gold!r}: name it with --gold")
    part = RewardPart(verifier=verifier, options=options)
    found = asyncio.run(examine(rows, part, workers=workers, timeout_s=timeout_s))
    console.print(audit_table(found, verifier))
    for result in found.results:
        for example in result.examples:
            console.print(_example(result.attack.name, result.attack.expect, example), soft_wrap=True)
    accepts, rejects = found.false_accepts, found.false_rejects
    sound = accepts <= thresholds.false_accept and rejects <= thresholds.false_reject
    console.print(
        f"[bold]{'sound' if sound else 'not sound'}[/]: false accepts {accepts:.2%} (at most "
        f"{thresholds.false_accept:.2%}), false rejects {rejects:.2%} (at most {thresholds.false_reject:.2%})"
    )
    return sound


def audit_table(found: Audit, verifier: str) -> RenderableType:
    """A row per attack: what was expected, how often it was tried, how often the verifier failed."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    title = f"{verifier}: {found.rows} rows, {sum(result.tried for result in found.results)} completions"
    table.add_column("attack")
    table.add_column("must")
    for heading in ("tried", "failed", "rate", "no verdict"):
        table.add_column(heading, justify="right")
    for result in sorted(found.results, key=lambda result: (result.attack.expect, -result.rate)):
        style = "red" if result.failed else ""
        cells = (str(result.tried), str(result.failed), f"{result.rate:.1%}", str(result.without_verdict or "-"))
        table.add_row(result.attack.name, result.attack.expect, *cells, style=style)
    return Group(Text(title, "bold"), table)


def _example(name: str, expect: str, example: Example) -> str:
    judgement = example.judgement
    verdict = "accepted" if expect == "reject" else f"rejected ({judgement.outcome})"
    why = f": {judgement.message}" if judgement.message else ""
    said = f"{verdict} {one_line(example.completion, 120)!r}, gold {one_line(example.gold, 40)!r}{one_line(why, 120)}"
    return f"  [bold]{escape(name)}[/] {escape(example.source)}: {escape(said)}"


def disagree(
    verifier: str,
    others: Sequence[str],
    file: str,
    settings: Sequence[str],
    console: Console,
    *,
    limit: int,
    columns: Columns,
    workers: int,
    timeout_s: float,
) -> None:
    """Print the completions of a file on which verifiers disagree."""
    against = [other for other in others if other != verifier]
    parts = [part_of(verifier, read_settings(settings)), *(part_of(other, {}) for other in against)]
    try:
        with Path(file).expanduser().open("rb") as opened:
            lines = texts(opened, limit)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}: give a .jsonl file of completions") from None
    found = asyncio.run(compare(lines, file, parts, columns=columns, workers=workers, timeout_s=timeout_s))
    console.print(disagreement_table(found, [verifier, *against]))


def disagreement_table(found: Comparison, names: Sequence[str]) -> RenderableType:
    """A row per disagreement, a column per verifier: its reward and the answer that it read."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    counts = ", ".join(f"{name} accepts {count}" for name, count in zip(names, found.accepted, strict=True))
    title = f"{len(found.disagreements)} disagreements on {found.lines} completions ({counts})"
    table.add_column("line")
    for name in names:
        table.add_column(name)
    for one in found.disagreements[:_DISAGREEMENTS]:
        cells = [
            f"{'-' if verdict.reward is None else format(verdict.reward, 'g')} "
            f"{escape(one_line(verdict.answer or verdict.message, 50))}"
            for verdict in one.verdicts
        ]
        table.add_row(escape(one.id), *cells)
    return Group(Text(title, "bold"), table)
