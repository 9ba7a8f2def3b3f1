"""A plan for the terminal and as JSON: what it rests on, every split and regime, the best and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from assay.plan.search import WORTH, Option, Plan, recommended
from assay.plan.tally import Prediction

COLOURS = {"measured": "green", "computed": "cyan", "given": "cyan", "guess": "yellow"}


def as_json(plan: Plan) -> dict[str, Any]:
    """Everything a plan found, as plain values."""
    return {
        "gpus": plan.gpus,
        "best": _plain(plan.best, plan),
        "why": list(reasons(plan)),
        "levers": [
            {"setting": lever.setting, "price": lever.price, **asdict(lever.prediction)} for lever in plan.levers
        ],
        "options": [_plain(o, plan) for o in plan.options],
        "rests_on": [asdict(note) for note in plan.basis.notes],
        "costs": plan.basis.costs.model_dump(),
        "terms": asdict(plan.terms),
    }


def show(plan: Plan, console: Console) -> None:
    """Print a plan."""
    _print(console, "Rests on", _notes(plan))
    _print(console, "Seconds of a step", _matrix(plan))
    _print(console, "The best split at each bound on staleness", _details(plan))
    _print(console, "Take", _verdict(plan))
    _print(console, "What would change it", _levers(plan))


def eta(bound: int | None) -> str:
    """A bound on staleness as it is written: ``∞`` for none."""
    return "∞" if bound is None else str(bound)


def place(option: Option, plan: Plan) -> str:
    """An option's split in words."""
    return option.layout.describe(plan.basis.costs.engine_gpus)


def _plain(option: Option, plan: Plan) -> dict[str, Any]:
    found = option.prediction
    return {
        "split": place(option, plan),
        "layout": asdict(option.layout),
        "max_staleness": option.max_staleness,
        **asdict(found),
        "engine_idle": found.engine_idle,
        "trainer_idle": found.trainer_idle,
    }


def _notes(plan: Plan) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for no_wrap in (True, False, True, False):
        table.add_column(no_wrap=no_wrap)
    for note in plan.basis.notes:
        table.add_row(
            Text(note.what, "cyan"),
            note.figure,
            Text(note.origin, COLOURS[note.origin]),
            Text(note.why, "bright_black"),
        )
    return table


def _matrix(plan: Plan) -> RenderableType:
    bounds = list(dict.fromkeys(o.max_staleness for o in plan.options))
    bounds.sort(key=lambda bound: (bound is None, bound))
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("split")
    for bound in bounds:
        table.add_column(f"η = {eta(bound)}", justify="right")
    for split in dict.fromkeys(place(o, plan) for o in plan.options):
        row = {o.max_staleness: o for o in plan.options if place(o, plan) == split}
        table.add_row(split, *(_seconds(row.get(bound), plan) for bound in bounds))
    return table


def _seconds(option: Option | None, plan: Plan) -> Text:
    if option is None:
        return Text("-", "bright_black")
    style = "bold green" if option is plan.best else "bold" if option is plan.fastest else ""
    return Text(short(option.prediction.step_s), style)


def short(seconds: float) -> str:
    """Seconds with three figures.

    >>> short(0.01234), short(12.345), short(1234.5)
    ('0.0123', '12.3', '1,234')
    """
    return f"{seconds:.3g}" if seconds < 1 else f"{seconds:,.1f}" if seconds < 100 else f"{seconds:,.0f}"


def best_by_bound(options: Sequence[Option]) -> list[Option]:
    """The quickest split at each bound, from the least stale on."""
    best: dict[int | None, Option] = {}
    for option in options:
        held = best.get(option.max_staleness)
        if held is None or option.prediction.step_s < held.prediction.step_s:
            best[option.max_staleness] = option
    return sorted(best.values(), key=lambda o: (o.max_staleness is None, o.max_staleness or 0))


def _details(plan: Plan) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("η", "split", "step", "tokens/s", "idle: engines", "trainer", "staleness"):
        table.add_column(name, justify="left" if name == "split" else "right", no_wrap=True)
    for option in best_by_bound(plan.options):
        found = option.prediction
        idle = (found.shared_idle,) * 2 if option.layout.shared else (found.engine_idle, found.trainer_idle)
        table.add_row(
            eta(option.max_staleness),
            place(option, plan),
            f"{short(found.step_s)} s",
            f"{found.tokens_s:,.0f}",
            f"{idle[0]:.0%}",
            f"{idle[1]:.0%}",
            f"{found.mean_staleness:.1f} ≤ {found.max_staleness}",
            style="green" if option is plan.best else "",
        )
    return table


