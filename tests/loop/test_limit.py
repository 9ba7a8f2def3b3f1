"""The share of the machine's limit: the work is counted from what was sampled and trained, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_helpers import make_place, metrics_of, quick, settings

from assay.hardware import product_rate
from assay.loop import limit
from assay.loop.sft import train_on_completions
from assay.loop.trainer import Outcome
from assay.policy.flops import Costs, Work, costs_of, decode_flops, update_flops
from assay.policy.model import load_model
from assay.recipe.schema import ModelRecipe, Recipe
from assay.rollout.engine import Stats
from assay.track.console import make_console
from assay.track.rollouts import read

SHARES = ("speed/generate_limit_share", "speed/update_limit_share")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("limit"))


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """One FLOP a second: the seconds at the limit are the FLOP themselves."""
    monkeypatch.setattr(limit, "product_rate", lambda *_: 1.0)


def totals(outcome: Outcome) -> dict[str, float]:
    state = max(outcome.folder.glob("checkpoints/*/state.json"))
    return json.loads(state.read_text())["totals"]


def prompt_lengths(outcome: Outcome) -> dict[int, int]:
    """Tokens of each group's prompt, which is ``u:A+B=`` and what the template puts around it."""
    return {row.admission: len("u:") + len(row.question) + len("\na:") for row in read(outcome.folder)}


def test_every_step_says_how_near_to_the_limit_it_was(place: Path) -> None:
    outcome = quick(place, run={"name": "shares", "steps": 3}, eval={"every": 1})
    for row in metrics_of(outcome):
        assert all(0 < row[name] < 2 for name in SHARES)
    speed = outcome.summary["speed"]
    assert set(speed) == {"generate", "update"}
    assert speed["generate"]["tokens_s"] == pytest.approx(
        outcome.summary["tokens"]["generated"] / outcome.summary["seconds"]["generate"]
    )
    assert all(0 < phase["limit_share"] < 2 for phase in speed.values())


@pytest.mark.usefixtures("counting")
def test_the_work_of_a_run_is_that_of_its_rollouts(place: Path) -> None:
    """Counted by hand, with evaluations and probes between the steps, which are not in it."""
    outcome = quick(place, run={"name": "by hand", "steps": 2}, eval={"every": 1, "samples": 3})
    costs = costs_of(load_model(str(place / "model"), ModelRecipe(), torch.device("cpu")))
    rows, prompts = read(outcome.folder), prompt_lengths(outcome)
    fed = [(prompts[r.admission], r.tokens - 1) for r in rows]  # the last token is not fed back
    did = Stats(
        decode_rows=sum(n for _, n in fed),
        attended=sum(n * p + n * (n + 1) // 2 for p, n in fed),
        prefill_tokens=sum(prompts.values()),
        prefilled=len(prompts),
    )
    generated = decode_flops(costs, did)
    trained = Work()
    for admission, p in prompts.items():
        lengths = [r.tokens for r in rows if r.admission == admission and r.advantage]
        if lengths:
            pairs = p * (p + 1) // 2 + sum(n * p + n * (n + 1) // 2 for n in lengths)
            trained += Work(p + sum(lengths), sum(lengths), pairs)
    assert trained.tokens > 0
    assert totals(outcome)["limit/generate"] == generated
    assert totals(outcome)["limit/update"] == update_flops(costs, trained)


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize(
    ("sections", "forward_passes", "epochs"),
    [
        ({"objective": {"anchor": "recompute"}}, 1, 1),
        ({"objective": {"kl": {"coefficient": 0.1}}}, 1, 1),
        ({"objective": {"anchor": "recompute", "kl": {"coefficient": 0.1}}}, 2, 1),
        ({"objective": {"anchor": "recompute"}, "update": {"epochs": 2}}, 1, 2),
    ],
)
def test_the_passes_of_anchor_and_reference_are_forward_alone(
    place: Path, sections: dict[str, Any], forward_passes: int, epochs: int
) -> None:
    name = f"{forward_passes} {epochs} {'kl' in str(sections)}"
    outcome = quick(place, run={"name": name, "steps": 1}, eval={"before": False, "after": False}, **sections)
    row, total = metrics_of(outcome)[0], totals(outcome)["limit/update"]
    assert row["update/tokens_forwarded"] > 0
    one_pass = total / (3 * epochs + forward_passes)
    plain = quick(place, run={"name": f"{name} plain", "steps": 1}, eval={"before": False, "after": False})
    if "kl" in sections["objective"]:  # every rollout is forwarded, also those without advantage
        assert one_pass >= totals(plain)["limit/update"] / 3
    else:
        assert one_pass == totals(plain)["limit/update"] / 3


def test_supervised_steps_have_no_generation(place: Path) -> None:
    values = settings(
        place, run={"name": "sft", "steps": 2}, rollout={"group_size": 1}, objective={"estimator": "none"}
    )
    outcome = train_on_completions(Recipe.from_dict(values), console=make_console("silent"))
    assert set(outcome.summary["speed"]) == {"update"}
    for row in metrics_of(outcome):
        assert SHARES[0] not in row
        assert 0 < row[SHARES[1]] < 2


def test_measuring_leaves_the_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    assert product_rate("cpu", "float32", seconds=0.0) > 1e6
    assert torch.equal(before, torch.get_rng_state())


def test_each_precision_has_a_rate_of_its_own() -> None:
    both = limit.Limit(
        Costs(1, 1, 1, 1, 1), {"generate": "bfloat16", "update": "float32"}, {"bfloat16": 4e11, "float32": 1e11}
    )
    assert both.describe() == "400 GFLOP/s in bfloat16, 100 GFLOP/s in float32"
