"""Charts as HTML with inline SVG: no script, no network, sharp at every width.

The drawing fills its box (``preserveAspectRatio="none"``) while its strokes keep their width; labels are
HTML beside it, so that text has the page's size on a phone too. A column per step carries a hover title
with its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from assay.track.text import visible

Points = Sequence[tuple[float, float]]


def safe(text: object) -> str:
    """Return text as inert HTML: markup escaped, control and direction characters made visible."""
    return escape(visible(str(text)), quote=True)


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    label: str
    points: Points
    """``(x, y)``; a NaN breaks the line."""
    look: str = "a"
    """CSS class of its colour: a, b, c, pass, fail, quiet."""
    dots: bool = False
    """Draw points (with ``low`` and ``high`` as whiskers) and a thin line between them."""
    ends: Sequence[tuple[float, float]] = field(default=())
    """Per point, the ends of its interval; empty for none."""


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round numbers that span ``low`` to ``high`` in about ``count`` steps, both ends covered.

    >>> ticks(0.03, 0.91)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    >>> ticks(0, 40)
    [0.0, 10.0, 20.0, 30.0, 40.0]
    """
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / count
    magnitude = math.floor(math.log10(raw))
    power = 10.0**magnitude
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 2 - magnitude) + 0.0 for i in range(first, last + 1)]


@dataclass(frozen=True)
class Scale:
    """A linear map of values to 0..1000 along an axis."""

    low: float
    high: float
    flip: bool = False
    """SVG's y grows downwards."""

    def __call__(self, value: float) -> float:
        """Return the place of ``value``, in thousandths of the box."""
        place = 1000.0 * (value - self.low) / (self.high - self.low)
        return round(1000.0 - place if self.flip else place, 1)


def _axes(
    x: Scale,
    y: Scale,
    y_ticks: Sequence[float],
    form: Callable[[float], str],
    inner: str,
    name: str,
    x_label: str,
) -> str:
    """The box: grid lines, the drawing, labels left and below."""
    grid = "".join(f'<path class="grid" d="M0 {y(t)}H1000"/>' for t in y_ticks)
    left = "".join(f'<span style="top:{y(t) / 10:g}%">{safe(form(t))}</span>' for t in y_ticks)
    steps = [t for t in ticks(x.low, x.high, 5) if x.low <= t <= x.high and t == round(t)]
    below = "".join(f'<span style="left:{x(t) / 10:g}%">{t:g}</span>' for t in steps)
    return (
        f'<div class="plot"><div class="left" aria-hidden="true">{left}</div>'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label="{safe(name)}">'
        f"{grid}{inner}</svg>"
        f'<div class="below" aria-hidden="true">{below}</div><div class="axis">{safe(x_label)}</div></div>'
    )


def _columns(xs: Sequence[float], x: Scale, title: Callable[[float], str]) -> str:
    """A transparent column for each x, from half-way to its neighbours, with the hover title."""
    edges = [x.low, *((a + b) / 2 for a, b in pairwise(xs)), x.high]
    return "".join(
        f'<rect class="hit" x="{x(a)}" y="0" width="{max(0.1, x(b) - x(a)):.1f}" height="1000">'
        f"<title>{safe(title(at))}</title></rect>"
        for at, (a, b) in zip(xs, pairwise(edges), strict=True)
    )


def _line(points: Points, x: Scale, y: Scale) -> str:
    """The path of a line, broken where a value is missing; a point between two gaps becomes a dot."""
    path, pen = "", False
    for at, value in points:
        if math.isfinite(value):
            path += f"{'L' if pen else 'M'}{x(at)} {y(value)}" + ("" if pen else "h0.01")
        pen = math.isfinite(value)
    return path