def _verdict(plan: Plan) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(ratio=1)
    best = plan.best
    table.add_row(Text(f"{place(best, plan)}, {keys(best)}: {short(best.prediction.step_s)} s a step", "bold green"))
    for reason in reasons(plan):
        table.add_row(reason)
    return table


def keys(option: Option) -> str:
    """The recipe's keys that say so."""
    bound = "null" if option.max_staleness is None else option.max_staleness
    words = [f"regime.max_staleness={bound}"]
    if option.layout.unit == "process" and option.max_staleness == 0:
        words.append(f"rollout.process={'trainer' if option.layout.shared else 'own'}")
    elif option.layout.unit == "GPU" and option.layout.engines > 1:
        words.append(f"rollout.replicas={option.layout.engines}")
    return " ".join(words)


def _levers(plan: Plan) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for no_wrap in (True, True, True, False):
        table.add_column(no_wrap=no_wrap)
    now = plan.best.prediction.step_s
    for lever in sorted(plan.levers, key=lambda turned: turned.prediction.step_s):
        change = lever.prediction.step_s / now - 1
        style = "green" if change < -0.02 else "bright_black" if abs(change) <= 0.02 else "red"
        table.add_row(
            Text(lever.setting, "cyan"),
            f"{short(lever.prediction.step_s)} s",
            Text("0%" if abs(change) < 0.005 else f"{change:+.0%}", style),
            Text(lever.price, "bright_black"),
        )
    return table


def reasons(plan: Plan) -> Iterator[str]:
    """Why the best option is the best, and what holds it back, a sentence each."""
    best, fastest, found = plan.best, plan.fastest, plan.best.prediction
    synchronous = min(
        (o for o in plan.options if o.max_staleness == 0), key=lambda o: o.prediction.step_s, default=None
    )
    if best.max_staleness != 0 and synchronous is not None:
        saved = 1 - found.step_s / synchronous.prediction.step_s
        yield (
            f"It saves {saved:.0%} of the best synchronous step ({short(synchronous.prediction.step_s)} s, "
            f"{place(synchronous, plan)})."
        )
    if fastest is not best:
        more = 1 - fastest.prediction.step_s / found.step_s
        yield (
            f"{place(fastest, plan)} at η = {eta(fastest.max_staleness)} would save a further {more:.1%}: less than "
            f"the {WORTH:.0%} for which it is worth being staler."
        )
    yield bottleneck(found, best.layout.shared)
    if best.layout.trainers > 1:
        yield from _one_trainer(plan)


def _one_trainer(plan: Plan) -> Iterator[str]:
    """A split with several trainers is a plan for later: this version's trainer is one process on one device."""
    alone = [o for o in plan.options if o.layout.trainers == 1]
    today = "this version trains on one"
    if not alone:
        yield f"It takes a trainer sharded over GPUs, and {today}: no split of {plan.gpus} can be run yet."
        return
    best = recommended(alone)
    yield (
        f"It takes a trainer sharded over GPUs, and {today}: {place(best, plan)} at η = {eta(best.max_staleness)} "
        f"takes {short(best.prediction.step_s)} s."
    )


def bottleneck(found: Prediction, shared: bool) -> str:
    """Which side the step waits for."""
    if shared:
        share = found.wait_s / found.step_s
        return f"Generation takes {share:.0%} of the step, the update {found.update_s / found.step_s:.0%}."
    if found.trainer_idle < 0.1:
        return (
            f"The trainer is the slower side: it is idle {found.trainer_idle:.0%}, the engines {found.engine_idle:.0%}."
        )
    if found.engine_idle < 0.1:
        return f"The engines are the slower side: idle {found.engine_idle:.0%}, the trainer {found.trainer_idle:.0%}."
    return (
        f"Each side waits for the other: the engines are idle {found.engine_idle:.0%}, "
        f"the trainer {found.trainer_idle:.0%}."
    )


def _print(console: Console, heading: str, body: RenderableType) -> None:
    console.print(Text(heading, "bold"))
    console.print(Padding(body, (0, 0, 1, 2)))
