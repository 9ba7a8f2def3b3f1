"""What a run says while it runs: to a terminal, to a pipe, or to nobody."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TextIO

from assay.records import Group
from assay.registry import Registry
from assay.track.glossary import lookup
from assay.track.numbers import duration, number
from assay.track.progress import Progress, clip_share, group_shares, used_once
from assay.track.rollouts import rows_of
from assay.track.samples import good_and_bad
from assay.track.text import one_line, visible

STYLES: Mapping[str, str] = {"info": "", "warning": "yellow", "error": "bold red"}
"""The styles of a message, each with its colours on a terminal."""


class Console(Protocol):
    """Where the loop reports to. Steps count from 1; ``metrics`` are names of the glossary."""

    def start(self, total_steps: int, start_step: int, info: Mapping[str, Any]) -> None:
        """Begin a run of which ``start_step`` steps are done; ``info`` holds at least its ``name``."""
        ...

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Say what is being done now, and how much of it, such as 37 of 64 rollouts."""
        ...

    def step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        """Report a finished step and its groups."""
        ...

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report a held-out evaluation after ``step``."""
        ...

    def message(self, text: str, style: str = "info") -> None:
        """Say something: ``info``, ``warning`` or ``error``."""
        ...

    def stop(self) -> None:
        """Give the terminal back; may be called twice."""
        ...


class SilentConsole:
    """A :class:`Console` that says nothing."""

    def start(self, total_steps: int, start_step: int, info: Mapping[str, Any]) -> None:
        """Say nothing."""

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Say nothing."""

    def step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        """Say nothing."""

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Say nothing."""

    def message(self, text: str, style: str = "info") -> None:
        """Say nothing."""

    def stop(self) -> None:
        """Say nothing."""


class PlainConsole:
    """A :class:`Console` for pipes and log files: a line a step, no colours, no cursor."""

    def __init__(
        self,
        samples_every: int = 5,
        gold: str = "answer",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every = samples_every
        self._gold = gold
        self._stream = stream or sys.stdout
        self._clock = clock
        self._progress = Progress(started=clock())

    def _say(self, line: str) -> None:
        coding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            print(line.encode(coding, "backslashreplace").decode(coding), file=self._stream, flush=True)
        except BrokenPipeError:  # the reader left (`| head`): hours of training need not die of it
            self._stream = io.StringIO()

    def start(self, total_steps: int, start_step: int, info: Mapping[str, Any]) -> None:
        """Print a line with what is known of the run."""
        now = self._clock()
        self._progress = Progress(total_steps, start_step, dict(info), now, start_step, (now,))
        known = "  ".join(f"{k} {one_line(str(v), 80)}" for k, v in info.items())
        self._say(f"steps {start_step + 1} to {total_steps}  {known}".rstrip())

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Print nothing: a log has no present."""

    def step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        """Print the step's line, after the first one its notes, and every few steps two samples."""
        first = not self._progress.history
        self._progress = self._progress.stepped(step, metrics, self._clock())
        self._say(step_line(self._progress, self._clock()))
        if first:
            for note in notes(metrics):
                self._say(f"  note: {note}")
        if self._every and step % self._every == 0:
            for row in good_and_bad(rows_of(step, groups, gold=self._gold)):
                mark = "right" if row.right else "wrong"
                question, answer = one_line(row.question, 60), one_line(row.completion, 160)
                self._say(f"  {mark} {row.reward:.2f}  {question} | {answer}")

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print a line with every accuracy and its interval."""
        self._progress = replace(self._progress, evals=(*self._progress.evals, (step, dict(metrics))))
        self._say(evaluation_line(step, metrics))

    def message(self, text: str, style: str = "info") -> None:
        """Print a line; a warning or an error says that it is one."""
        if style not in STYLES:
            raise ValueError(f"no style {style!r}; known: {', '.join(STYLES)}")
        self._say(visible(text) if style == "info" else f"{style}: {visible(text)}")

    def stop(self) -> None:
        """Print nothing."""


def step_line(progress: Progress, now: float) -> str:
    """Return the last step as one line: reward, accuracy, groups, length, update, speed, time left."""
    m = progress.history[-1]
    words = [f"step {progress.step}/{progress.total_steps}"]
    for label, name, form in (
        ("reward", "reward/mean", "{:.3f}"),
        ("correct", "reward/correct", "{:.3f}"),
        ("tokens", "rollout/tokens_mean", "{:.1f}"),
        ("loss", "update/loss", "{:.2g}"),
        ("loss", "sft/loss", "{:.4f}"),
        ("grad", "update/grad_norm", "{:.3g}"),
        ("entropy", "update/entropy", "{:.3f}"),
        ("kl", "update/kl_reference", "{:.3g}"),
    ):
        value = progress.latest(name)
        if value is not None:
            words.append(f"{label} {form.format(value)}")
    clip = clip_share(m)
    if clip is not None:
        words.append(f"clip {clip:.3f}")
    shares = group_shares(m)
    if shares is not None:
        words.insert(2, "groups " + "/".join(f"{100 * s:.0f}" for s in shares[:3]) + "%")
    speed, seconds = progress.latest("speed/generate_tokens_s"), progress.latest("time/step")
    words += [f"{number(speed, 'tokens/s')} tok/s"] if speed is not None else []
    limits = [progress.latest(f"speed/{phase}_limit_share") for phase in ("generate", "update")]
    if any(share is not None for share in limits):
        words.append("limit " + "/".join("–" if share is None else f"{100 * share:.0f}" for share in limits) + "%")
    words += [f"{seconds:.1f} s"] if seconds is not None else []
    left = progress.seconds_left(now)
    return "  ".join([*words, *([f"left {duration(left)}"] if left is not None else [])])


def notes(metrics: Mapping[str, float]) -> list[str]:
    """Return what newcomers need to be told about a step's line: only of metrics that it shows."""
    found = []
    if group_shares(metrics) is not None:
        found.append("groups are all fail / mixed / all pass; only mixed ones pull on the weights")
    if metrics.get("update/loss") is not None:
        found.append("loss: " + lookup("update/loss").note)
    if clip_share(metrics) is not None and used_once(metrics):
        found.append("clip: " + lookup("update/clip_low_share").note)
    if metrics.get("speed/update_limit_share") is not None:
        found.append("limit: generation / update, of what the machine's matrix products alone would allow")
    return found


