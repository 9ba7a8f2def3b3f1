"""From a data section to prompts: stable ids, merged repeats, nothing cut, nothing held out trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_helpers import TEMPLATE, character_tokenizer, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.prompts import PromptSet, load_prompts, shared_problems
from assay.errors import UserError
from assay.recipe.schema import DataRecipe

TOKENIZER = character_tokenizer(TEMPLATE)
SUMS = 'reasoning_gym:chain_sum{"size": 300, "seed": 1, "min_terms": 2, "max_terms": 2, "max_digits": 1}'


def load(*specs: str, split: Any = "train", gold: str = "answer", **options: Any) -> PromptSet:
    return load_prompts(DataRecipe(train=list(specs), **options), TOKENIZER, split, gold)


def rows(n: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{i} plus {i}?", "answer": str(2 * i), "level": i % 3} for i in range(n)]


def test_a_prompt_holds_all_that_is_known(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", rows(2))
    found = load(path, system="Add.", suffix=" =")
    first = found.prompts[0]
    assert first.messages == (
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "0 plus 0? ="},
    )
    assert first.text == "[system]Add.\n[user]0 plus 0? =\n[assistant]"
    assert TOKENIZER.decode(first.token_ids).replace(" ", "") == first.text.replace(" ", "")
    assert first.columns == {"prompt": "0 plus 0?", "answer": "0", "level": 0}
    assert first.source == f"{path}:1"
    assert first.problem == "0 plus 0?"
    assert found.sources == {path: 2}
    assert found.describe() == "2 prompts, 2 distinct problems, longest 42 tokens"


@settings(deadline=None, max_examples=20)
@given(st.permutations(rows(6)))
def test_ids_survive_reordering(tmp_path_factory: pytest.TempPathFactory, shuffled: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("ids")
    before = load(write_jsonl(folder / "a.jsonl", rows(6)))
    after = load(write_jsonl(folder / "b.jsonl", shuffled), suffix=" Think.")
    ids = {p.columns["prompt"]: p.id for p in before.prompts}
    assert len(set(ids.values())) == 6
    assert {p.columns["prompt"]: p.id for p in after.prompts} == ids


def test_an_id_is_pinned(tmp_path: Path) -> None:
    (prompt,) = load(write_jsonl(tmp_path / "a.jsonl", [{"prompt": "2+2?", "answer": "4"}])).prompts
    assert prompt.id == PINNED, "other ids would orphan the rollouts and checkpoints of old runs"


PINNED = "1653952353b29d55"


def test_equal_rows_are_merged_and_different_ones_are_not(tmp_path: Path) -> None:
    one = {"prompt": "2+2?", "answer": "4"}
    path = write_jsonl(tmp_path / "a.jsonl", [one, {**one, "answer": "four"}, one, {**one, "tests": ["x"]}, one])
    found = load(path)
    assert [p.source for p in found.prompts] == [f"{path}:{n}" for n in (1, 2, 4)]
    assert len({p.id for p in found.prompts}) == 3
    assert (found.repeated, found.problems, found.sources[path]) == (2, 1, 5)
    assert "2 repeated rows merged" in found.describe()
    assert load(path, path).repeated == 7


def test_generated_repeats_are_merged_though_their_numbers_differ() -> None:
    found = load(SUMS)
    questions = [p.columns["question"] for p in found.prompts]
    assert len(questions) == len(set(questions)) == 300 - found.repeated
    assert found.problems < len(found) < 300
    assert found.without_answer == 0


@pytest.mark.parametrize("n", [1, 40, 100])
def test_the_held_out_split_shares_no_problem_with_training(n: int) -> None:
    training, held_out = load(SUMS, holdout=n), load(SUMS, split="eval", holdout=n)
    assert held_out.problems == n
    assert training.problems + n == load(SUMS).problems
    assert shared_problems(training, held_out) == ()
    assert len(shared_problems(training, load(SUMS))) == training.problems
    trained = {p.columns["metadata"]["expression"] for p in training.prompts}
    for prompt in held_out.prompts:
        left, operator, right = prompt.columns["metadata"]["expression"].split()
        assert f"{left} {operator} {right}" not in trained
        assert operator == "-" or f"{right} + {left}" not in trained


def test_separate_evaluation_data(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "a.jsonl", rows(5))
    other = write_jsonl(tmp_path / "b.jsonl", rows(7)[4:])
    found = load(train, split="eval", eval=[other])
    assert [p.columns["answer"] for p in found.prompts] == ["8", "10", "12"]
    assert shared_problems(load(train, eval=[other]), found) == ("4 plus 4?",)


def test_prompts_are_never_cut(tmp_path: Path) -> None:
    texts = ["x" * n for n in (5, 50, 6, 60)]
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": t, "answer": "1"} for t in texts])
    frame = len("[user]\n[assistant]")
    found = load(path, max_prompt_tokens=frame + 6)
    assert [p.columns["prompt"] for p in found.prompts] == [texts[0], texts[2]]
    assert [len(p.token_ids) for p in found.prompts] == [frame + 5, frame + 6]
    assert found.too_long == 2
    assert "2 too long and skipped" in found.describe()
    with pytest.raises(UserError, match=r"a\.jsonl:2: the prompt has 68 tokens.*max_prompt_tokens=24"):
        load(path, max_prompt_tokens=frame + 6, overlong="refuse")
    with pytest.raises(UserError, match="all 4 are longer"):
        load(path, max_prompt_tokens=5)


def test_length_does_not_move_a_problem_between_the_splits(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "x" * n} for n in range(1, 40)])
    every = {p.problem for p in load(path, split="eval", holdout=20).prompts}
    short = load(path, split="eval", holdout=20, max_prompt_tokens=40)
    assert {p.problem for p in short.prompts} < every
    assert short.too_long + short.problems == 20


def test_the_right_answer_under_another_name(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "label": "1"}, {"prompt": "b", "label": None}])
    found = load(path, gold="label")
    assert found.prompts[0].columns["answer"] == "1"
    assert found.without_answer == 1
    assert "1 without a right answer" in found.describe()


@pytest.mark.parametrize(
    ("options", "split", "says"),
    [
        ({}, "train", "data.train: no data named"),
        ({"train": [SUMS]}, "eval", "set data.holdout"),
        ({"train": [SUMS], "eval": [SUMS], "holdout": 5}, "train", "both set"),
        ({"train": [SUMS], "holdout": 500}, "train", "leaves none to train on"),
        ({"train": [SUMS], "template": "none", "enable_thinking": True}, "train", "enable_thinking"),
    ],
)
def test_recipes_that_give_no_prompts(options: dict[str, Any], split: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_prompts(DataRecipe(**options), TOKENIZER, split)


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [*rows(3), {"prompt": ""}])
    with pytest.raises(UserError, match=r"a\.jsonl:4: the prompt is empty"):
        load(path)
