"""The report's section on the sampler: how far it was from the trainer, what correction left of it, and drift."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from assay.objective.mismatch import bin_names, lag_names
from assay.track.glossary import lookup
from assay.track.numbers import number
from assay.view.charts import Series, line_chart, safe
from assay.view.run_record import RunRecord

_CHARTS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    # title; for each line its metric, label and look
    (
        "KL, sampler to trainer",
        (("mismatch/kl", "as sampled", "a"), ("mismatch/corrected/kl", "after correction", "b")),
    ),
    (
        "Distance of probabilities",
        (("mismatch/prob_abs_mean", "as sampled", "a"), ("mismatch/corrected/prob_abs_mean", "after correction", "b")),
    ),
    ("Correlation of probabilities", (("mismatch/prob_correlation", "as sampled", "a"),)),
    (
        "Perplexity ratio",
        (
            ("mismatch/perplexity_ratio", "as sampled", "a"),
            ("mismatch/corrected/perplexity_ratio", "after correction", "b"),
        ),
    ),
    ("Effective sample size", (("update/ess_sequence", "rollouts", "a"), ("update/ess_token", "tokens", "c"))),
    ("Rejected tokens", (("update/rejected_share", "rejected", "fail"),)),
    ("Drift: KL to the sampling policy", (("drift/kl", "before the publish", "a"),)),
    ("Drift: surprise of the gradient norm", (("drift/surprise", "deviations", "a"),)),
)


_FORMS: Mapping[str, Callable[[float], str]] = {
    "share": lambda v: f"{100 * v:.4g}%",
    "ratio": lambda v: f"{v:.5g}",
    "correlation": lambda v: f"{v:.5g}",
}
"""How values near 1 are written: what counts is how near."""


def sampler(run: RunRecord) -> str:
    """Charts of the mismatch, the histogram of weights, and the split by staleness, as far as they were recorded."""
    charts = "".join(_chart(run, title, lines) for title, lines in _CHARTS)
    if not charts:
        return '<div class="card"><p class="missing">Not recorded.</p></div>'
    return f'<p class="soft">{safe(_engine(run.recipe))}</p><div class="many">{charts}</div>{_weights(run)}{_lags(run)}'


def _engine(recipe: Mapping[str, Any]) -> str:
    """Which sampler it was, in the recipe's words."""
    rollout = recipe.get("rollout") or {}
    name, dtype = rollout.get("engine", "native"), rollout.get("dtype", "auto")
    if dtype == "auto":
        dtype = (recipe.get("model") or {}).get("compute_dtype", "auto")
    anchor = (recipe.get("objective") or {}).get("anchor", "auto")
    return f"Sampled by {name} in {dtype}; the ratio's anchor is {anchor}."


def _chart(run: RunRecord, title: str, lines: tuple[tuple[str, str, str], ...]) -> str:
    found = [Series(label, run.series(name), look) for name, label, look in lines]
    found = [s for s in found if any(math.isfinite(v) for _, v in s.points)]
    if not found:
        return ""
    metric = lookup(lines[0][0])
    last = [v for _, v in found[0].points if math.isfinite(v)][-1]
    form = _FORMS.get(metric.unit, number)
    drawn = line_chart(title, found, form, band=metric.band)
    words = " ".join(w for w in (f"Healthy: {metric.healthy_text}." if metric.healthy_text else "", metric.note) if w)
    note = f'<p class="note">{safe(words)}</p>' if words else ""
    return f'<div class="card">{_head(title, form(last))}{drawn}{note}</div>'


def _weights(run: RunRecord) -> str:
    """Mean share of tokens and of rollouts in each bin of the log-weight over all steps."""
    rows = ""
    for name in bin_names():
        shares = [_mean(run, f"mismatch/{level}_weight/{name}") for level in ("token", "sequence")]
        if all(share is None for share in shares):
            continue
        label = name.replace("_", " ").replace("below", "up to").replace("-", "−")
        cells = "".join(
            f"<td class='number'>{'' if s is None else f'{100 * s:.1f}%'}</td><td class='wide'>{_meter(s, look)}</td>"
            for s, look in zip(shares, ("a", "c"), strict=True)
        )
        rows += f"<tr><td>{safe(label)}</td>{cells}</tr>"
    if not rows:
        return ""
    titles = "".join(f"<th class='number'>{title}</th><th></th>" for title in ("tokens", "rollouts"))
    head = f"<tr><th>log-weight, nats</th>{titles}</tr>"
    note = (
        "Trainer less sampler log-prob, over all steps; a rollout's is the sum over its tokens. A weight outside "
        "of −0.5 to 0.5 counts its token for less than 0.6 or more than 1.6."
    )
    table = f"<div class='scroll'><table>{head}{rows}</table></div>"
    return f'<div class="card">{_head("Importance weights")}{table}<p class="note">{note}</p></div>'


def _lags(run: RunRecord) -> str:
    """Tokens by how many versions older their sampler was than the trainer; nothing where none was older."""
    rows = ""
    for name in lag_names():
        share, kl, ess = (_mean(run, f"mismatch/lag/{name}/{what}") for what in ("share", "kl", "ess_token"))
        if share is None or kl is None or ess is None:
            continue
        steps = sum(math.isfinite(v) for _, v in run.series(f"mismatch/lag/{name}/share"))
        cells = (f"{steps}", f"{100 * share:.1f}%", number(kl), f"{100 * ess:.1f}%")
        rows += f"<tr><td>{safe(name)}</td>" + "".join(f"<td class='number'>{cell}</td>" for cell in cells) + "</tr>"
    if not rows:
        return ""
    titles = ("steps with such", "share of their tokens", "KL, nats/token", "effective tokens")
    head = "<tr><th>versions older</th>" + "".join(f"<th class='number'>{title}</th>" for title in titles) + "</tr>"
    table = f"<div class='scroll'><table>{head}{rows}</table></div>"
    return f'<div class="card">{_head("By staleness")}{table}</div>'


def _mean(run: RunRecord, name: str) -> float | None:
    values = [v for _, v in run.series(name) if math.isfinite(v)]
    return fmean(values) if values else None


def _meter(share: float | None, look: str) -> str:
    return f"<div class='meter {look}' style='width:{100 * share:.1f}%'></div>" if share else ""


def _head(title: str, value: str = "") -> str:
    return f'<div class="head"><h3>{safe(title)}</h3><span>{safe(value)}</span></div>'
