"""The live panel: a :class:`Progress` drawn with rich. Pure: the same progress, the same picture."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from assay.track.glossary import CLIP_BAND, lookup
from assay.track.numbers import duration, number, parts_of, sparkline
from assay.track.progress import Progress, clip_share, group_shares, used_once
from assay.track.rollouts import LoggedRollout
from assay.track.text import one_line, visible

_LABEL = 9
_KINDS = (
    ("all fail", "red", "░"),
    ("mixed", "yellow", "▒"),
    ("all pass", "green", "█"),
    ("no verdicts", "dim", "·"),
)
_HEALTH = {"low": "yellow", "high": "yellow", "healthy": "green", None: ""}


def panel(progress: Progress, now: float, width: int) -> RenderableType:
    """Draw the run at clock reading ``now`` in a frame ``width`` columns wide."""
    inner = width - 4
    rows = Table.grid(padding=(0, 1, 0, 0))
    rows.add_column(width=_LABEL, style="bold", no_wrap=True)
    rows.add_column(width=inner - _LABEL - 1, overflow="fold")
    for label, value in _rows(progress, inner - _LABEL - 1):
        rows.add_row(label, value)
    title = Text(" · ").join(
        [
            Text("assay", style="bold"),
            *(Text(visible(str(v))) for k, v in progress.info.items() if k == "name"),
        ]
    )
    title.truncate(inner - 4, overflow="ellipsis")
    return Panel(Stack(_bar(progress, now, inner), rows), title=title, title_align="left", width=width)


def _bar(progress: Progress, now: float, width: int) -> RenderableType:
    """Steps done, elapsed time and estimate, over one line."""
    left = progress.seconds_left(now)
    words = f"step {progress.step}/{progress.total_steps}  {duration(now - progress.started)} gone  "
    words += "…" if left is None else f"{duration(left)} left"
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=max(10, width - len(words) - 2))
    line.add_column(no_wrap=True)
    line.add_row(ProgressBar(total=max(1, progress.total_steps), completed=progress.step), Text(words))
    return line


def _rows(progress: Progress, width: int) -> list[tuple[str, Text]]:
    """Label and content of each line that the metrics seen so far can fill."""
    found = [
        ("now", _activity(progress)),
        ("reward", _reward(progress)),
        ("held-out", _held_out(progress)),
        ("groups", _groups(progress, width)),
        ("length", _length(progress)),
        ("speed", _speed(progress)),
        ("seconds", _seconds(progress)),
        ("loss", _plain(progress, "update/loss")),
        ("clip", _clip(progress)),
        ("entropy", _plain(progress, "update/entropy", spark=True)),
        ("KL", _kl(progress)),
        ("gradient", _plain(progress, "update/grad_norm", spark=True)),
    ]
    return [(label, text) for label, text in found if text is not None]


def _activity(progress: Progress) -> Text:
    if not progress.activity:
        return Text("–" if progress.history else "starting", style="dim")
    text = Text(progress.activity, style="cyan")
    if progress.done is not None and progress.total:
        text.append(f"  {progress.done}/{progress.total}")
    return text


def _reward(progress: Progress) -> Text | None:
    value = progress.latest("reward/mean")
    if value is None:
        return None
    text = Text(f"{value:<9.3f}", style="bold")
    text.append(sparkline(progress.series("reward/mean"), 24), style="cyan not bold")
    trend = progress.trend("reward/mean")
    if trend is not None:
        change, k = trend
        style = "green" if change > 0.005 else "yellow" if change < -0.005 else "dim"
        text.append(f"  {change:+.3f} over the last {k} steps", style=f"{style} not bold")
    return text


def _held_out(progress: Progress) -> Text | None:
    known = [(step, m) for step, m in progress.evals if m.get("eval/greedy") is not None]
    if not known:
        return None
    text = Text(" → ").join([Text(f"{100 * m['eval/greedy']:.0f}%", style="bold") for _, m in known[-4:]])
    step, last = known[-1]
    text.append(f" greedy, step {step}")
    if last.get("eval/greedy_low") is not None and last.get("eval/greedy_high") is not None:
        text.append(f" (95%: {100 * last['eval/greedy_low']:.0f} to {100 * last['eval/greedy_high']:.0f})", "dim")
    return text


def _groups(progress: Progress, width: int) -> Text | None:
    shares = group_shares(progress.history[-1]) if progress.history else None
    if shares is None:
        return None
    count = progress.latest("group/count")
    names = [
        f"{share * count:.0f} {name}" if count else f"{100 * share:.0f}% {name}"
        for (name, _, _), share in zip(_KINDS, shares, strict=True)
    ]
    shown = [i for i in range(4) if i < 3 or shares[3] > 1e-9]
    words = 2 + sum(len(names[i]) for i in shown) + 2 * (len(shown) - 1)
    text = Text()
    for (_, colour, block), cells in zip(_KINDS, parts_of(shares, max(8, min(28, width - words))), strict=True):
        text.append(block * cells, style=colour)
    for place, i in enumerate(shown):
        text.append("  " + names[i], style=_KINDS[i][1] if place != 3 else "dim")
    return text


def _length(progress: Progress) -> Text | None:
    mean = progress.latest("rollout/tokens_mean")
    if mean is None:
        return None
    text = Text(f"{number(mean, 'tokens')} tokens")
    for name in ("correct", "wrong"):
        value = progress.latest(f"rollout/tokens_mean_{name}")
        if value is not None:
            text.append(f"  {'right' if name == 'correct' else name} {number(value, 'tokens')}", style="dim")
    cut = progress.latest("rollout/truncated_share")
    if cut is not None:
        health = lookup("rollout/truncated_share").judge(cut)
        text.append(f"  {number(cut, 'share')} cut at the cap", style=_HEALTH[health] if health == "high" else "dim")
    return text


def _speed(progress: Progress) -> Text | None:
    """Tokens per second, and how much of what the machine's arithmetic allows that is."""
    text = Text()
    for what, phase in (("sampling", "generate"), ("training", "update")):
        value, share = (progress.latest(f"speed/{phase}_{name}") for name in ("tokens_s", "limit_share"))
        if value is not None:
            unit = "" if text.plain else " tokens/s"
            text.append(" · " if text.plain else "").append(f"{number(value, 'tokens/s')}{unit} {what}")
            text.append("" if share is None else f" ({100 * share:.0f}%)", "dim")
    if "(" in text.plain:
        text.append("  of the limit", "dim")
    return text if text.plain else None