def evaluation_line(step: int, metrics: Mapping[str, float]) -> str:
    """Return a held-out evaluation as one line: ``held-out at step 10: greedy 73.0 % (66.1 % to 79.0 %)``."""
    words = []
    for name, value in metrics.items():
        if not name.endswith(("_low", "_high")) and value is not None:
            low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
            interval = f" ({number(low, 'share')} to {number(high, 'share')})" if low is not None else ""
            label = name.removeprefix("eval/").replace("_at_", "@")
            words.append(f"{label} {number(value, lookup(name).unit)}{interval}")
    return f"held-out at step {step}: " + "  ".join(words)


CONSOLES: Registry[Callable[[int, str], Console]] = Registry("console")
"""The consoles by name, each made from ``samples_every`` and the gold column."""


@CONSOLES.register("auto")
def _auto(samples_every: int, gold: str) -> Console:
    """Live on a terminal that can draw it, else plain."""
    out = sys.stdout
    drawable = out.isatty() and "utf" in (out.encoding or "").lower()
    import rich.console

    return CONSOLES["live" if drawable and not rich.console.Console().is_dumb_terminal else "plain"](
        samples_every, gold
    )


@CONSOLES.register("live")
def _live(samples_every: int, gold: str) -> Console:
    from assay.track.live import LiveConsole

    return LiveConsole(samples_every, gold)


@CONSOLES.register("plain")
def _plain(samples_every: int, gold: str) -> Console:
    return PlainConsole(samples_every, gold)


@CONSOLES.register("silent")
def _silent(samples_every: int, gold: str) -> Console:
    return SilentConsole()


def make_console(kind: str = "auto", samples_every: int = 5, gold: str = "answer") -> Console:
    """Return a console: ``auto`` (live on a terminal, else plain), ``live``, ``plain`` or ``silent``.

    ``samples_every`` is the number of steps between samples (0: none); ``gold`` the column with the right
    answer.

    Raises :class:`assay.errors.UserError` for another name.
    """
    return CONSOLES[kind](samples_every, gold)
