"""The whole plan: what is recommended, what is shown, what is refused."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.plan.basis import Basis
from assay.plan.costs import Costs, DecodeCost, UpdateCost
from assay.plan.distribution import Constant, LogNormal
from assay.plan.layout import Layout
from assay.plan.report import best_by_bound
from assay.plan.search import Option, recommended, search
from assay.plan.simulation import simulate
from assay.plan.tally import Prediction
from assay.plan.terms import Terms, terms_of
from assay.plan.workload import DrawnWork
from assay.recipe.schema import Recipe
from assay.rollout.process.factory import Threads

RECIPE = """
model: {path: ./nowhere}
data: {train: [sums.jsonl]}
rollout: {prompts_per_step: 4, group_size: 4, max_tokens: 200}
"""
COSTS = """
costs:
  decode: {steps: {1: 0.01, 64: 0.02}}
  update: {per_token_s: 1.0e-3}
  publish_s: 0.5
"""


def work(signal=1.0):
    return DrawnWork(lengths=LogNormal(mean=80, p95=240), prompt_tokens=Constant(value=20), signal_share=signal)


def costs(**changes):
    values = {"decode": DecodeCost(steps={1: 0.1}), "update": UpdateCost(per_token_s=0.01), "publish_s": 0.5}
    return Costs(**(values | changes))


def option(step_s, eta):
    return Option(Layout(1, 1, shared=False), eta, Prediction(step_s, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1))


def test_the_least_stale_option_near_the_quickest_is_recommended():
    options = [option(10.0, 0), option(5.1, 1), option(5.2, 1), option(5.0, 4), option(4.99, None)]
    assert recommended(options) is options[1]
    assert recommended(options[3:]) is options[3]
    assert [o.prediction.step_s for o in best_by_bound(options)] == [10.0, 5.1, 5.0, 4.99]


def test_where_generation_is_slow_most_gpus_generate_and_where_training_is_they_train():
    terms = Terms(prompts_per_step=8, group_size=4, max_tokens=400, slots=16, verifier_workers=8)
    slow_engine = search(Basis(costs(update=UpdateCost(per_token_s=1e-4)), work()), terms, 6, steps=12)
    slow_trainer = search(Basis(costs(update=UpdateCost(per_token_s=0.5)), work()), terms, 6, steps=12)
    assert slow_engine.fastest.layout.engines >= 4
    assert slow_trainer.fastest.layout.trainers >= 4
    assert slow_trainer.best.max_staleness in (0, 1)


def test_every_bound_and_split_is_tried_and_shared_gpus_only_synchronously():
    found = search(Basis(costs(), work()), Terms(max_tokens=100, max_staleness=3), 3, steps=4)
    tried = {(o.layout.shared, o.layout.engines, o.max_staleness) for o in found.options}
    bounds = (0, 1, 2, 3, 4, None)
    assert tried == {(True, 3, 0), *((False, n, eta) for n in (1, 2) for eta in bounds)}
    assert all(o.prediction.max_staleness <= o.max_staleness for o in found.options if o.max_staleness is not None)


def test_without_gpus_sides_that_work_at_once_share_out_the_threads_and_those_that_take_turns_do_not():
    terms = Terms(prompts_per_step=4, group_size=4, max_tokens=200, threads=2, engine_threads=1)
    found = search(Basis(costs(), work(), threads=Threads(trainer=4, replica=4)), terms, 0, steps=12)
    synchronous = {o.layout.shared: o.prediction for o in found.options if o.max_staleness == 0}
    ahead = next(o.prediction for o in found.options if o.max_staleness == 1)
    alone = simulate(costs(), work(), terms, Layout(1, 1, shared=True), steps=12)
    assert synchronous[True].update_s == pytest.approx(2 * alone.update_s)  # 2 threads of the 4 that were measured
    assert synchronous[True].wait_s == pytest.approx(2 * alone.wait_s)
    assert synchronous[False].wait_s == pytest.approx(4 * alone.wait_s)  # 1 thread
    assert ahead.update_s == pytest.approx(2 * alone.update_s, rel=0.1)
    measured = search(Basis(costs(), work(), threads=Threads(2, 1)), terms, 0, steps=12)
    own = next(o.prediction for o in measured.options if o.max_staleness == 0 and not o.layout.shared)
    assert own.step_s == pytest.approx(alone.step_s)


def test_the_terms_are_the_recipes():
    recipe = Recipe.from_dict(
        {
            "data": {"train": ["sums.jsonl"]},
            "rollout": {"prompts_per_step": 5, "dynamic_sampling": True, "max_extra_groups": 7, "max_running": 9},
            "regime": {"max_staleness": 2, "in_flight": False},
            "objective": {"kl": {"coefficient": 0.1}},
            "reward": {"workers": 3},
            "update": {"epochs": 2, "share_prompts": False},
        }
    )
    found = terms_of(recipe)
    assert (found.prompts_per_step, found.max_extra, found.slots, found.max_staleness) == (5, 7, 9, 2)
    assert (found.in_flight, found.verifier_workers, found.train_all, found.scored_passes) == (False, 3, True, 2)
    assert found.tokens([(10, [3, 4], False)]) == (2 * 27, 2 * 27)
    plain = terms_of(Recipe())
    assert (plain.max_extra, plain.scored_passes, plain.train_all) == (None, 0, False)
    assert plain.tokens([(10, [3, 4], True), (10, [3, 4], False)]) == (17, 0)
    assert replace(plain, max_staleness=None, max_groups=9, sync_every=3).publishes(3, 0)
    assert not replace(plain, max_staleness=None, max_groups=9, sync_every=3).publishes(2, 0)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "costs.yaml").write_text(COSTS)
    return tmp_path


def ask(files, *words):
    return CliRunner().invoke(app, ["plan", str(files / "recipe.yaml"), *words])


def test_the_command_says_the_best_split_and_what_it_rests_on(files):
    found = ask(files, "--gpus", "3", "--costs", str(files / "costs.yaml"), "--steps", "6")
    assert found.exit_code == 0, found.output
    for part in (
        "Rests on",
        "guess",
        "given",
        "Seconds of a step",
        "3 shared",
        "1 generate + 2 train",
        "Take",
        "η = ∞",
    ):
        assert part in found.output


def test_the_same_as_json(files):
    words = ("--gpus", "2", "--costs", str(files / "costs.yaml"), "--steps", "6", "--json")
    first, second = ask(files, *words), ask(files, *words)
    found = json.loads(first.output)
    assert first.output == second.output
    assert found["best"]["step_s"] == min(
        o["step_s"]
        for o in found["options"]
        if o["split"] == found["best"]["split"] and o["max_staleness"] == found["best"]["max_staleness"]
    )
    assert len(found["options"]) == 1 + 5
    assert {note["origin"] for note in found["rests_on"]} == {"given", "guess"}
    assert {lever["setting"].split("=")[0] for lever in found["levers"]} >= {"rollout.oversample", "reward.workers"}


def test_a_bare_size_and_a_device_are_enough(files):
    found = ask(files, "--gpus", "2", "--parameters", "1e9", "--device", "a100", "--steps", "4")
    assert found.exit_code == 0, found.output
    assert "data sheet" in found.output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--gpus", "2"], "say --parameters"),
        (["--gpus", "2", "--parameters", "1e9", "--device", "h10"], "did you mean 'h100'"),
        (["--gpus", "1", "--parameters", "70e9"], "needs 20 GPUs to train"),
        (["--costs", "costs.yaml", "--device", "h100"], "--costs says what everything costs"),
        (["--from", "none", "--measure", "3"], "no run 'none'"),
        (["--device", "h100"], "--device h100 with --gpus 0: say how many"),
        (["--device", "cpu", "--gpus", "2"], "--device cpu with --gpus 2: leave out --gpus"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_line(files, words, complaint, monkeypatch):
    monkeypatch.chdir(files)
    found = ask(files, *words)
    assert complaint in str(found.exception)
