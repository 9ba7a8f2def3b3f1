"""A profile as tables: where a step's seconds go, how near each phase is to the limit, and its costliest operators."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from assay.track.numbers import number

SECONDS = 5.0
"""How much of a phase that waits (generation) is recorded in a step."""
WIDTH = 100
"""Columns of ``table.txt``."""


def profile_tables(profile: Mapping[str, Any]) -> RenderableType:
    """Draw what :meth:`assay.track.profile.Profiler.finish` returned."""
    return Group(_phases(profile), Text(), _operators(profile), *_notes(profile))


def profile_text(profile: Mapping[str, Any]) -> str:
    """The same as plain text, ``WIDTH`` columns wide."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(profile_tables(profile))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def spans(steps: Sequence[int]) -> str:
    """Name steps in few words.

    >>> spans([4, 5, 6]), spans([2]), spans([])
    ('steps 4 to 6', 'step 2', 'no step')
    """
    if not steps:
        return "no step"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {min(steps)} to {max(steps)}"


def _phases(profile: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("phase", style="cyan", no_wrap=True)
    for heading in ("s a step", "of the step", "tokens/s", "of the machine's limit"):
        table.add_column(heading, justify="right", no_wrap=True)
    whole, claimed = profile["step_seconds"], 0.0
    for name, phase in profile["phases"].items():
        claimed += phase["seconds"]
        table.add_row(
            name,
            f"{phase['seconds']:.2f}",
            _percent(phase["share"]),
            number(phase["tokens_s"], "tokens/s") if "tokens_s" in phase else "",
            _percent(phase["limit_share"]) if "limit_share" in phase else "",
        )
    if whole > claimed:
        table.add_row("the rest", f"{whole - claimed:.2f}", _percent((whole - claimed) / whole), "", "", style="dim")
    table.add_row("step", f"{whole:.2f}", "", "", "", style="bold")
    return table


def _operators(profile: Mapping[str, Any]) -> Table:
    """The costliest operators of each phase that was recorded, and the time in which no operator ran."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", expand=True)
    table.add_column("phase", style="cyan", no_wrap=True)
    table.add_column("costliest operators", no_wrap=True, max_width=28)
    for heading in ("s", "of it", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("shapes", style="dim", no_wrap=True, ratio=1)
    for name, phase in profile["phases"].items():
        recorded, labels = phase["recorded_seconds"], [name, *[""] * len(phase["operators"])]
        if not recorded:
            continue
        for label, op in zip(labels, phase["operators"], strict=False):
            cells = (f"{op['seconds']:.3f}", _percent(op["seconds"] / recorded), f"{op['calls']:,}", op["shapes"])
            table.add_row(label, op["name"].removeprefix("aten::"), *cells)
        idle = recorded - phase["operator_seconds"]
        if idle > 0:
            cells = (f"{idle:.3f}", _percent(idle / recorded), "", "")
            table.add_row("", "no operator: Python, waiting", *cells, style="dim")
    return table


def _notes(profile: Mapping[str, Any]) -> list[Text]:
    recorded, timed = profile["recorded"], profile["timed"]
    slowed = ", which recording slows" if timed and set(timed) <= set(recorded) else ""
    lines = [
        f"Phases are timed in {spans(timed)}{slowed}. Operators, their callees left out, are of {spans(recorded)}, in "
        f"generation of the first {SECONDS:.0f} s; beside each the shapes that cost most."
    ]
    if profile["trace"]:
        lines.append(f"Trace: {profile['trace']} (chrome://tracing or ui.perfetto.dev read it)")
    return [Text(), *(Text(line, "dim") for line in lines)]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
