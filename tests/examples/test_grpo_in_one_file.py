"""The algorithm in one file is the algorithm of the package: same rollouts, same advantages, same gradient."""

from __future__ import annotations

import ast
import importlib.util
import random
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tiny import save_tiny, tiny_model, tiny_tokenizer
from torch import Tensor

from assay.objective import objective
from assay.policy.batch import pack
from assay.policy.policy import Policy
from assay.recipe.schema import Recipe
from assay.records import Group, Prompt, Rollout, Segment, Verdict

PATH = Path(__file__).parents[2] / "examples" / "grpo_in_one_file.py"
REWARDS = torch.tensor([[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]])


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grpo_in_one_file", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def recipe(epochs: int = 1) -> Recipe:
    """What the file does, as a recipe."""
    return Recipe.model_validate(
        {
            "model": {"compute_dtype": "float32"},
            "objective": {"estimator": "grpo", "loss": "clip", "aggregation": "token", "clip_high": 0.28},
            "update": {"max_grad_norm": None, "learning_rate": 3e-3, "epochs": epochs},
        }
    )


def sampled(example: ModuleType, model) -> list:
    """Three groups of four answers, sampled by the file."""
    tokenizer = tiny_tokenizer()
    sums = example.make_sums(random.Random(1), 3)
    torch.manual_seed(0)
    return example.sample(model, tokenizer, [example.encode(tokenizer, q) for q, _ in sums], 4, 9)


def as_groups(answers: list, logprobs: list[Tensor]) -> list[Group]:
    """The same rollouts as the package's records."""
    groups = []
    for g, rewards in enumerate(REWARDS.tolist()):
        prompt = Prompt(f"p{g}", (), "", tuple(answers[4 * g].prompt.tolist()))
        rollouts = []
        for i in range(4):
            ids = tuple(answers[4 * g + i].response.tolist())
            segment = Segment("policy", ids, tuple(logprobs[4 * g + i].tolist()), (0,) * len(ids))
            rollouts.append(Rollout(prompt.id, i, (segment,), "stop", ""))
        groups.append(Group(prompt, tuple(rollouts), tuple(Verdict(r, "scored") for r in rewards)))
    return groups


def gradient(model) -> Tensor:
    return torch.cat([p.grad.double().flatten() for p in model.parameters()])


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_advantages_and_gradient_are_the_packages(example, family):
    model = tiny_model(family)
    answers = sampled(example, model)
    ours = example.advantages(REWARDS)
    logprobs = example.backward(model, answers, ours.flatten())
    batch = pack(as_groups(answers, logprobs), recipe().reward)
    theirs = objective.advantages(batch.step, recipe().objective).advantages
    torch.testing.assert_close(theirs, ours.flatten()[batch.step.layout.sequence])
    assert (ours[1] == 0).all()
    policy = Policy(recipe(), tiny_model(family), torch.device("cpu"), 1)
    torch.testing.assert_close(policy.score(batch), torch.cat(logprobs), rtol=0, atol=1e-5)
    policy.update(batch, 0.0)
    wanted = gradient(policy.model)
    assert wanted.norm() > 0
    assert (gradient(model) - wanted).norm() < 1e-5 * wanted.norm()


def test_a_second_epoch_is_clipped_as_the_package_clips(example):
    """After a large step many ratios are outside the band: gradients agree there too."""
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    answers = sampled(example, model)
    given = example.advantages(REWARDS).flatten()
    anchors = example.backward(model, answers, given)
    optimizer.step()
    optimizer.zero_grad()
    moved = example.backward(model, answers, given, anchors)
    ratio = (torch.cat(moved) - torch.cat(anchors)).exp()
    assert ((ratio < 0.8) | (ratio > 1.28)).float().mean() > 0.1
    policy = Policy(recipe(epochs=2), tiny_model(), torch.device("cpu"), 1)
    metrics = policy.update(pack(as_groups(answers, anchors), recipe().reward), 0.0).metrics
    assert metrics["update/clip_low_share"] > 0
    wanted = gradient(policy.model)
    assert (gradient(model) - wanted).norm() < 1e-3 * wanted.norm()  # Adam's first step doubles the rounding


def test_a_split_into_parts_changes_nothing(example, monkeypatch):
    gradients = []
    for rows in (1, 5, 100):
        monkeypatch.setattr(example, "ROWS", rows)
        model = tiny_model()
        example.backward(model, sampled(example, model), example.advantages(REWARDS).flatten())
        gradients.append(gradient(model))
    for other in gradients[1:]:
        assert (other - gradients[0]).norm() < 1e-5 * gradients[0].norm()


def test_answers_end_with_their_end_of_sequence_token(example):
    model = tiny_model(eos_token_id=[2, 30])
    answers = sampled(example, model)
    for answer in answers:
        ends = torch.isin(answer.response, torch.tensor([2, 30])).nonzero().flatten().tolist()
        assert ends in ([], [len(answer.response) - 1])
        assert 1 <= len(answer.response) <= 9
    assert len({tuple(a.response.tolist()) for a in answers}) > 1


@pytest.mark.parametrize(
    ("text", "score"), [("3 + 4 = 7", 1.0), ("7", 1.0), ("7 or 8", 0.0), ("-7", 0.0), ("seven", 0.0), ("", 0.0)]
)
def test_the_rule(example, text, score):
    assert example.reward(text, 7) == score


def test_it_runs_as_its_first_lines_say(tmp_path, monkeypatch, capsys):
    save_tiny(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(PATH), str(tmp_path), "--steps", "2"])
    runpy.run_path(str(PATH), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [re.match(r"step +(\d) +reward 0\.\d{3} +tokens", line) is not None for line in lines] == [True, True]


def test_it_stands_alone_and_fits_on_a_few_pages():
    source = PATH.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 200
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    outside = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert outside == {"torch", "transformers"}
    numbered = re.findall(r"^(\d)\. ", ast.get_docstring(ast.parse(source)) or "", flags=re.M)
    assert numbered == [str(i) for i in range(1, len(numbered) + 1)]
    assert len(numbered) >= 4
