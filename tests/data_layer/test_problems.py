"""A problem is the same in every wording; a held-out problem is never trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.problems import problem_of, split_holdout
from assay.errors import UserError


@dataclass(frozen=True)
class Item:
    problem: str
    wording: int = 0


def gym(task: str, **metadata: Any) -> str:
    return problem_of([{"role": "user", "content": "?"}], {"metadata": {"source_dataset": task, **metadata}})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("3 + 5", "5 + 3", True),
        ("5 - 3", "-3 + 5", True),
        ("5 - 3", "5 + -3", True),
        ("5 - -3", "3 + 5", True),
        ("4 + 0", "4 - 0", True),
        ("1 - 2 + 3", "3 - 2 + 1", True),
        ("10 + 2", "2 + 10.0", True),
        ("5 - 3", "3 - 5", False),
        ("5 + 3", "5 - 3", False),
        ("4 + 4", "5 + 3", False),
        ("1 + 20", "1 + 2", False),
    ],
)
def test_sums(one: str, other: str, same: bool) -> None:
    assert (gym("chain_sum", expression=one) == gym("chain_sum", expression=other)) is same
    assert (gym("decimal_chain_sum", expression=one) == gym("decimal_chain_sum", expression=other)) is same


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-99, 99), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_sums_ignore_the_order_of_signed_terms(terms: list[int], draws: Any) -> None:
    def written(values: list[int]) -> str:
        return " ".join([str(values[0]), *(f"- {-v}" if v < 0 else f"+ {v}" for v in values[1:])])

    shuffled = terms.copy()
    draws.shuffle(shuffled)
    assert gym("chain_sum", expression=written(terms)) == gym("chain_sum", expression=written(shuffled))
    assert gym("chain_sum", expression=written(terms)) != gym("chain_sum", expression=written([*terms, 7]))


def test_products_and_divisors() -> None:
    assert gym("products", expression="3 * 7") == gym("products", expression="7 * 3") == "products: 3 7"
    assert gym("gcd", numbers=[8, 12]) == gym("gcd", numbers=[12, 8]) != gym("lcm", numbers=[8, 12])


def test_every_generated_task_that_is_known_has_its_operands() -> None:
    from assay.data.problems import TASK_PROBLEMS
    from assay.data.sources import read_rows

    for task in TASK_PROBLEMS:
        for row in read_rows(f'reasoning_gym:{task}{{"size": 20}}'):
            problem = problem_of([{"role": "user", "content": row.columns["prompt"]}], row.columns)
            assert problem.startswith(f"{task}: "), row


def test_other_rows_go_by_their_text_or_their_problem_column() -> None:
    def text(content: str, **columns: Any) -> str:
        return problem_of([{"role": "system", "content": "S"}, {"role": "user", "content": content}], columns)

    assert text("What is  2+2?") == text("what is 2+2? ")
    assert text("What is 2+2?") != text("What is 2-2?")
    assert text("a", problem="P1") == text("b", problem="p1")
    assert text("a", problem=1) != text("a", problem=2)
    assert text("a", problem=None) == text("a")
    assert text("x", metadata={"source_dataset": "maze"}) == text("x")
    assert problem_of([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], {}) != text("a")


problems = st.lists(st.sampled_from("abcdefghij"), min_size=2, max_size=40).filter(lambda p: len(set(p)) > 1)


@settings(deadline=None, max_examples=50)
@given(problems, st.data(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_held_out_problems_are_never_trained_on(names: list[str], data: Any, seed: int, draws: Any) -> None:
    items = [Item(name, i) for i, name in enumerate(names)]
    n = data.draw(st.integers(0, len(set(names)) - 1))
    training, held_out = split_holdout(items, n, seed)
    assert not {i.problem for i in training} & {i.problem for i in held_out}
    assert len({i.problem for i in held_out}) == n
    assert set(training) | set(held_out) == set(items)
    assert len(training) + len(held_out) == len(items)

    draws.shuffle(items)
    again = split_holdout(items, n, seed)
    assert (set(again[0]), set(again[1])) == (set(training), set(held_out)), "the order of rows does not matter"
    smaller = split_holdout(items, max(n - 1, 0), seed)[1]
    assert set(smaller) <= set(held_out)


def test_the_choice_depends_on_the_seed_and_is_pinned() -> None:
    items = [Item(f"p{i}") for i in range(100)]
    chosen = {seed: [i.problem for i in split_holdout(items, 5, seed)[1]] for seed in (0, 1)}
    assert chosen[0] != chosen[1]
    assert chosen[0] == PINNED, "another choice would put problems that old runs trained on into the held-out set"


PINNED = ["p65", "p29", "p36", "p98", "p25"]


def test_a_holdout_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"data\.holdout: 2 of 2 distinct problems"):
        split_holdout([Item("a"), Item("b"), Item("a")], 2)
