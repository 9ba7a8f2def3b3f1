"""The command `assay score`: verdicts to standard output, what they came to to standard error."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from assay.errors import UserError
from assay.reward.offline import Columns, Summary, part_of, read_settings, score_lines

_LONG = 1.0
"""Seconds at time limits that are worth a word."""
_SHOWN = 10
"""Unreadable lines named in full."""


def score(
    file: str,
    verifier: str | None,
    settings: Sequence[str],
    *,
    workers: int,
    timeout_s: float,
    columns: Columns,
) -> Summary:
    """Score a file (``-``: standard input) and print a verdict a line.

    Raises :class:`UserError` for a file that cannot be read or a verifier that cannot be loaded, and at the end,
    when every other line has been judged, for lines that cannot be read.
    """
    part = part_of(verifier, read_settings(settings))
    summary = Summary()

    async def run(lines: Iterable[bytes], name: str) -> None:
        found = score_lines(lines, name, part, workers=workers, timeout_s=timeout_s, columns=columns)
        async for scored in found:
            print(scored.to_json(), flush=True)
            summary.add(scored)

    try:
        opened = nullcontext(sys.stdin.buffer) if file == "-" else Path(file).expanduser().open("rb")
    except OSError as error:
        raise UserError(
            f"{file}: cannot be read: {error.strerror}: give a .jsonl file, or - for standard input"
        ) from None
    with opened as lines:
        asyncio.run(run(lines, "stdin" if file == "-" else file))
    console = Console(stderr=True, highlight=False)
    if summary.tallies:
        console.print(summary_table(summary))
        for line in time_limits(summary, workers):
            console.print(line, soft_wrap=True, markup=False)
    if summary.unreadable:
        for line in summary.unreadable[1:_SHOWN]:
            console.print(line, soft_wrap=True, markup=False)
        more = f" (and {len(summary.unreadable) - 1} more lines)" if len(summary.unreadable) > 1 else ""
        raise UserError(f"{summary.unreadable[0]}{more}")
    return summary


def time_limits(summary: Summary, workers: int) -> list[str]:
    """Where most of a verifier's time went to what was stopped at its time limit: how much, and what shortens it."""
    return [
        f"{name}: {tally.timed_out:.1f} of {tally.seconds:.1f} s went to what was stopped at its time limit; "
        f"--workers {2 * workers} runs more at a time, a lower timeout_s of the tests stops it earlier"
        for name, tally in sorted(summary.tallies.items())
        if tally.timed_out > max(tally.seconds / 2, _LONG)
    ]


def summary_table(summary: Summary) -> RenderableType:
    """A row per verifier: lines, mean reward, verdicts without one, time per verdict; above it the whole."""
    rate = summary.count / summary.seconds if summary.seconds else 0.0
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    title = f"{summary.count} lines in {summary.seconds:.1f} s: {rate:.0f} lines/s"
    table.add_column("verifier")
    for heading in ("lines", "mean reward", "no reward", "ms per verdict"):
        table.add_column(heading, justify="right")
    table.add_column("outcomes")
    for name, tally in sorted(summary.tallies.items()):
        mean = f"{tally.reward / tally.rewarded:.3f}" if tally.rewarded else "-"
        outcomes = ", ".join(f"{key} {count}" for key, count in sorted(tally.outcomes.items()))
        milliseconds = f"{1000 * tally.seconds / tally.count:.2f}"
        table.add_row(name, str(tally.count), mean, str(tally.count - tally.rewarded), milliseconds, outcomes)
    return Group(Text(title, "bold"), table)
