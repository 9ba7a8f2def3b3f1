import math
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.view.charts import Series, line_chart, safe, stacked_chart, ticks
from assay.view.sections import trailing_mean

NUMBER = st.floats(-1e12, 1e12, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-200)


@settings(deadline=None, max_examples=50)
@given(NUMBER, NUMBER)
def test_ticks_cover_and_are_few(a, b):
    low, high = min(a, b), max(a, b)
    found = ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1e-300)
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert found == sorted(set(found))
    assert 1 <= len(found) <= 9


def test_a_gap_breaks_the_line_and_a_lone_point_is_drawn():
    points = [(1, 0.0), (2, math.nan), (3, 0.5), (4, math.nan), (5, 1.0), (6, 1.0)]
    drawn = line_chart("x", [Series("x", points)], str)
    path = re.search(r'class="line a" d="([^"]*)"', drawn)
    assert path is not None
    assert path[1].count("M") == 3
    assert path[1].count("L") == 1


def test_places_are_exact():
    drawn = line_chart("x", [Series("x", [(0, 0.0), (5, 0.5), (10, 1.0)])], str, span=(0, 1), band=(0.25, 0.75))
    assert 'd="M0.0 1000.0h0.01L500.0 500.0L1000.0 0.0"' in drawn
    assert '<rect class="band" x="0" y="250.0" width="1000" height="500.0"/>' in drawn


def test_stacked_areas_meet_and_fill_the_box():
    drawn = stacked_chart("x", [1, 2], [("low", "pass", [0.25, 0.5]), ("high", "fail", [0.75, 0.5])])
    low, high = re.findall(r'class="area \w+" d="([^"]*)"', drawn)
    assert low == "M0.0 750.0H500.0L500.0 500.0H1000.0L1000.0 1000.0H500.0L500.0 1000.0H0.0Z"
    assert high == "M0.0 0.0H500.0L500.0 0.0H1000.0L1000.0 500.0H500.0L500.0 750.0H0.0Z"


def test_nothing_to_draw_says_so():
    assert "Not recorded" in line_chart("x", [Series("x", [(1, math.nan)])], str)
    assert "Not recorded" in line_chart("x", [], str)
    assert "Not recorded" in stacked_chart("x", [], [])


@settings(deadline=None, max_examples=50)
@given(st.text())
def test_safe_text_has_nothing_to_act_on(text):
    assert not set(safe(text)) & set("<>\"'\x1b\u202e\r")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1, 1), min_size=1), st.integers(1, 9))
def test_a_trailing_mean_never_looks_ahead(values, k):
    points = list(enumerate(values))
    whole = trailing_mean(points, k)
    for n in range(1, len(points) + 1):
        assert trailing_mean(points[:n], k) == whole[:n]
