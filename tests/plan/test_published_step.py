"""A step whose phases were published, predicted from its length distribution.

One GRPO step of verl on 8 H100: a 1.7-billion-parameter actor on two of them, its judge on the other six; 64 prompts
with 2 answers each, at most 256 tokens. Generation took 113.4 s. The mean answer took 24 s, the slowest 112 s; then
6.0 s for the anchor's log-probs, 4.2 s for the reference's, 19.4 s for the update, 4.1 s for the weights: 147 s in all.

What is taken from that: the mean, the cap, and that the slowest answer is one of 256 tokens, so that a token takes
112 s / 255. Lengths are taken to be exponential (an answer may end at every token with the same chance) and cut at the
cap; 128 answers run at once. That the phase then lasts as long as it did is the prediction.
"""

import math
from dataclasses import replace
from statistics import fmean

import pytest

from assay.plan.costs import Costs, DecodeCost, UpdateCost
from assay.plan.distribution import Constant, Exponential
from assay.plan.layout import Layout
from assay.plan.simulation import Simulation, simulate
from assay.plan.terms import Terms
from assay.plan.workload import DrawnWork

MEAN_S, SLOWEST_S, PHASE_S = 24.0, 112.0, 113.4
TRAINED_S, WEIGHTS_S, STEP_S = 6.0 + 4.2 + 19.4, 4.1, 147.1
CAP, PROMPTS, SIZE = 256, 64, 2
TOKEN_S = SLOWEST_S / (CAP - 1)
TERMS = Terms(prompts_per_step=PROMPTS, group_size=SIZE, max_tokens=CAP, slots=PROMPTS * SIZE, verifier_workers=128)
BOTH = Layout(engines=2, trainers=2, shared=True)
"""As it ran: two GPUs that generate and train in turn."""
SPLIT = Layout(engines=1, trainers=1, shared=False)
"""The same two, one for each."""


def uncut_mean(mean: float) -> float:
    """The mean of the exponential whose mean is ``mean`` once it is cut at the cap: m (1 - exp(-cap / m)) = mean."""
    m = mean
    for _ in range(60):
        m = mean / (1 - math.exp(-CAP / m))
    return m


MEAN_TOKENS = 1 + MEAN_S / TOKEN_S
WORK = DrawnWork(lengths=Exponential(mean=uncut_mean(MEAN_TOKENS)), prompt_tokens=Constant(value=1))
COSTS = Costs(
    decode=DecodeCost(steps={1: TOKEN_S}),
    update=UpdateCost(per_token_s=2 * TRAINED_S / (PROMPTS * (1 + SIZE * MEAN_TOKENS))),
    publish_s=WEIGHTS_S,
)


def step_s(layout=BOTH, costs=COSTS, **changes):
    return simulate(costs, WORK, replace(TERMS, **changes), layout, steps=150).step_s


def test_the_generation_phase_follows_from_mean_and_cap():
    tally = Simulation(COSTS, WORK, TERMS, BOTH).run(300)
    phases = sorted(step.wait_s for step in tally.steps)
    assert fmean(phases) == pytest.approx(108.6, abs=1.5)
    assert fmean(phases) == pytest.approx(PHASE_S, rel=0.05)
    assert phases[15] < SLOWEST_S == pytest.approx(phases[285])  # 5 % to 95 %: 92 to 112 s
    at_the_cap = sum(phase == pytest.approx(SLOWEST_S) for phase in phases) / len(phases)
    assert at_the_cap == pytest.approx(0.75, abs=0.06)  # how often one of 128 answers reaches it


def test_the_step_as_it_ran():
    assert step_s() == pytest.approx(STEP_S, rel=0.05)


def test_what_a_cap_would_have_saved():
    """At half the cap a tenth of the answers is cut and the phase is halved: nobody waits for a tail beyond it."""
    cut = math.exp(-128 / WORK.lengths.mean)
    assert cut == pytest.approx(0.103, abs=0.002)
    assert step_s(max_tokens=128) == pytest.approx(86.4, abs=1.5)


def test_what_staleness_would_have_saved():
    """One GPU generates, one trains, half as fast: at 0 that loses; at 1 it wins, at 2 the trainer never waits."""
    found = {eta: step_s(SPLIT, max_staleness=eta, keep_cache=True) for eta in (0, 1, 2)}
    assert found[0] == pytest.approx(172, abs=3)
    assert found[1] == pytest.approx(89, abs=3)
    assert found[2] == pytest.approx(2 * TRAINED_S + WEIGHTS_S, rel=0.02)


def test_what_streaming_has_saved_already():
    """Verdicts of 5 s each, 16 at a time (the judge's own times were not published): after generation they would take
    128 * 5 / 16 = 40 s; found while others are sampled, the phase grows by less than the last one takes."""
    judged = COSTS.model_copy(update={"verifier": Constant(value=5.0), "verifier_workers": 16})
    apart, streamed, free = step_s(costs=judged, stream=False), step_s(costs=judged), step_s()
    assert apart - free == pytest.approx(40.0, abs=0.5)
    assert streamed - free < 6.0
