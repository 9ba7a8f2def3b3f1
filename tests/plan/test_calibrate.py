"""Costs taken from a run folder: from one whose costs are known they are found again; from a real one they come out."""

import json
import random
import shutil
import time
from statistics import fmean

import pytest
from tiny import save_tiny, tiny_tokenizer

from assay.errors import UserError
from assay.plan.calibrate import calibrate, effort, logged_groups
from assay.plan.layout import Layout
from assay.plan.make import Known, basis
from assay.plan.measure import measure
from assay.plan.simulation import simulate
from assay.plan.terms import terms_of
from assay.plan.workload import SeenGroup, SeenWork
from assay.recipe.schema import Recipe
from assay.records import Group, Prompt, Rollout, Segment, Verdict
from assay.track.console import make_console
from assay.track.metrics import MetricsLog
from assay.track.rollouts import RolloutLog

STEP_S, ROW_S, FIXED_S, TOKEN_S, PUBLISH_S, REST_S = 0.05, 0.002, 0.3, 0.004, 0.5, 0.1
PROMPTS, SIZE, CAP, SLOTS = 3, 4, 40, 6


def logged_group(number, rng):
    """A group that a run could have logged; every third one without signal."""
    text = f"{number % 10}+{rng.randint(0, 9)}="
    prompt = Prompt(f"p{number}", ({"role": "user", "content": text},), f"u:{text}\na:", (1, 2), {"answer": "7"})
    signal = number % 3 > 0
    rollouts, verdicts = [], []
    for index in range(SIZE):
        n = rng.randint(1, CAP)
        segment = Segment("policy", tuple(range(n)), (-0.5,) * n, (0,) * n)
        rollouts.append(Rollout(prompt.id, index, (segment,), "stop", "x"))
        verdicts.append(Verdict(float(signal and index == 0), "scored"))
    return Group(prompt, tuple(rollouts), tuple(verdicts), number), [0.5 * signal] * SIZE


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run of 12 steps that took exactly as long as its known costs say, after a first one that took thrice."""
    folder = tmp_path_factory.mktemp("calibrate")
    save_tiny(folder / "model")
    run, rng = folder / "run", random.Random(3)
    recipe = {
        "model": {"path": str(folder / "model")},
        "data": {"train": ["sums.jsonl"]},
        "rollout": {"prompts_per_step": PROMPTS, "group_size": SIZE, "max_tokens": CAP, "max_running": SLOTS},
    }
    metrics, log, number = MetricsLog(run / "metrics.jsonl"), RolloutLog(run / "rollouts"), 0
    (run / "recipe.yaml").write_text(json.dumps(recipe))
    for step in range(1, 14):
        made = [logged_group(number + i, rng) for i in range(PROMPTS)]
        number += PROMPTS
        log.write(step, [group for group, _ in made], [advantages for _, advantages in made])
        seen = [SeenGroup(prompt_tokens=len(g.prompt.text), lengths=[len(r) for r in g.rollouts]) for g, _ in made]
        did = effort(seen, SLOTS)
        forwarded = sum(s.prompt_tokens + sum(s.lengths) for s, (_, a) in zip(seen, made, strict=True) if a[0])
        generate = STEP_S * did.steps + ROW_S * (did.rows + did.prompt_tokens)
        update = FIXED_S + TOKEN_S * forwarded
        slow = 3.0 if step == 1 else 1.0
        metrics.append(
            step,
            {
                "time/generate": slow * generate,
                "time/score": 0.0,
                "time/update": slow * update,
                "time/publish": PUBLISH_S,
                "time/step": slow * (generate + update) + PUBLISH_S + REST_S,
                "update/tokens_forwarded": forwarded,
            },
        )
    return folder


def test_known_costs_are_found_again(place):
    costs = calibrate(place / "run").costs
    assert costs.decode.steps == pytest.approx({1: STEP_S + ROW_S, SLOTS: STEP_S + SLOTS * ROW_S})
    assert costs.prefill.per_token_s == pytest.approx(ROW_S)
    assert (costs.update.fixed_s, costs.update.per_token_s) == pytest.approx((FIXED_S, TOKEN_S))
    probe = ROW_S * costs.probe_prompt_tokens + (costs.probe_tokens - 1) * (STEP_S + ROW_S)
    assert costs.publish_s + probe == pytest.approx(PUBLISH_S)
    assert costs.overhead_s == pytest.approx(REST_S)


def test_the_work_is_what_was_logged(place):
    recipe = Recipe.from_file(place / "run" / "recipe.yaml")
    groups = logged_groups(place / "run", recipe)
    assert [len(groups[step]) for step in range(1, 14)] == [PROMPTS] * 13
    assert {g.prompt_tokens for step in groups.values() for g in step} == {
        len(tiny_tokenizer()("u:1+2=\na:").input_ids)
    }
    assert fmean(g.signal for step in groups.values() for g in step) == pytest.approx(2 / 3)


def test_the_run_itself_is_predicted_from_its_own_costs(place):
    basis = calibrate(place / "run")
    terms = terms_of(Recipe.from_file(place / "run" / "recipe.yaml"))
    rows = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()][1:]
    found = simulate(basis.costs, basis.work, terms, Layout(1, 1, shared=True), steps=300)
    assert found.step_s == pytest.approx(fmean(row["time/step"] for row in rows), rel=0.05)
    assert found.update_s == pytest.approx(fmean(row["time/update"] for row in rows), rel=0.05)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda run: (run / "metrics.jsonl").unlink(), "no step with its times and rollouts"),
        (lambda run: [p.unlink() for p in (run / "rollouts").iterdir()], "no rollouts are logged"),
        (lambda run: edit(run, regime={"max_staleness": 1}), "an asynchronous run"),
    ],
)
def test_a_run_that_says_too_little_is_refused(place, tmp_path, spoil, complaint):
    shutil.copytree(place / "run", tmp_path / "run")
    spoil(tmp_path / "run")
    with pytest.raises(UserError, match=complaint):
        calibrate(tmp_path / "run")


def test_lengths_can_be_had_from_any_run_and_costs_of_a_processor_are_not_a_gpus(place, tmp_path):
    recipe = Recipe.from_file(place / "run" / "recipe.yaml")
    with pytest.raises(UserError, match="--gpus 4: the costs are a processor's"):
        basis(recipe, 4, Known(run=place / "run"))
    shutil.copytree(place / "run", tmp_path / "run")
    edit(tmp_path / "run", regime={"max_staleness": 1})
    found = basis(recipe, 4, Known(run=tmp_path / "run", device="h100", parameters=1e9))
    assert found.work == calibrate(place / "run").work
    assert {n.what: n.origin for n in found.notes}["lengths"] == "measured"
    assert found.threads is None


def edit(run, **sections):
    values = json.loads((run / "recipe.yaml").read_text())
    (run / "recipe.yaml").write_text(json.dumps({**values, **sections}))


def test_a_few_real_steps_are_measured_and_leave_nothing_behind(place, tmp_path):
    rows = [{"prompt": f"{a}+{a}=", "answer": str(2 * a)} for a in range(8)]
    (tmp_path / "sums.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    recipe = Recipe.from_dict(
        {
            "model": {"path": str(place / "model"), "compute_dtype": "float32"},
            "data": {"train": [str(tmp_path / "sums.jsonl")], "holdout": 2},
            "rollout": {"prompts_per_step": 2, "group_size": 4, "max_tokens": 6},
            "reward": {"parts": [{"verifier": "regex", "options": {"pattern": "[0-9]"}}]},
            "regime": {"max_staleness": 1},
            "eval": {"samples": 2, "every": 1},
            "run": {"steps": 50, "folder": str(tmp_path / "runs"), "threads": 1},
        }
    )
    began = time.perf_counter()
    found = measure(recipe, 3, make_console("silent"))
    took = time.perf_counter() - began
    assert isinstance(found.work, SeenWork)
    assert len(found.work.groups) == 6
    assert all(len(g.lengths) == 4 and max(g.lengths) <= 6 for g in found.work.groups)
    assert found.costs.decode.step_s(8) > 0
    assert 0 <= found.costs.publish_s < took  # 0: all of it was the probe, as far as two steps tell
    assert not list((tmp_path / "runs").iterdir())
