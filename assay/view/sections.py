"""The sections of the report: each takes a :class:`RunRecord` and returns HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from assay.track.glossary import CLIP_BAND, lookup
from assay.track.metric import Metric
from assay.track.numbers import duration, number
from assay.track.profile_table import profile_text
from assay.track.progress import clip_share, group_shares, used_once
from assay.view.charts import Series, interval_bar, line_chart, safe, stacked_chart
from assay.view.run_record import RunRecord

_NAN = float("nan")


def percent(value: float) -> str:
    """Return a share without decimals.

    >>> percent(0.734)
    '73%'
    """
    return f"{100 * value:.0f}%"


def label(name: str) -> str:
    """Return an estimate's name as people write it.

    >>> label("mean_at_8"), label("greedy")
    ('mean@8', 'greedy')
    """
    return name.replace("_at_", "@")


def headline(run: RunRecord) -> str:
    """In a sentence: what held-out accuracy did, and whether that could be chance."""
    before, after = run.accuracy("before").get("greedy"), run.accuracy("after").get("greedy")
    steps = run.summary.get("steps") or (run.metrics[-1]["step"] if run.metrics else 0)
    took = run.seconds()
    time = f", {duration(took['step'])} of training" if took.get("step") else ""
    if not before or not after:
        return f'<p class="lead">{steps:g} steps{time}. No held-out accuracy was measured before and after.</p>'
    n = f" on {after['n']:g} held-out problems" if after.get("n") else " on held-out problems"
    text = (
        f"Greedy accuracy{n} went from <b>{_estimate(before)}</b> to <b>{_estimate(after)}</b> "
        f"in {steps:g} steps{time}."
    )
    if _overlap(before, after):
        text += "</p><p class='warn'>The two 95% intervals overlap: a difference of this size may be chance."
    return f'<p class="lead">{text}</p>'


def _overlap(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    if any(e.get(end) is None for e in (one, other) for end in ("low", "high")):
        return False
    return max(one["low"], other["low"]) <= min(one["high"], other["high"])


def _estimate(e: Mapping[str, float]) -> str:
    interval = f" ({percent(e['low'])} to {percent(e['high'])})" if "low" in e and "high" in e else ""
    return f"{100 * e['value']:.1f}%{interval}"


def tiles(run: RunRecord) -> str:
    """A few numbers large: accuracy, last reward, completions' tokens, time."""
    found: list[tuple[str, str]] = []
    for name, e in list(run.accuracy("after").items())[:2]:
        found.append((f"{100 * e['value']:.1f}%", f"held-out, {label(name)}, after"))
    rewards = [v for _, v in run.series("reward/mean") if math.isfinite(v)][-5:]
    if rewards:
        found.append((f"{sum(rewards) / len(rewards):.3f}", f"mean reward, last {len(rewards)} steps"))
    tokens = run.summary.get("tokens")
    named = tokens.items() if isinstance(tokens, Mapping) else [("", tokens)]
    found += [
        (f"{v:,.0f}", f"tokens {str(k).replace('_', ' ')}".strip()) for k, v in named if isinstance(v, int | float)
    ]
    step = run.seconds().get("step")
    if step and run.metrics:
        found.append((f"{step / len(run.metrics):.1f} s", "a step, on average"))
    return (
        '<div class="tiles">'
        + "".join(f"<div class='tile'><b>{safe(b)}</b><span>{safe(s)}</span></div>" for b, s in found)
        + "</div>"
    )


def before_after(run: RunRecord) -> str:
    """The table of held-out estimates before and after, with their 95% intervals drawn."""
    before, after = run.accuracy("before"), run.accuracy("after")
    rows = ""
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        change = f"{100 * (other['value'] - one['value']):+.1f}" if one and other else "–"
        drawn = "".join(
            interval_bar(e["value"], e.get("low"), e.get("high"), look)
            for e, look in ((one, "quiet"), (other, "a"))
            if e
        )
        cells = "".join(f"<td class='number'>{_cell(e)}</td>" for e in (one, other))
        rows += (
            f"<tr><td>{safe(label(name))}</td>{cells}<td class='number'>{change}</td>"
            f"<td class='wide interval-cell'>{drawn}</td></tr>"
        )
    if not rows:
        return _card('<p class="missing">No held-out evaluation was recorded.</p>')
    head = "<th></th><th class='number'>before</th><th class='number'>after</th><th class='number'>points</th>"
    scale = "<th class='interval-cell'>0 to 100%: grey before, blue after</th>"
    n = (after.get("greedy") or before.get("greedy") or {}).get("n")
    note = f"{n:g} held-out problems; " if n else ""
    return _card(
        f"<div class='scroll'><table><tr>{head}{scale}</tr>{rows}</table></div>"
        f"<p class='note'>{note}in brackets the 95% interval over problems. pass@k asks for one right answer "
        "among k: it may fall while accuracy rises.</p>"
    )


