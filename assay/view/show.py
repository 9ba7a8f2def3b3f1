"""``assay show``: read a run's completions, verdicts and advantages in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import rich.console
from rich.console import Group as Stack
from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text

from assay.errors import UserError, nearest
from assay.loop.batch_file import read_batch
from assay.loop.folder import RunFolder
from assay.records import Outcome
from assay.track.rollouts import LoggedRollout, logged_steps, read, rows_of
from assay.track.text import one_line, visible
from assay.view.run_record import locate, open_run

_SORTS: dict[str, Callable[[LoggedRollout], Any]] = {
    "step": lambda r: -r.step,
    "reward": lambda r: -r.reward if r.reward is not None else float("inf"),
    "length": lambda r: -r.tokens,
}


PHASES: Mapping[str, str] = {
    "train": "no completions were logged (track.rollouts was off, or no step was finished)",
    "eval": "no completions of an evaluation were logged (track.rollouts was off, or nothing is held out)",
    "unused": "no completions were set aside (that is dynamic sampling's doing, and track.rollouts must be on)",
    "replaced": "no completions were sampled anew (that is a broken verifier's doing, and track.rollouts must be on)",
    "failed": "no batch stopped this run",
}
"""By name, what it means that a run has none of them. ``failed`` is the batch that stopped the run."""


@dataclass(frozen=True)
class Selection:
    """Which completions are wanted, and in what order."""

    step: int | None = None
    """Only this step."""
    phase: str = "train"
    """Which completions of a step: see `PHASES`."""
    outcome: str | None = None
    """Only verdicts with this outcome."""
    prompt: str | None = None
    """Only prompts whose id begins so."""
    right: bool | None = None
    """Only right ones (true) or only wrong ones (false)."""
    sort: str = "step"
    """``step``: newest first; ``reward``: highest first; ``length``: longest first."""
    limit: int = 8
    """At most so many; 0: all."""

    def __post_init__(self) -> None:
        if self.sort not in _SORTS:
            raise UserError(f"--sort {self.sort}: not known{nearest(self.sort, _SORTS)}; choose {', '.join(_SORTS)}")
        if self.phase not in PHASES:
            raise UserError(f"--phase {self.phase}: not known{nearest(self.phase, PHASES)}; choose {', '.join(PHASES)}")
        outcomes = get_args(Outcome)
        if self.outcome is not None and self.outcome not in outcomes:
            near = nearest(self.outcome, outcomes)
            raise UserError(f"--outcome {self.outcome}: not known{near}; choose {', '.join(outcomes)}")
        if self.limit < 0:
            raise UserError(f"--limit {self.limit}: must be 0 (all) or more")

    def wants(self, row: LoggedRollout) -> bool:
        """Does the row pass every filter?"""
        return (
            (self.outcome is None or row.outcome == self.outcome)
            and (self.prompt is None or row.prompt_id.startswith(self.prompt))
            and (self.right is None or row.right == self.right)
        )


def select(run: Path, selection: Selection) -> tuple[list[LoggedRollout], int]:
    """Return the wanted rollouts of a run folder, and how many were looked at.

    Sorted by step, the newest files are read first and no more than are needed. Ties keep the order of the
    log.

    Raises :class:`UserError` for a step that was not logged, or when nothing was.
    """
    steps = _steps(run, selection.phase)
    if not steps:
        raise UserError(f"{run}: {PHASES[selection.phase]}")
    chosen = list(reversed(steps)) if selection.step is None else [selection.step]
    found: list[LoggedRollout] = []
    seen = 0
    for step in chosen:
        rows = _failed(run, step) if selection.phase == "failed" else read(run, step, selection.phase)
        seen += len(rows)
        found += [row for row in rows if selection.wants(row)]
        if selection.sort == "step" and 0 < selection.limit <= len(found):
            break
    found.sort(key=_SORTS[selection.sort])
    return found[: selection.limit or None], seen


def _steps(run: Path, phase: str) -> list[int]:
    """The steps that have completions of ``phase``, in order."""
    if phase != "failed":
        return logged_steps(run, phase)
    file = RunFolder(run).failed_batch
    return [read_batch(file)[0]] if file.exists() else []


def _failed(run: Path, wanted: int) -> list[LoggedRollout]:
    """The rollouts of the batch that stopped the run at step ``wanted``."""
    step, groups = read_batch(RunFolder(run).failed_batch)
    if step != wanted:
        raise UserError(f"{run}: stopped at step {step}, not {wanted}")
    gold = open_run(run).recipe.get("reward", {}).get("gold", "answer")
    return rows_of(step, groups, phase="failed", gold=gold)


def show(run: str | Path, selection: Selection, console: rich.console.Console, folder: str | Path = "runs") -> None:
    """Print the wanted completions of a run, those of one prompt and step in one panel.

    ``run`` is a path, or a name under ``folder``. Completions are printed as text: no markup or escape code
    acts.

    Raises :class:`UserError` for a run, step, outcome or order that does not exist.
    """
    path = locate(run, folder)
    rows, seen = select(path, selection)
    for group in _neighbours(rows):
        console.print(_panel(group))
    shown = f"{len(rows)} of the {seen} completions looked at" if rows else f"none of {seen} completions matches"
    hint = "  --limit N shows more" if rows and len(rows) == selection.limit else ""
    console.print(Text(f"{path.name}: {shown}{hint}", style="dim"))


def show_alarms(run: str | Path, console: rich.console.Console, folder: str | Path = "runs") -> None:
    """Print what was raised in a run, each alarm with completions that show it. Raises :class:`UserError` as `show`."""
    path = locate(run, folder)
    found = open_run(path).alarms
    for alarm in found:
        body = [Text(alarm.saw, style="bold"), Text(alarm.meaning), Text(f"Try: {alarm.advice}")]
        for example in alarm.examples:
            reward = "no reward" if example.reward is None else f"reward {example.reward:.3g}"
            body += [
                Text(),
                Text(f"{reward} · {example.tokens} tokens · {one_line(example.question, 120)}", style="dim"),
            ]
            body.append(Text(visible(example.completion)))
        title = Text(f"{alarm.name.replace('_', ' ')} · since step {alarm.since}, raised at {alarm.step}")
        console.print(Panel(Stack(*body), title=title, title_align="left", border_style="yellow"))
    console.print(Text(f"{path.name}: {len(found) or 'no'} alarm{'' if len(found) == 1 else 's'}", style="dim"))


def _neighbours(rows: Sequence[LoggedRollout]) -> Iterator[list[LoggedRollout]]:
    """Split the rows where step or prompt changes, the order kept."""
    for _, group in groupby(rows, key=lambda r: (r.step, r.prompt_id, r.admission)):
        yield list(group)


def _panel(rows: Sequence[LoggedRollout]) -> Panel:
    """One prompt's completions in a frame."""
    first = rows[0]
    phase = "" if first.phase == "train" else f" · {first.phase}"
    title = Text(f"step {first.step}{phase} · {one_line(first.prompt_id, 24)} · {first.kind.replace('_', ' ')}")
    head = Text().append(visible(first.question.strip()), style="bold")
    if first.gold is not None:
        head.append(f"\nwanted {one_line(first.gold, 200)}", style="dim")
    body = [part for row in rows for part in (Rule(style="dim"), _verdict(row), Text(visible(row.completion)))]
    return Panel(Stack(head, *body), title=title, title_align="left", border_style="dim")


def _verdict(row: LoggedRollout) -> Text:
    """Right or wrong, reward, advantage, length, answer and parts; below them the verifier's words."""
    mark, style = ("✓", "green") if row.right else ("✗", "red")
    line = Text().append(f"{mark} #{row.index} ", style=style)
    line.append("no reward" if row.reward is None else f"reward {row.reward:.3g}", style=f"bold {style}")
    facts = [] if row.advantage is None else [f"advantage {row.advantage:+.3f}"]
    facts += [f"{row.tokens} tokens", "cut at the cap" if row.truncated else row.finish]
    facts += ["no answer" if row.answer is None else f"answer {one_line(row.answer, 60)}"]
    facts += [row.outcome.replace("_", " ")] if row.outcome != "scored" else []
    if len(row.parts) > 1:
        facts.append(" ".join(f"{k} {'–' if v is None else format(v, '.3g')}" for k, v in row.parts.items()))
    facts += [f"version {row.oldest_version}"] if row.oldest_version is not None else []
    line.append(" · " + " · ".join(visible(f) for f in facts), style="dim")
    return line.append(f"\n{one_line(row.message, 300)}", style="italic dim") if row.message else line
