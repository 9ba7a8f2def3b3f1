"""The simulated run against closed forms, its laws over random ones, and the same numbers from the same seed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.plan.costs import Costs, DecodeCost, PrefillCost, UpdateCost
from assay.plan.distribution import Constant, Exponential, LogNormal
from assay.plan.layout import Layout
from assay.plan.simulation import Simulation, simulate
from assay.plan.terms import Terms
from assay.plan.workload import DrawnWork

ONE_AND_ONE = Layout(1, 1, shared=False)


def work(lengths, prompt=10, signal=1.0):
    return DrawnWork(lengths=lengths, prompt_tokens=Constant(value=prompt), signal_share=signal)


def costs(**changes):
    values = {
        "prefill": PrefillCost(fixed_s=0.1, per_token_s=0.01),
        "decode": DecodeCost(steps={1: 0.1, 9: 0.5}),
        "update": UpdateCost(fixed_s=1.0, per_token_s=0.02),
        "publish_s": 0.7,
        "overhead_s": 0.0,
        "verifier": Constant(value=0.4),
    }
    return Costs(**(values | changes))


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 30))
def test_a_synchronous_step_is_the_sum_of_its_phases(prompts, size, length):
    """All answers are of one length and run at once: prefill, decode, verdicts one after another, update, publish."""
    terms = Terms(prompts_per_step=prompts, group_size=size, slots=64)
    found = simulate(costs(), work(Constant(value=length)), terms, Layout(1, 1, shared=True), steps=4)
    rows = prompts * size
    generate = 0.1 + 0.01 * 10 * prompts + (length - 1) * (0.1 + 0.05 * (rows - 1))
    update = 1.0 + 0.02 * prompts * (10 + size * length)
    assert found.wait_s == pytest.approx(generate + 0.4 * rows)
    assert found.update_s == pytest.approx(update)
    assert found.step_s == pytest.approx(generate + 0.4 * rows + update + 0.7)
    assert found.max_staleness == 0
    assert found.groups_per_step == prompts


def test_verdicts_are_found_while_other_answers_are_still_sampled():
    terms = Terms(prompts_per_step=8, group_size=4, slots=4, verifier_workers=8)
    slow = costs(verifier=Constant(value=2.0))
    found = simulate(slow, work(Constant(value=21)), terms, ONE_AND_ONE, steps=4)
    one_group = 0.1 + 0.1 + 20 * 0.25
    assert found.wait_s == pytest.approx(8 * one_group + 2.0)  # the last group's verdicts alone are waited for


@pytest.mark.parametrize("trainer_s", [1.0, 40.0])
def test_the_slower_side_sets_the_pace_once_there_is_a_step_to_spare(trainer_s):
    """Lengths are constant, so one batch ahead keeps the slower side busy without a break."""
    terms = Terms(prompts_per_step=4, group_size=2, slots=8, max_staleness=2, keep_cache=True, verifier_workers=8)
    free = costs(update=UpdateCost(fixed_s=trainer_s), publish_s=0.0, overhead_s=0.0, verifier=Constant(value=0.0))
    found = simulate(free, work(Constant(value=101)), terms, ONE_AND_ONE, steps=30)
    alone = 0.1 + 0.1 * 4 + 100 * (0.1 + 0.05 * 7)  # a batch with the slots to itself
    assert found.step_s == pytest.approx(max(trainer_s, alone), rel=0.01)
    assert (found.trainer_idle if trainer_s > alone else found.engine_idle) == pytest.approx(0, abs=0.01)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    eta=st.sampled_from([0, 1, 2, 4, None]),
    engines=st.integers(1, 3),
    slots=st.integers(2, 20),
    in_flight=st.booleans(),
    extra=st.sampled_from([None, 0, 3]),
    oversample=st.sampled_from([0, 2]),
    every=st.integers(1, 3),
)
def test_laws_of_every_simulation(seed, eta, engines, slots, in_flight, extra, oversample, every):
    terms = Terms(
        prompts_per_step=3,
        group_size=4,
        max_tokens=60,
        slots=slots,
        max_staleness=eta,
        max_groups=9 if eta is None else None,
        max_extra=extra,
        oversample=oversample,
        in_flight=in_flight,
        sync_every=every,
        verifier_workers=2,
    )
    lengths = work(LogNormal(mean=20, p95=50), signal=0.6)
    simulation = Simulation(costs(), lengths, terms, Layout(engines, 2, shared=False), seed)
    tally = simulation.run(20)
    end = tally.meters[-1].time
    assert sum(s.seconds for s in tally.steps) == pytest.approx(end)
    if eta is not None:
        assert max(s.max_staleness for s in tally.steps) <= eta
    assert all(s.groups <= 3 for s in tally.steps)
    if extra is None:
        assert all(s.groups == 3 for s in tally.steps)
    meter = tally.meters[-1]
    assert meter.prefill_s + meter.decode_s + meter.pause_s <= engines * end * (1 + 1e-9)
    assert [m.time for m in tally.meters] == sorted(m.time for m in tally.meters)
    again = Simulation(costs(), lengths, terms, Layout(engines, 2, shared=False), seed).run(20)
    assert again.steps == tally.steps


def test_more_staleness_never_slows_a_run_whose_tail_is_long_and_more_engines_neither():
    lengths = work(LogNormal(mean=50, p95=180))
    terms = Terms(prompts_per_step=8, group_size=4, max_tokens=400, slots=64, keep_cache=True, verifier_workers=8)

    def step(eta, engines=1):
        chosen = replace(terms, max_staleness=eta)
        return simulate(costs(), lengths, chosen, Layout(engines, 1, shared=False), steps=60).step_s

    times = [step(eta) for eta in (0, 1, 2, 4)]
    assert times == sorted(times, reverse=True)
    assert step(0, engines=4) < step(0)


def test_oversampling_shortens_the_phase_and_a_cap_bounds_it():
    lengths = work(Exponential(mean=50))
    base = Terms(prompts_per_step=8, group_size=4, max_tokens=400, slots=64, verifier_workers=8)
    free = costs(verifier=Constant(value=0.0), decode=DecodeCost(steps={1: 0.1}), prefill=PrefillCost())

    def wait(**changes):
        return simulate(free, lengths, replace(base, **changes), ONE_AND_ONE, steps=40).wait_s

    assert wait(oversample=4) < 0.6 * wait()
    assert wait(max_tokens=60) == pytest.approx(0.1 * 59, rel=0.02)
    assert wait(max_tokens=400) == pytest.approx(0.1 * 50 * 4.06, rel=0.1)  # mean of 32 times H(32)


def test_answers_end_under_the_weights_they_began_with_where_that_is_asked_for():
    """Nobody starts while the trainer waits for those that run, so no batch mixes versions, and time is lost."""
    lengths = work(LogNormal(mean=30, p95=90))
    terms = Terms(prompts_per_step=4, group_size=2, max_staleness=2, in_flight=False, keep_cache=True)
    drained = simulate(costs(), lengths, terms, ONE_AND_ONE, steps=40)
    flying = simulate(costs(), lengths, replace(terms, in_flight=True), ONE_AND_ONE, steps=40)
    assert drained.publish_s > flying.publish_s + 1.0
    assert drained.step_s > flying.step_s


def test_a_probe_waits_for_a_busy_engine_and_not_for_its_slots():
    lengths = work(Constant(value=100))
    terms = Terms(prompts_per_step=4, group_size=2, slots=8, keep_cache=True, verifier_workers=8)
    probed = costs(probe_tokens=4, probe_prompt_tokens=10)
    idle = simulate(probed, lengths, terms, ONE_AND_ONE, steps=20)
    assert idle.publish_s == pytest.approx(0.7 + (0.1 + 0.1) + 3 * 0.1)
    busy = simulate(probed, lengths, replace(terms, max_staleness=1), ONE_AND_ONE, steps=20)
    assert busy.publish_s + 1e-9 >= 0.7 + 0.2 + 3 * (0.1 + 8 * 0.05)  # a row beside the eight others
    assert busy.publish_s < 4


def test_groups_without_signal_are_replaced_and_cost_generation_but_no_update():
    terms = Terms(prompts_per_step=4, group_size=2, slots=64)
    whole = simulate(costs(), work(Constant(value=20)), terms, ONE_AND_ONE, steps=20)

    half = work(Constant(value=20), signal=0.5)
    skipped = simulate(costs(), half, terms, ONE_AND_ONE, steps=40)
    dynamic = simulate(costs(), half, replace(terms, max_extra=40), ONE_AND_ONE, steps=40)
    assert skipped.update_s - 1.0 == pytest.approx((whole.update_s - 1.0) / 2, rel=0.2)
    assert dynamic.update_s == pytest.approx(whole.update_s)
    assert dynamic.wait_s > 1.3 * whole.wait_s


def test_a_thousand_steps_are_a_matter_of_events_not_of_tokens():
    """16 groups of 8 answers of thousands of tokens: the engine is advanced about once an answer."""
    lengths = work(LogNormal(mean=3000, p95=9000))
    terms = Terms(slots=128, max_tokens=16000, max_staleness=1, verifier_workers=8)
    simulation = Simulation(costs(), lengths, terms, ONE_AND_ONE)
    simulation.run(20)
    assert simulation.events < 5 * 20 * 128
