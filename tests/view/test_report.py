import html.parser
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from view_helpers import write_runs

from assay.errors import UserError
from assay.track.metrics import MetricsLog
from assay.view.report import page, write_report
from assay.view.run_record import open_run


@pytest.fixture
def runs(tmp_path):
    return write_runs(tmp_path)


ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "section",
        "footer",
        "div",
        "span",
        "p",
        "b",
        "i",
        "br",
    ),
    *(
        "h1",
        "h2",
        "h3",
        "table",
        "tr",
        "td",
        "th",
        "details",
        "summary",
        "pre",
        "code",
        "svg",
        "path",
        "rect",
    ),
}
VOID = {"meta", "br"}


class Audit(html.parser.HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open, self.words = set(), set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def audit(text):
    found = Audit()
    found.feed(text)
    found.close()
    assert found.open == [], "every element is closed"
    return found


def test_nothing_that_a_run_says_becomes_markup(runs):
    text = write_report(runs / "try").read_text(encoding="utf-8")
    found = audit(text)
    assert found.tags <= ALLOWED
    assert not {name for name in found.attributes if name.startswith("on")}
    assert not found.attributes & {"src", "href", "srcdoc", "action"}
    assert "<script" not in text
    assert "\x1b" not in text
    assert any("<script>alert(1)</script>" in word for word in found.words), "it is shown, as text"
    assert not re.search(r"https?://|url\(|@import", text), "nothing is fetched"
    assert "default-src 'none'" in text


def test_the_report_says_what_happened(runs):
    words = " ".join(audit(write_report(runs / "try").read_text(encoding="utf-8")).words)
    for part in ("try", "25.0% (20% to 30%)", "75.0% (70% to 80%)", "+50.0", "100 held-out problems", "1,234",
                 "advantage +0.70", "advantage -0.70", "everything else", "a batch used once never clips",
                 "Only mixed groups pull", "mean@8"):  # fmt: skip
        assert part in words
    assert "intervals overlap" not in words


def test_an_overlap_of_the_intervals_is_said(runs):
    path = runs / "try" / "summary.json"
    summary = json.loads(path.read_text())
    summary["after"]["greedy"] = {"value": 0.29, "low": 0.24, "high": 0.34, "n": 100}
    path.write_text(json.dumps(summary))
    assert "may be chance" in write_report(runs / "try").read_text(encoding="utf-8")


@pytest.mark.parametrize("missing", ["summary.json", "recipe.yaml", "metrics.jsonl", "evals.jsonl", "rollouts", "all"])
def test_any_file_may_be_missing(runs, missing):
    run = runs / "try"
    for name in ["summary.json", "recipe.yaml", "metrics.jsonl", "evals.jsonl", "rollouts"]:
        if missing in (name, "all"):
            (run / name).rename(runs / name)
    audit(write_report(run).read_text(encoding="utf-8"))


def test_without_a_summary_the_logs_speak(runs):
    (runs / "try" / "summary.json").unlink()
    run = open_run(runs / "try")
    assert run.accuracy("before") == {"greedy": {"value": 0.25, "low": 0.2, "high": 0.3}}
    assert run.accuracy("after")["greedy"]["value"] == 0.75
    assert run.seconds() == {"generate": 15.0, "update": 12.0, "step": 30.0}
    assert "75.0% (70% to 80%)" in page(run)


def test_one_step_and_metrics_that_are_missing_or_null(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(1, {"reward/mean": float("nan"), "update/entropy": 0.5, "group/mixed": 1.0})
    audit(write_report(tmp_path).read_text(encoding="utf-8"))
    log.append(2, {"reward/mean": 0.5, "group/all_fail": 0.0, "group/mixed": 1.0, "group/all_pass": 0.0})
    audit(write_report(tmp_path).read_text(encoding="utf-8"))


def test_broken_files_are_named(runs):
    (runs / "try" / "summary.json").write_text("{")
    with pytest.raises(UserError, match=r"summary\.json"):
        write_report(runs / "try")


def test_every_chart_is_well_formed_and_inside_its_box(runs):
    text = write_report(runs / "try").read_text(encoding="utf-8")
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts) >= 5
    for chart in charts:
        root = ElementTree.fromstring(chart)
        for path in root.iter("path"):
            numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", path.get("d", ""))]
            assert all(-1 <= n <= 1001 for n in numbers), path.get("d")
    titles = re.findall(r"<title>step 2\n(.*?)</title>", text, re.DOTALL)
    assert any("reward of the step 0.2" in title for title in titles)
    assert any("mixed 25%" in title for title in titles)