def _seconds(progress: Progress) -> Text | None:
    if not progress.history:
        return None
    phases = {k[5:]: v for k, v in progress.history[-1].items() if k.startswith("time/") and k != "time/step"}
    step = progress.latest("time/step")
    words = [f"{name} {number(v, 's')}" for name, v in sorted(phases.items(), key=lambda p: -p[1]) if v >= 0.05]
    text = Text(" · ".join(words))
    if step is not None:
        text.append(f"{'  =  ' if words else ''}{number(step, 's')} a step", style="dim")
    return text if text.plain else None


def _plain(progress: Progress, name: str, spark: bool = False) -> Text | None:
    """A metric with its trend, band and note."""
    value = progress.latest(name)
    if value is None:
        return None
    metric = lookup(name)
    health = metric.judge(value)
    text = Text(f"{number(value):<9}", style=_HEALTH[health])
    if spark:
        text.append(sparkline(progress.series(name), 24) + "  ", style="cyan")
    if metric.band is not None:
        text.append(f"healthy {metric.healthy_text}", style="dim" if health == "healthy" else "yellow")
    elif metric.note:
        text.append(metric.note, style="dim")
    return text


def _clip(progress: Progress) -> Text | None:
    share = clip_share(progress.history[-1]) if progress.history else None
    if share is None:
        return None
    if used_once(progress.history[-1]):
        return Text(f"{number(share, 'share'):<9}").append(lookup("update/clip_low_share").note, style="dim")
    healthy = CLIP_BAND[0] <= share <= CLIP_BAND[1]
    text = Text(f"{number(share, 'share'):<9}", style="green" if healthy else "yellow")
    return text.append(
        f"healthy {100 * CLIP_BAND[0]:.0f} to {100 * CLIP_BAND[1]:.0f}%: the batch is reused",
        style="dim" if healthy else "yellow",
    )


def _kl(progress: Progress) -> Text | None:
    text = Text()
    for name, what in (
        ("update/kl_reference", "from the reference"),
        ("update/kl_anchor", "from the anchor"),
    ):
        value = progress.latest(name)
        if value is not None:
            health = lookup(name).judge(value)
            text.append("  " if text.plain else "").append(f"{number(value)} ", style=_HEALTH[health])
            text.append(what + (" (by construction)" if "anchor" in name and value == 0 else ""), style="dim")
    return text if text.plain else None


def samples(rows: Sequence[LoggedRollout], width: int) -> RenderableType:
    """Draw the chosen completions of a step: the question, then verdict and text of each on two lines."""
    head = Text().append(f"step {rows[0].step}  ", style="bold")
    head.append(one_line(rows[0].question, width - 12), style="dim")
    lines = [head]
    for row in rows:
        mark, style = ("✓", "green") if row.right else ("✗", "red")
        line = Text().append(f"{mark} {row.reward:.2f} ", style=style)
        wanted = "" if row.right or row.gold is None else f", wanted {one_line(row.gold, 24)}"
        answer = "no answer" if row.answer is None else f"answer {one_line(row.answer, 24)}"
        line.append(f"{answer}{wanted}  ", style="bold")
        lines.append(line.append(one_line(row.completion, max(20, 2 * width - len(line.plain) - 2)), style=""))
    return Stack(*lines)