def _cell(e: Mapping[str, float] | None) -> str:
    if not e:
        return "–"
    ends = (
        f"<br><span class='small'>({100 * e['low']:.1f} to {100 * e['high']:.1f})</span>"
        if "low" in e and "high" in e
        else ""
    )
    return f"{100 * e['value']:.1f}%{ends}"


def reward(run: RunRecord) -> str:
    """Reward per step, its moving average, and the held-out evaluations."""
    points = run.series("reward/mean")
    k = max(5, len(points) // 12)
    series = [
        Series("reward of the step", points, "quiet"),
        Series(f"mean of the last {k} steps", trailing_mean(points, k), "a"),
    ]
    greedy = [row for row in run.evals if math.isfinite(row.get("eval/greedy", _NAN))]
    if greedy:
        ends = [(r.get("eval/greedy_low", _NAN), r.get("eval/greedy_high", _NAN)) for r in greedy]
        held = [(r["step"], r["eval/greedy"]) for r in greedy]
        series.append(Series("held-out greedy accuracy, 95% interval", held, "b", dots=True, ends=ends))
    values = [v for _, v in points if math.isfinite(v)]
    span = (0.0, 1.0) if values and min(values) >= 0 and max(values) <= 1 else None
    note = safe(lookup("reward/mean").note)
    chart = line_chart("Reward", series, lambda v: f"{v:.3g}", span=span)
    return _card(f'{_head("Reward per step, and held-out accuracy")}{chart}<p class="note">{note}</p>')


def trailing_mean(points: Sequence[tuple[float, float]], k: int) -> list[tuple[float, float]]:
    """Return the mean over each point and the up to k - 1 before it; missing values are left out.

    >>> trailing_mean([(1, 0.0), (2, 1.0), (3, 2.0)], 2)
    [(1, 0.0), (2, 0.5), (3, 1.5)]
    """
    means = []
    for i, (at, _) in enumerate(points):
        kept = [v for _, v in points[max(0, i - k + 1) : i + 1] if math.isfinite(v)]
        means.append((at, sum(kept) / len(kept) if kept else _NAN))
    return means


def groups(run: RunRecord) -> str:
    """What the groups of each step were made of, stacked."""
    rows = [(row["step"], s) for row in run.metrics if (s := group_shares(row)) is not None]
    kinds = [("all pass", "pass", 2), ("mixed", "mixed", 1), ("all fail", "fail", 0)]
    if any(s[3] > 1e-9 for _, s in rows):
        kinds.append(("too few verdicts", "quiet", 3))
    layers = [(name, look, [s[i] for _, s in rows]) for name, look, i in kinds]
    chart = stacked_chart("Group make-up", [at for at, _ in rows], layers)
    note = "Only mixed groups pull on the weights: where all rewards are equal, every advantage is 0."
    return _card(f'{_head("Share of the groups of a step")}{chart}<p class="note">{note}</p>')


def lengths(run: RunRecord) -> str:
    """Mean length of right and of wrong completions."""
    series = [
        Series("right", run.series("rollout/tokens_mean_correct"), "pass"),
        Series("wrong", run.series("rollout/tokens_mean_wrong"), "fail"),
    ]
    note = safe(lookup("rollout/tokens_mean_wrong").note)
    chart = line_chart("Length", series, lambda v: f"{v:.4g}")
    return _card(f'{_head("Tokens per completion")}{chart}<p class="note">{note}</p>')


_SMALL: tuple[tuple[str, str], ...] = (
    ("update/entropy", "Entropy"),
    ("update/kl_reference", "KL to reference"),
    ("update/kl_anchor", "KL to anchor"),
    ("update/grad_norm", "Gradient norm"),
    ("update/clip_low_share", "Clipped tokens"),
    ("update/loss", "Loss"),
    ("rollout/truncated_share", "Cut at the cap"),
    ("rollout/answers_mean", "Numbers per completion"),
    ("rollout/duplicate_share", "Duplicates in a group"),
    ("reward/valid_share", "Valid verdicts"),
)


def health(run: RunRecord) -> str:
    """Small charts of what goes wrong first, each with its healthy band and what confuses about it.

    What was the same in every step is listed below them; what was never recorded is left out.
    """
    charts, still = "", ""
    for name, title in _SMALL:
        metric, points, band, words = _measured(run, name)
        values = [v for _, v in points if math.isfinite(v)]
        form = _form(metric)
        if values and min(values) == max(values):
            value = safe(form(values[0]))
            still += f"<tr><td>{safe(title)}</td><td class='number'>{value}</td><td>{safe(words)}</td></tr>"
        elif values:
            chart = line_chart(title, [Series(title, points, "a")], form, band=band)
            note = f'<p class="note">{safe(words)}</p>' if words else ""
            charts += f'<div class="card">{_head(title, _with_unit(metric, values[-1]))}{chart}{note}</div>'
    if still:
        table = f'<div class="scroll"><table class="still">{still}</table></div>'
        still = _card(_head("The same in every step") + table)
    drawn = f'<div class="many">{charts}</div>' if charts else ""
    return drawn + still or _card('<p class="missing">Not recorded.</p>')


def _measured(run: RunRecord, name: str) -> tuple[Metric, list[tuple[float, float]], tuple[float, float] | None, str]:
    """A metric's glossary entry, its values, its band, and the words below its chart."""
    metric, points = lookup(name), run.series(name)
    band, healthy, note = metric.band, metric.healthy_text, metric.note
    if name == "update/clip_low_share":  # drawn with clip_high_share: the band holds for both together
        points = [(row["step"], share) for row in run.metrics if (share := clip_share(row)) is not None]
        if all(used_once(row) for row in run.metrics):
            band, healthy = None, ""
        else:
            band, note = CLIP_BAND, ""
            healthy = f"{percent(CLIP_BAND[0])} to {percent(CLIP_BAND[1])} when a batch is reused"
    words = " ".join(part for part in (f"Healthy: {healthy}." if healthy else "", note) if part)
    return metric, points, band, words


def _form(metric: Metric) -> Callable[[float], str]:
    return lambda v: f"{100 * v:.3g}%" if metric.unit == "share" else number(v)


def _with_unit(metric: Metric, value: float) -> str:
    unit = "" if metric.unit in ("share", "loss", "norm", "count") else f" {metric.unit}"
    return _form(metric)(value) + unit


def time_spent(run: RunRecord) -> str:
    """Seconds per phase as bars; what no phase claims is shown as such."""
    seconds = dict(run.seconds())
    whole = max(seconds.pop("step", 0.0), seconds.pop("total", 0.0))
    claimed = sum(seconds.values())
    if whole > 1.001 * claimed:
        seconds["everything else"] = whole - claimed
    total = sum(seconds.values())
    if total <= 0:
        return _card('<p class="missing">Not recorded.</p>')
    most = max(seconds.values())
    rows, speed = "", run.speed()
    for name, v in sorted(seconds.items(), key=lambda p: -p[1]):
        texts = (number(v, "s"), percent(v / total), *_speed(speed.get(name, {})))
        cells = "".join(f"<td class='number'>{text}</td>" for text in texts)
        meter = f"<div class='meter' style='width:{100 * v / most:.1f}%'></div>"
        rows += f"<tr><td>{safe(name)}</td>{cells}<td class='wide'>{meter}</td></tr>" if v > 0 else ""
    titles = "".join(f"<th class='number'>{title}</th>" for title in ("seconds", "", "tokens/s", "of the limit"))
    head = f"<tr><th>phase</th>{titles}<th></th></tr>"
    note = f"In all {duration(total)}. Phases that overlap are each counted in full."
    if speed:
        note += " The limit is what the machine's matrix products alone would allow, timed when the run began."
    return _card(f"<div class='scroll'><table>{head}{rows}</table></div><p class='note'>{note}</p>") + _profile(run)


def _speed(measured: Mapping[str, float]) -> tuple[str, str]:
    """Tokens per second and share of the limit, or nothing."""
    tokens, share = measured.get("tokens_s"), measured.get("limit_share")
    return ("" if tokens is None else number(tokens, "tokens/s"), "" if share is None else percent(share))


def _profile(run: RunRecord) -> str:
    """The tables of a profiled run, as they were printed, and a link to its trace."""
    profile = run.summary.get("profile")
    if not isinstance(profile, Mapping):
        return ""
    trace = profile.get("trace")
    link = f'<p class="note">Trace: <a href="{safe(str(trace))}">{safe(str(trace))}</a></p>' if trace else ""
    return _card(f"{_head('Profile')}<div class='scroll'><pre>{safe(profile_text(profile))}</pre></div>{link}")


def _head(title: str, value: str = "") -> str:
    return f'<div class="head"><h3>{safe(title)}</h3><span>{safe(value)}</span></div>'


def _card(inner: str) -> str:
    return f'<div class="card">{inner}</div>'
