"""The drift monitor's arithmetic: what crosses, what follows, what is remembered."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.loop.drift import (
    ACTIONS,
    FIRST_NORMS,
    LEAST_SPREAD,
    Crossing,
    Decision,
    DriftState,
    NormMemory,
    Readings,
    decide,
    kl_of,
    publish_due,
)
from assay.recipe.schema import DriftRecipe
from assay.track.glossary import lookup

ACTION = st.sampled_from(ACTIONS)
LEVEL = st.none() | st.floats(0.01, 0.99)
THRESHOLDS = st.builds(
    DriftRecipe, kl=LEVEL, ess=LEVEL, surprise=LEVEL, kl_action=ACTION, ess_action=ACTION, surprise_action=ACTION
)
VALUE = st.none() | st.floats(0, 2) | st.just(math.nan)
READINGS = st.builds(Readings, kl=VALUE, ess=VALUE, surprise=VALUE)
CLEAN = Decision()


def crossing(action) -> Decision:
    return Decision((Crossing("kl", 1.0, 0.5, action),))


@given(readings=READINGS, thresholds=THRESHOLDS)
def test_what_crosses_is_what_lies_beyond_its_threshold(readings: Readings, thresholds: DriftRecipe):
    decision = decide(readings, thresholds)
    wanted = []
    for measure in ("kl", "ess", "surprise"):
        value, threshold = getattr(readings, measure), getattr(thresholds, measure)
        if value is not None and threshold is not None:
            beyond = value < threshold if measure == "ess" else value > threshold
            if beyond or math.isnan(value):
                wanted.append((measure, getattr(thresholds, f"{measure}_action")))
    assert [(c.measure, c.action) for c in decision.crossings] == wanted
    severest = max((ACTIONS.index(action) for _, action in wanted), default=-1)
    assert decision.action == (ACTIONS[severest] if wanted else None)
    assert decision.publishes == (severest >= 1)
    assert all(f"drift.{c.measure} = {c.threshold:g}: {c.action}" in c.line() for c in decision.crossings)


@given(readings=READINGS, thresholds=THRESHOLDS, worse=st.floats(0, 3))
def test_worse_readings_are_never_answered_more_mildly(readings: Readings, thresholds: DriftRecipe, worse: float):
    def severity(r: Readings) -> int:
        action = decide(r, thresholds).action
        return -1 if action is None else ACTIONS.index(action)

    further = Readings(
        *(
            None if v is None else v - worse if name == "ess" else v + worse
            for name, v in (("kl", readings.kl), ("ess", readings.ess), ("surprise", readings.surprise))
        )
    )
    assert severity(further) >= severity(readings)


@given(
    every=st.integers(1, 6) | st.just("drift"),
    bound=st.none() | st.integers(0, 5),
    actions=st.lists(st.none() | ACTION, max_size=40),
)
def test_the_engine_is_never_further_behind_than_staleness_allows(every, bound, actions):
    """However the drift speaks: before each batch it lags by at most the bound, and by less than ``every``."""
    engine = 0
    for version, action in enumerate(actions, start=1):
        decision = CLEAN if action is None else crossing(action)
        if publish_due(every, version, engine, bound, decision):
            engine = version
        else:
            assert action in (None, "warn")
        assert bound is None or version - engine <= bound
        assert every == "drift" or version - engine < every


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), level=st.floats(-6, 6), spread=st.floats(0, 0.5))
def test_only_an_unusual_norm_surprises(seed: int, level: float, spread: float):
    rng, memory = random.Random(seed), NormMemory()
    logs = [rng.gauss(level, spread) for _ in range(200)]
    for i, value in enumerate(logs):
        assert (memory.surprise(math.exp(value)) is None) == (i < FIRST_NORMS)
        memory = memory.after(math.exp(value))
    assert memory.mean == pytest.approx(level, abs=spread + 1e-6)
    assert math.sqrt(memory.variance) == pytest.approx(spread, rel=0.7, abs=1e-6)
    jump = 10 * max(spread, LEAST_SPREAD)
    surprise = memory.surprise(math.exp(level + jump))
    assert surprise is not None
    assert surprise > 5
    shocked = memory.after(math.exp(level + 20))
    assert shocked.surprise(math.exp(level + jump)) > 4
    for broken in (math.nan, math.inf, 0.0):
        assert memory.after(broken) == memory
        assert memory.surprise(broken) is None


def test_a_checkpoint_is_good_once_a_clean_step_followed_it():
    state = DriftState(good=0)
    assert state.after(5, CLEAN, 5 - 1).good == 4
    warned = state.after(5, crossing("warn"), 4)
    assert warned == state
    back = state.after(5, crossing("rollback"), 4)
    assert (back.good, back.restored, back.rollbacks) == (0, 5, 1)
    again = back.after(6, CLEAN, 5)  # the rollback's own checkpoint holds the old weights once more
    assert again == back
    assert again.after(7, crossing("rollback"), 5).rollbacks == 2
    further = again.after(11, CLEAN, 10)
    assert (further.good, further.rollbacks) == (10, 0)
    dropped = state.after(5, crossing("sync"), 4)
    assert dropped.synchronous
    assert dropped.after(6, CLEAN, 4).synchronous


@given(count=st.integers(0, 99), mean=st.floats(-9, 9), good=st.none() | st.integers(0, 9), synchronous=st.booleans())
def test_the_state_survives_its_checkpoint(count, mean, good, synchronous):
    state = DriftState(NormMemory(count, mean, abs(mean)), synchronous, good, rollbacks=count % 3)
    assert DriftState.of(json.loads(json.dumps(asdict(state)))) == state


def test_the_kl_is_the_sum_over_the_vocabulary():
    generator = torch.Generator().manual_seed(0)
    q, p = (torch.log_softmax(torch.randn(5, 7, generator=generator), -1) for _ in range(2))
    wanted = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=q), torch.distributions.Categorical(logits=p)
    )
    assert kl_of(q, p) == pytest.approx(float(wanted.mean()), rel=1e-5)
    assert kl_of(q, q) == 0.0


def test_what_is_logged_is_explained():
    for name in ("kl", "ess", "surprise", "action", "rollbacks"):
        assert lookup(f"drift/{name}").name == f"drift/{name}"
