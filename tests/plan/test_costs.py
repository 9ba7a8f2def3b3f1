"""Costs, distributions and the file that holds them."""

import random
import re
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from assay.errors import UserError
from assay.plan.costs import Costs, DecodeCost, UpdateCost
from assay.plan.costs_file import read_costs
from assay.plan.distribution import Constant, Exponential, LogNormal, Observed
from assay.plan.least_squares import nonnegative
from assay.plan.workload import DrawnWork, SeenGroup, SeenWork

FILE = """
costs:
  prefill: {fixed_s: 0.01, per_token_s: 2.0e-5}
  decode:
    steps: {1: 0.01, 64: 0.02}
  update: {per_token_s: 1.0e-3}
work:
  kind: drawn
  lengths: {kind: lognormal, mean: 300, p95: 900}
  prompt_tokens: {kind: constant, value: 80}
"""


@given(st.integers(1, 100), st.integers(1, 200), st.integers(0, 5000), st.floats(0, 0.001))
def test_many_steps_cost_what_they_cost_one_by_one_and_their_number_is_found_again(rows, steps, cached, each):
    decode = DecodeCost(steps={1: 0.01, 20: 0.012, 64: 0.05}, per_cached_token_s=each)
    single = sum(decode.step_s(rows) + each * (cached + rows * i) for i in range(steps))
    assert decode.seconds(rows, steps, cached) == pytest.approx(single)
    assert decode.steps_within(rows, single, cached) in (steps, steps + 1)  # one more where rounding falls short
    assert decode.steps_within(rows, single - decode.step_s(rows) / 2, cached) == steps


@pytest.mark.parametrize(
    ("steps", "word"), [({}, "at least 1"), ({0: 1.0}, "rows"), ({1: 0.0}, "seconds"), ({1: 2.0, 2: 1.0}, "fall")]
)
def test_a_curve_that_cannot_be_is_refused(steps, word):
    with pytest.raises(ValidationError, match=word):
        DecodeCost(steps=steps)


def test_twice_the_trainers_are_twice_as_fast_less_what_each_doubling_loses():
    update = UpdateCost(fixed_s=1.0, per_token_s=0.1, scored_token_s=0.05, scaling=0.9)
    assert update.seconds(100, 40, 1) == pytest.approx(13.0)
    assert update.seconds(100, 40, 4) == pytest.approx(1.0 + 12.0 / (4 * 0.81))


@pytest.mark.parametrize(
    "distribution",
    [
        Constant(value=7),
        Exponential(mean=7),
        LogNormal(mean=7, p95=20),
        LogNormal(mean=7, p95=7.5),
        Observed(values=[1, 6, 14]),
    ],
)
def test_what_is_drawn_has_the_mean_that_was_asked_for(distribution):
    rng = random.Random(1)
    drawn = sorted(distribution.draw(rng) for _ in range(40000))
    assert fmean(drawn) == pytest.approx(distribution.mean, rel=0.03)
    if isinstance(distribution, LogNormal):
        assert drawn[38000] == pytest.approx(distribution.p95, rel=0.05)


@pytest.mark.parametrize("p95", [6.9, 28])
def test_a_tail_that_no_log_normal_has_is_refused(p95):
    with pytest.raises(ValidationError, match=r"p95 must be between 1 and 3\.87 means"):
        LogNormal(mean=7, p95=p95)


def test_logged_groups_stay_together_and_are_cut_at_the_cap():
    work = SeenWork(
        groups=[SeenGroup(prompt_tokens=5, lengths=[2, 3], signal=False), SeenGroup(prompt_tokens=6, lengths=[80, 90])]
    )
    rng = random.Random(0)
    drawn = {work.group(0, rng, 2, 85) for _ in range(50)}
    assert {(g.prompt_tokens, g.lengths, g.signal) for g in drawn} == {(5, (2, 3), False), (6, (80, 85), True)}
    larger = work.group(0, rng, 4, 85).lengths
    assert len(larger) == 4
    assert set(larger) <= {2, 3} or set(larger) <= {80, 85}
    replayed = work.model_copy(update={"in_order": True})
    assert [replayed.group(n, rng, 2, 85).prompt_tokens for n in range(5)] == [5, 6, 5, 6, 5]
    drawn_work = DrawnWork(lengths=Exponential(mean=50), prompt_tokens=Constant(value=9), signal_share=0.25)
    groups = [drawn_work.group(0, rng, 2, 60) for _ in range(2000)]
    assert fmean(g.signal for g in groups) == pytest.approx(0.25, abs=0.04)
    assert max(n for g in groups for n in g.lengths) == 60


