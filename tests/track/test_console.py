import contextlib
import io
import math
import os

import pytest
import rich.console
from track_helpers import group_of

from assay.errors import UserError
from assay.track.console import PlainConsole, SilentConsole, make_console
from assay.track.live import LiveConsole
from assay.track.panel import panel
from assay.track.progress import Progress, group_shares, used_once

METRICS = {
    "reward/mean": 0.625,
    "reward/correct": 0.5,
    "group/all_fail": 0.25,
    "group/mixed": 0.5,
    "group/all_pass": 0.25,
    "group/count": 8,
    "rollout/tokens_mean": 23.4,
    "rollout/tokens_mean_correct": 21.0,
    "rollout/truncated_share": 0.02,
    "update/loss": -0.0003,
    "update/grad_norm": 0.41,
    "update/entropy": 0.83,
    "update/kl_anchor": 0.0,
    "update/kl_reference": 0.012,
    "update/clip_low_share": 0.0,
    "update/clip_high_share": 0.0,
    "update/ratio_max": 1.0,
    "speed/generate_tokens_s": 1020.0,
    "time/generate": 5.2,
    "time/update": 6.1,
    "time/step": 11.9,
}
EVAL = {"eval/greedy": 0.5, "eval/greedy_low": 0.4, "eval/greedy_high": 0.6, "eval/mean_at_8": 0.45}


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def plain(**options):
    out, clock = io.StringIO(), Clock()
    return PlainConsole(stream=out, clock=clock, **options), out, clock


def test_plain_prints_a_line_a_step():
    console, out, clock = plain(samples_every=0)
    console.start(4, 0, {"name": "try"})
    for step in (1, 2):
        clock.now += 10
        console.phase("generate", 3, 8)
        console.step(step, METRICS, [group_of([("7", 1.0)])])
    console.stop()
    lines = out.getvalue().splitlines()
    assert lines[0] == "steps 1 to 4  name try"
    assert lines[1] == (
        "step 1/4  reward 0.625  groups 25/50/25%  correct 0.500  tokens 23.4  loss -0.0003  grad 0.41  "
        "entropy 0.830  kl 0.012  clip 0.000  1,020 tok/s  11.9 s  left 0:30"
    )
    assert [line for line in lines if line.startswith("step 2/4") and line.endswith("left 0:20")]
    assert sum("by construction" in line for line in lines) == 2, "loss and clip are explained once, not each step"
    assert "\x1b" not in out.getvalue()


def test_the_share_of_the_limit_is_shown_and_explained_once():
    shares = {"speed/generate_limit_share": 0.2449, "speed/update_limit_share": 0.41}
    console, out, _ = plain(samples_every=0)
    console.start(3, 0, {"name": "try"})
    console.step(1, METRICS | shares, [])
    console.step(2, METRICS | {"speed/generate_limit_share": 0.3}, [])
    text = out.getvalue()
    assert "1,020 tok/s  limit 24/41%  11.9 s" in text
    assert "limit 30/–%" in text
    assert text.count("limit: generation / update") == 1
    drawn = io.StringIO()
    rich.console.Console(width=110, file=drawn).print(panel(Progress(4, 0).stepped(1, METRICS | shares, 1.0), 2.0, 110))
    assert "1,020 tokens/s sampling (24%)  of the limit" in drawn.getvalue()


def test_plain_samples_are_one_line_each_and_cannot_steer_the_terminal():
    console, out, _ = plain(samples_every=2)
    console.start(4, 0, {})
    bomb = "\x1b[2J\x1b]0;pwned\x07[red]7[/red]\nsecond line\rback \u202egnorw"
    for step in (1, 2):
        console.step(step, {}, [group_of([(bomb, 1.0), ("8", 0.0)])])
    shown = [line for line in out.getvalue().splitlines() if line.startswith("  ")]
    assert len(shown) == 2
    assert shown[0].startswith("  right 1.00  What is 3 + 4? | \\x1b[2J")
    assert "[red]7[/red] ⏎ second line" in shown[0]
    assert shown[1] == "  wrong 0.00  What is 3 + 4? | 8"
    assert not set(out.getvalue()) & set("\x1b\x07\r\u202e")


def test_plain_survives_an_ascii_stream():
    raw = io.BytesIO()
    console = PlainConsole(samples_every=1, stream=io.TextIOWrapper(raw, encoding="ascii"))
    console.start(1, 0, {"name": "père"})
    console.step(1, METRICS, [group_of([("→ 7", 1.0), ("\ud800", 0.0)])])
    assert b"\\u2192 7" in raw.getvalue()


