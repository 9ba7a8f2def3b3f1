"""What a finished run comes to, for the terminal: before and after, answers then and now, where the time went."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from assay.records import Rollout
from assay.track.alarm_log import read_alarms
from assay.track.numbers import duration, number
from assay.track.profile_table import profile_tables
from assay.track.rollouts import LoggedRollout, logged_steps, read
from assay.track.text import one_line, visible

Estimates = Mapping[str, Mapping[str, float]]
"""Estimates by name (``greedy``, ``mean_at_8``), each with value, low, high and n."""


def estimates_table(columns: Mapping[str, Estimates | None]) -> Table:
    """A row per estimate, a column per evaluation, each with its 95 % interval."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("held-out accuracy")
    for heading in columns:
        table.add_column(heading, justify="right")
    names = list(dict.fromkeys(name for found in columns.values() for name in found or {}))
    for name in names:
        cells = [_estimate((found or {}).get(name)) for found in columns.values()]
        table.add_row(name.replace("_at_", "@"), *cells)
    return table


def _estimate(found: Mapping[str, float] | None) -> Text:
    if found is None or found["value"] is None:  # nothing was asked, or no verdict was valid
        return Text("-", "dim")
    cell = Text(f"{100 * found['value']:.1f} %", "bold")
    return cell.append(f"  ({100 * found['low']:.0f} to {100 * found['high']:.0f})", "dim")


def outcome_panel(run: Path, report: Path, answers: int = 3) -> RenderableType:
    """The end of a run: the table of before and after, the same problems answered then and now, seconds per phase."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    parts: list[RenderableType] = []
    before, after = summary.get("before"), summary.get("after")
    if before or after:
        prompts = (after or before)["greedy"]["n"]
        parts += [
            estimates_table({"before": before, "after": after}),
            Text(f"{prompts} held-out prompts", "dim"),
            Text(),
        ]
    pairs = _then_and_now(run, answers)
    if pairs:
        parts += [_answers(pairs), Text()]
    for alarm in read_alarms(run / "alarms.jsonl"):
        parts += [Text(f"{alarm.name.replace('_', ' ')} since step {alarm.since}: {alarm.saw}", "yellow")]
    parts += [_times(summary), Text(f"report  {report}"), Text(f"model   {run / 'model'}")]
    if summary.get("profile"):
        parts += [Text(), profile_tables(summary["profile"])]
    return Panel(Group(*parts), title=f"{run.name}: {summary['steps']} steps", title_align="left", padding=(1, 2))


def _then_and_now(run: Path, count: int) -> list[tuple[LoggedRollout, LoggedRollout]]:
    """Greedy answers to the same prompts in the first and the last evaluation, those that changed first."""
    steps = logged_steps(run, "eval")
    if len(steps) < 2:
        return []
    then, now = ({r.prompt_id: r for r in read(run, s, "eval") if r.index == 0} for s in (steps[0], steps[-1]))
    pairs = [(row, now[key]) for key, row in then.items() if key in now]
    pairs.sort(key=lambda pair: pair[0].completion == pair[1].completion)
    return pairs[:count]


def _answers(pairs: Sequence[tuple[LoggedRollout, LoggedRollout]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("greedy answers", "before", "after"):
        table.add_column(heading, ratio=1, overflow="fold")
    for then, now in pairs:
        table.add_row(Text(one_line(then.question, 120)), _marked(then), _marked(now))
    return table


def _marked(row: LoggedRollout) -> Text:
    mark = Text("right ", "green") if row.right else Text("wrong ", "red")
    return mark.append(one_line(row.completion, 160), "default")


def _times(summary: Mapping[str, Any]) -> Table:
    """Seconds of each phase, and of those that handle tokens how fast that was."""
    seconds = {k: v for k, v in summary["seconds"].items() if k != "step" and v >= 0.05}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("where the time went")
    for name in seconds:
        table.add_column(name, justify="right")
    table.add_row("", *(duration(v) for v in seconds.values()))
    speed = summary.get("speed", {})
    for words, form in (("tokens/s", _tokens), ("of the machine's limit", _share)):
        if speed:
            table.add_row(words, *(form(speed.get(name)) for name in seconds))
    tokens = summary["tokens"]
    spent = ", ".join(f"{int(v):,} tokens {k}" for k, v in tokens.items())
    table.caption = spent
    table.caption_justify = "left"
    return table


def _tokens(speed: Mapping[str, float] | None) -> str:
    return "" if speed is None else number(speed["tokens_s"], "tokens/s")


def _share(speed: Mapping[str, float] | None) -> str:
    return "" if speed is None else f"{100 * speed['limit_share']:.0f} %"


def answers_panel(prompt: str, rollouts: Sequence[Rollout]) -> RenderableType:
    """Sampled answers to one prompt, each with its length and mean log-prob per token."""
    parts: list[RenderableType] = [Text(visible(prompt), "bold")]
    for rollout in rollouts:
        mean = sum(rollout.sampler_logprobs) / max(1, len(rollout))
        note = f"[{rollout.index}] {len(rollout)} tokens, {mean:.2f} nats a token, {rollout.finish}"
        parts += [Text(), Text(note, "dim"), Text(visible(rollout.text))]
    return Group(*parts)