def _draw(series: Series, x: Scale, y: Scale) -> str:
    """One series: its line, or dots with whiskers."""
    line = f'<path class="line {series.look}{" thin" if series.dots else ""}" d="{_line(series.points, x, y)}"/>'
    if not series.dots:
        return line
    whiskers = "".join(
        f"M{x(at)} {y(low)}V{y(high)}"
        for (at, _), (low, high) in zip(series.points, series.ends, strict=False)
        if math.isfinite(low + high)
    )
    dots = "".join(f"M{x(at)} {y(v)}h0.01" for at, v in series.points if math.isfinite(v))
    marks = "".join(
        f'<path class="{kind} {series.look}" d="{d}"/>' for kind, d in (("whisker", whiskers), ("dot", dots))
    )
    return line + marks


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend of ``(css class, label)``."""
    return '<div class="legend">' + "".join(f'<span><i class="{c}"></i>{safe(t)}</span>' for c, t in entries) + "</div>"


def line_chart(
    name: str,
    series: Sequence[Series],
    form: Callable[[float], str],
    span: tuple[float, float] | None = None,
    band: tuple[float, float] | None = None,
    x_label: str = "step",
) -> str:
    """Draw lines over steps.

    ``form`` writes a value with its unit; ``span`` fixes the y axis, else it covers the values; ``band`` is
    shaded as healthy where it falls into the axis. Without one finite value the result says so.
    """
    values = [v for s in series for _, v in s.points if math.isfinite(v)]
    values += [v for s in series for pair in s.ends for v in pair if math.isfinite(v)]
    if not values:
        return '<p class="missing">Not recorded.</p>'
    xs = sorted({at for s in series for at, _ in s.points})
    y_ticks = ticks(*(span or _padded(min(values), max(values))))
    x, y = _x_scale(xs), Scale(y_ticks[0], y_ticks[-1], flip=True)
    shade = ""
    if band is not None:
        low, high = max(band[0], y.low), min(band[1], y.high)
        if low < high:
            shade = f'<rect class="band" x="0" y="{y(high)}" width="1000" height="{y(low) - y(high):.1f}"/>'
    lookup = [(s.label, dict(s.points)) for s in series]

    def title(at: float) -> str:
        found = [f"{label} {form(p[at])}" for label, p in lookup if at in p and math.isfinite(p[at])]
        return "\n".join([f"{x_label} {at:g}", *found])

    inner = shade + "".join(_draw(s, x, y) for s in series) + _columns(xs, x, title)
    key = legend([(s.look + (" dotted" if s.dots else ""), s.label) for s in series]) if len(series) > 1 else ""
    return key + _axes(x, y, y_ticks, form, inner, name, x_label)


def _padded(low: float, high: float) -> tuple[float, float]:
    """The span of an axis: from 0 where the values are near it, never of width 0."""
    if low >= 0 and low < 0.6 * high:
        return 0.0, high
    if low == high:
        return (min(0.0, low), max(0.0, high)) if low else (0.0, 1.0)
    return low, high


def _x_scale(xs: Sequence[float]) -> Scale:
    return Scale(xs[0], xs[-1]) if len(xs) > 1 else Scale(xs[0] - 0.5, xs[0] + 0.5)


def stacked_chart(name: str, xs: Sequence[float], layers: Sequence[tuple[str, str, Sequence[float]]]) -> str:
    """Draw shares as stacked areas, a column a step: layers of ``(label, css class, share per x)``.

    The first layer lies at the bottom. Every column is as wide as its step: no slope is drawn that was not
    measured.
    """
    if not xs:
        return '<p class="missing">Not recorded.</p>'
    half = 0.5 if len(xs) < 2 else (xs[-1] - xs[0]) / (len(xs) - 1) / 2
    x, y = Scale(xs[0] - half, xs[-1] + half), Scale(0.0, 1.0, flip=True)
    edges = [x.low, *((a + b) / 2 for a, b in pairwise(xs)), x.high]
    base, inner = [0.0] * len(xs), ""
    for _, look, shares in layers:
        top = [b + s for b, s in zip(base, shares, strict=True)]
        up = "".join(f"L{x(edges[i])} {y(t)}H{x(edges[i + 1])}" for i, t in enumerate(top))
        down = "".join(f"L{x(edges[i + 1])} {y(base[i])}H{x(edges[i])}" for i in reversed(range(len(xs))))
        inner += f'<path class="area {look}" d="M{up[1:]}{down}Z"/>'
        base = top

    def title(at: float) -> str:
        i = xs.index(at)
        return "\n".join([f"step {at:g}", *(f"{label} {100 * s[i]:.0f}%" for label, _, s in reversed(layers))])

    inner += _columns(xs, x, title)
    key = legend([(f"{look} filled", label) for label, look, _ in reversed(layers)])
    return key + _axes(x, y, [0.0, 0.25, 0.5, 0.75, 1.0], lambda v: f"{100 * v:.0f}%", inner, name, "step")


def interval_bar(value: float, low: float | None, high: float | None, look: str) -> str:
    """Draw a share with its interval on a line from 0 to 1."""
    ends = ""
    if low is not None and high is not None:
        ends = f'<path class="whisker {look}" d="M{1000 * low:.1f} 500H{1000 * high:.1f}"/>'
    return (
        '<svg class="interval" viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" '
        f'aria-label="{100 * value:.1f}%">'
        '<path class="grid" d="M0 500H1000M0 250V750M500 250V750M1000 250V750"/>'
        f'{ends}<path class="dot {look}" d="M{1000 * value:.1f} 500h0.01"/></svg>'
    )
