"""report.html: what a run did, on one page that needs nothing but a browser.

No script and no network: styles and drawings are inside the page, and a content security policy forbids the
rest, so that a completion could not run anything even if it slipped through the escaping.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from assay.track.files import write_aside
from assay.view import exhibits, mismatch, sections
from assay.view.charts import safe
from assay.view.run_record import RunRecord, open_run

_SECTIONS: tuple[tuple[str, Callable[[RunRecord], str]], ...] = (
    ("What ran", exhibits.recipe),
    ("Before and after", sections.before_after),
    ("Alarms", exhibits.alarms),
    ("Reward", sections.reward),
    ("Groups", sections.groups),
    ("Length", sections.lengths),
    ("Health", sections.health),
    ("Sampler against trainer", mismatch.sampler),
    ("Where the time went", sections.time_spent),
    ("Completions", exhibits.samples),
)


def page(run: RunRecord) -> str:
    """Return the report as HTML."""
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    body = "".join(f"<section><h2>{title}</h2>{section(run)}</section>" for title, section in _SECTIONS)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = f'<p class="eyebrow">Assay report</p><h1>{safe(run.name)}</h1>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{safe(run.name)} · assay</title><style>{style}</style></head><body><main>"
        f"{head}{sections.headline(run)}{sections.tiles(run)}{body}"
        "<footer>Drawn from metrics.jsonl, evals.jsonl, alarms.jsonl, summary.json and rollouts/ of the run folder. "
        "What each metric means: docs/metrics.md.</footer></main></body></html>\n"
    )


def write_report(run_folder: str | Path) -> Path:
    """Write ``report.html`` into a run folder, whole or not at all, and return its path.

    Any file of the folder may be missing: its section says that nothing was recorded.

    Raises :class:`assay.errors.UserError` for a file that is broken.
    """
    folder = Path(run_folder)
    text = page(open_run(folder))

    def write(aside: Path) -> None:
        aside.write_text(text, encoding="utf-8")

    write_aside(folder / "report.html", write)
    return folder / "report.html"
