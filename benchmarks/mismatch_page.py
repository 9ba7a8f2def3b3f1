"""docs/mismatch.md, written from benchmarks/results/mismatch.json."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness

PAGE = Path(__file__).parent.parent / "docs" / "mismatch.md"


def results() -> Path:
    """Where the figures lie."""
    return harness.RESULTS / "mismatch.json"


def keep(name: str, found: Mapping[str, Any]) -> None:
    """Merge the figures of one sampler into the results."""
    path = results()
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"sides": {}}
    known["sides"][name] = found
    known |= {"benchmark": "mismatch", "machine": harness.machine(), "date": time.strftime("%Y-%m-%d")}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


def row(cells: Iterable[object]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    return [row(header), row("---" for _ in header), *map(row, rows), ""]


def small(value: float) -> str:
    """Three digits, and a power of ten where it is needed.

    >>> small(0.0123456), small(0.0000123), small(0.99987)
    ('0.0123', '1.2e-05', '0.99987')
    """
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.5g}" if 0.9 < abs(value) < 1.1 else f"{value:.3g}"


def gap_table(sides: Mapping[str, Any], trainer: str) -> list[str]:
    """How far each sampler is from a trainer in this precision."""
    header = (
        *("sampler", "answers", "mean log-prob gap", "mean prob gap", "max prob gap", "correlation"),
        *("KL(sampler, trainer)", "KL(trainer, sampler)", "perplexity ratio", "ESS at 64", "ESS at 256"),
    )
    names = (
        *("logprob_abs_mean", "prob_abs_mean", "prob_abs_max", "prob_correlation"),
        *("kl", "kl_reverse", "perplexity_ratio", "ess_64", "ess_256"),
    )
    scored = {name: side["gap"][trainer] for name, side in sides.items() if trainer in side["gap"]}
    return table(
        header, [[name, found["rollouts"], *(small(found[n]) for n in names)] for name, found in scored.items()]
    )


def bypass_table(sides: Mapping[str, Any]) -> list[str]:
    """What the sampler's anchor does at the first inner step, where the trainer's own has ratio 1 and no clip."""
    header = ("sampler", "mean ratio", "largest ratio", "clipped below", "clipped above", "gradient cosine", "norm")
    rows = []
    for name, side in sides.items():
        b = side["bypass"]
        shares = (f"{100 * b[f'clip_{end}_share']:.2f}%" for end in ("low", "high"))
        ratios = (small(b["ratio_mean"]), small(b["ratio_max"]))
        rows.append([name, *ratios, *shares, small(b["gradient_cosine"]), small(b["gradient_norm_ratio"])])
    return table(header, rows)


def _narrow(sides: Mapping[str, Any]) -> str:
    """The section on a trainer in bfloat16, where one was measured."""
    if not any("bfloat16" in side["gap"] for side in sides.values()):
        return ""
    words = "The same tokens, scored in bfloat16 over float32 masters: part of the gap is the trainer's own rounding."
    return "\n".join(["## Against a trainer in bfloat16", "", words, "", *gap_table(sides, "bfloat16"), ""])


def write() -> None:
    """Write the page; its words stand in ``mismatch_words.md``, with a mark for each table."""
    known = json.loads(results().read_text(encoding="utf-8"))
    sides, machine = known["sides"], known["machine"]
    words = (Path(__file__).parent / "mismatch_words.md").read_text(encoding="utf-8")
    tokens = [s["gap"]["float32"]["tokens"] for s in sides.values()]
    parts = {
        "float32": "\n".join(gap_table(sides, "float32")),
        "bfloat16_section": _narrow(sides),
        "bypass": "\n".join(bypass_table(sides)),
        "tokens": f"{min(tokens):,} to {max(tokens):,}",
        "machine": f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, {known['date']}",
    }
    for name, text in parts.items():
        words = words.replace(f"{{{{{name}}}}}", text if name.endswith("section") else text.rstrip("\n"))
    PAGE.write_text(words, encoding="utf-8")