def test_plain_outlives_its_reader():
    reader, writer = os.pipe()
    os.close(reader)
    told = False
    with contextlib.suppress(BrokenPipeError), open(writer, "w", encoding="utf-8") as stream:
        console = PlainConsole(stream=stream)
        console.message("nobody hears this")
        console.message("nor this")
        told = True
    assert told


def test_evaluations_and_messages():
    console, out, _ = plain()
    console.evaluation(10, EVAL)
    console.message("fine")
    console.message("[bold]low memory", "warning")
    assert out.getvalue().splitlines() == [
        "held-out at step 10: greedy 50.0% (40.0% to 60.0%)  mean@8 45.0%",
        "fine",
        "warning: [bold]low memory",
    ]
    with pytest.raises(ValueError, match="style"):
        console.message("x", "loud")


def live(width, **options):
    clock = Clock()
    terminal = rich.console.Console(width=width, height=40, file=io.StringIO(), force_terminal=True, record=True)
    return LiveConsole(terminal=terminal, clock=clock, **options), terminal, clock


def test_live_shows_samples_evaluations_and_leaves_the_last_panel():
    console, terminal, clock = live(80, samples_every=1)
    console.start(3, 0, {"name": "[red]try"})
    console.evaluation(0, EVAL)
    clock.now += 10
    console.phase("generate", 37, 64)
    console.step(1, METRICS, [group_of([("[bold]it is 7\x1b[2J", 1.0), ("8", 0.0)])])
    console.message("[red]careful", "warning")
    console.stop()
    console.stop()
    text = terminal.export_text()
    for part in (
        "[red]try",
        "held-out at step 0",
        "[bold]it is 7\\x1b[2J",
        "answer 8, wanted 7",
        "[red]careful",
        "step 1/3",
        "0:20 left",
        "2 all fail",
        "0 by construction",
        "watch the reward",
    ):
        assert part in text
    assert terminal.is_terminal
    console.message("after the end")


def text_of(progress, now, width):
    terminal = rich.console.Console(width=width, file=io.StringIO(), record=True)
    terminal.print(panel(progress, now, width))
    return terminal.export_text()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_panel_fits_its_width(width):
    progress = Progress(total_steps=1000, info={"name": "a-name-" * 20}, ends=(0.0,))
    for step in range(1, 31):
        progress = progress.stepped(step, {**METRICS, "reward/mean": step / 30}, 12.0 * step)
    text = text_of(progress, 380.0, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "▁" in text
    assert width < 80 or "+0.333 over the last 10 steps" in text, "from 80 columns up no line is broken"


def test_the_panel_before_the_first_step_and_with_missing_metrics():
    assert "starting" in text_of(Progress(total_steps=3), 0.0, 80)
    bare = Progress(total_steps=3, ends=(0.0,)).stepped(1, {"reward/mean": math.nan}, 1.0)
    assert "step 1/3" in text_of(bare, 1.0, 80)


def test_a_reused_batch_gets_the_band_and_not_the_excuse():
    reused = {
        **METRICS,
        "update/ratio_max": 1.8,
        "update/clip_low_share": 0.08,
        "update/clip_high_share": 0.06,
    }
    text = text_of(Progress(total_steps=3).stepped(1, reused, 1.0), 1.0, 80)
    assert "14.0%    healthy 10 to 30%" in text
    assert "never clips" not in text
    assert used_once(METRICS)
    assert not used_once({**METRICS, "update/ratio_max": 1.2}), "the ratio left 1, though nothing was clipped"
    assert not used_once(reused)


def test_estimates_of_the_time_left():
    progress = Progress(total_steps=10, start_step=4, ends=(0.0,))
    assert progress.seconds_left(5.0) is None
    for step, now in ((5, 10.0), (6, 30.0)):
        progress = progress.stepped(step, {}, now)
    assert progress.seconds_left(30.0) == 60.0
    assert progress.seconds_left(35.0) == 55.0


def test_group_shares_add_up_whatever_no_signal_means():
    assert group_shares(METRICS) == (0.25, 0.5, 0.25, 0.0)
    assert group_shares({"group/all_fail": 0.25, "group/mixed": 0.5, "group/all_pass": 0.0}) == (
        0.25,
        0.5,
        0.0,
        0.25,
    )
    assert group_shares({"group/mixed": 0.5}) is None


def test_consoles_by_name(capsys):
    assert isinstance(make_console("auto"), PlainConsole), "captured output is no terminal"
    assert isinstance(make_console("live"), LiveConsole)
    silent = make_console("silent")
    assert isinstance(silent, SilentConsole)
    silent.start(1, 0, {})
    silent.step(1, {}, [])
    silent.stop()
    assert capsys.readouterr().out == ""
    with pytest.raises(UserError, match="did you mean 'plain'"):
        make_console("plane")
