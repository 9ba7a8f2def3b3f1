import math
from pathlib import Path
from typing import get_args

import pytest

from assay.errors import AssayError
from assay.records import Outcome
from assay.track.glossary import AREAS, GLOSSARY, is_timing, lookup, page
from assay.track.metric import Metric

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_committed_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m assay.track.glossary > docs/metrics.md"


def test_the_page_holds_every_metric_once():
    text = page()
    for metric in GLOSSARY:
        assert text.count(f"| `{metric.name}` |") == 1
        assert metric.name.partition("/")[0] in AREAS


def test_every_outcome_is_defined():
    assert all(lookup(f"verdict/{outcome}").unit == "count" for outcome in get_args(Outcome))


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("reward/part/number", "reward/part/*"),
        ("reward/part/my/file.py:check", "reward/part/*"),
        ("eval/mean_at_8", "eval/mean_at_*"),
        ("eval/pass_at_4_high", "eval/pass_at_*_high"),
        ("eval/greedy_low", "eval/greedy_low"),
    ],
)
def test_patterns_cover_their_instances(name, entry):
    assert lookup(name).name == entry


@pytest.mark.parametrize("name", ["update/los", "loss", "reward/part/", "time/genrate", "verdict/fine", ""])
def test_unknown_names_raise(name):
    with pytest.raises(AssayError, match="unknown metric"):
        lookup(name)


def test_bands():
    clip = Metric("x/y", "share", "", (0.1, 0.3))
    assert [clip.judge(v) for v in (0.05, 0.1, 0.3, 0.31, math.nan)] == [
        "low",
        "healthy",
        "healthy",
        "high",
        None,
    ]
    assert clip.healthy_text == "10% to 30%"
    assert Metric("x/y", "nats", "", (0.1, math.inf)).healthy_text == "above 0.1"
    assert Metric("x/y", "nats", "", (-math.inf, 0.05)).healthy_text == "below 0.05"
    assert Metric("x/y", "nats", "", "rises").judge(3.0) is None


def test_timings_are_exempt_from_bit_equality():
    assert {m.name for m in GLOSSARY if is_timing(m.name)} == {
        m.name for m in GLOSSARY if m.name.split("/")[0] in ("time", "speed", "memory")
    }
