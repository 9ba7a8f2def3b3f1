"""Numbers as a person reads them: shared by the console, ``assay show`` and the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """Return minutes and seconds, with hours where there are any.

    >>> duration(48.2), duration(725), duration(3725)
    ('0:48', '12:05', '1:02:05')
    """
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


def number(value: float | None, unit: str = "") -> str:
    """Return a number in the form that suits its unit; a dash where there is none.

    >>> number(0.625, "share"), number(1020.4, "tokens/s"), number(0.00031234, "nats"), number(None)
    ('62.5%', '1,020', '0.00031', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if unit == "share":
        return f"{100 * value:.1f}%"
    if unit == "count" or (unit.startswith("tokens") and value >= 100):
        return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:,.1f}"
    if unit in ("s", "tokens"):
        return f"{value:,.1f}"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1e-4:
        return f"{value:.1e}"
    return f"{value:.2g}" if abs(value) < 1e-3 else f"{value:.3g}"


def bins(values: Sequence[float], width: int) -> list[float]:
    """Return at most ``width`` means of neighbouring values (NaN left out, NaN where nothing is left).

    >>> bins([1, 3, 5, 7], 2)
    [2.0, 6.0]
    """
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)] if count else [0]
    out = []
    for low, high in pairwise(edges):
        kept = [v for v in values[low:high] if math.isfinite(v)]
        out.append(sum(kept) / len(kept) if kept else math.nan)
    return out


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw a series as blocks from its least to its greatest value, at most ``width`` characters.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8)
    '▁▂▃▄▅▆▇█'
    >>> sparkline([5, float("nan"), 5], 8)
    '▄ ▄'
    """
    means = bins(values, width)
    finite = [v for v in means if not math.isnan(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)

    def block(value: float) -> str:
        if math.isnan(value):
            return " "
        return _BLOCKS[round(7 * (value - low) / (high - low))] if high > low else _BLOCKS[3]

    return "".join(block(v) for v in means)


def parts_of(shares: Sequence[float], width: int) -> list[int]:
    """Split ``width`` cells among shares (largest remainders), so that they add up to ``width``.

    >>> parts_of([0.5, 0.25, 0.25], 10)
    [5, 3, 2]
    """
    total = sum(shares)
    if total <= 0:
        return [0] * len(shares)
    exact = [width * s / total for s in shares]
    cells = [math.floor(x) for x in exact]
    order = sorted(range(len(shares)), key=lambda i: (cells[i] - exact[i], i))
    for i in order[: width - sum(cells)]:
        cells[i] += 1
    return cells