@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=2), st.integers(0, 2**32))
def test_coefficients_are_found_again(true, seed):
    rng = random.Random(seed)
    rows = [[rng.uniform(1, 50), rng.uniform(1, 500)] for _ in range(12)]
    seconds = [sum(c * x for c, x in zip(true, row, strict=True)) for row in rows]
    assert nonnegative(rows, seconds) == pytest.approx(true, rel=1e-6)


def test_what_would_be_negative_is_left_out():
    rows = [[1.0, 10.0], [1.0, 20.0], [1.0, 40.0]]
    fixed, each = nonnegative(rows, [5.0, 15.0, 35.0])  # exactly -5 + x
    assert fixed == 0.0
    assert each == pytest.approx(55 / 70)


def test_a_machine_that_is_slow_at_times_is_slow_on_average():
    rows, slowness = [[1.0, float(n)] for n in (10, 20, 40, 10, 20, 40)], (1, 1, 1, 5, 5, 5)
    seconds = [slow * (2 + 0.1 * n) for (_, n), slow in zip(rows, slowness, strict=True)]
    fixed, each = nonnegative(rows, seconds)
    assert (fixed, each) == pytest.approx((6.0, 0.3))


def test_a_costs_file_is_read(tmp_path):
    (tmp_path / "costs.yaml").write_text(FILE)
    found = read_costs(tmp_path / "costs.yaml")
    assert found.costs.decode.steps == {1: 0.01, 64: 0.02}
    assert found.work == DrawnWork(lengths=LogNormal(mean=300, p95=900), prompt_tokens=Constant(value=80))


def test_the_file_in_the_documentation_is_read(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "plan.md"
    (example,) = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "costs.yaml").write_text(example, encoding="utf-8")
    found = read_costs(tmp_path / "costs.yaml")
    assert set(Costs.model_fields) - found.costs.model_fields_set == {
        "overhead_s",
        "probe_tokens",
        "probe_prompt_tokens",
    }
    assert found.work is not None


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("decode:\n    steps: {1: 0.01, 64: 0.02}", "publish_s: 1", "costs.yaml:2: costs.decode is missing"),
        ("fixed_s: 0.01", "fixd_s: 0.01", "costs.yaml:3: costs.prefill.fixd_s is no key here"),
        (
            "  update:",
            "  publsh_s: 1\n  update:",
            "costs.yaml:6: costs.publsh_s is no key here (did you mean 'publish_s'?)",
        ),
        ("per_token_s: 1.0e-3", "per_token_s: fast", "costs.yaml:6: costs.update.per_token_s is wrong"),
        ("p95: 900", "p95: 9000", "costs.yaml:9: work.lengths is wrong: p95 must be between"),
        ("kind: lognormal", "kind: normal", "costs.yaml:9: work.lengths is wrong"),
        ("64: 0.02", "64: 0.002", "costs.yaml:4: costs.decode is wrong: decode.steps must not fall"),
    ],
)
def test_a_faulty_costs_file_is_refused_with_its_line(tmp_path, old, new, complaint):
    assert FILE.count(old) == 1
    (tmp_path / "costs.yaml").write_text(FILE.replace(old, new))
    with pytest.raises(UserError) as refused:
        read_costs(tmp_path / "costs.yaml")
    assert complaint in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_costs_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="--costs: there is no file"):
        read_costs(tmp_path / "costs.yaml")
