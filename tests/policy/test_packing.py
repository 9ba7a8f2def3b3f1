"""Packing: every token is scored once, from the right place, and sees what its own sequence would show it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_helpers import batch_of, make_groups, rollout_of, verdict

from assay.errors import UserError
from assay.policy.packing import ROOM, MicroBatch, microbatches
from assay.records import Group, Prompt
from assay.rollout.masks import LayerMasks

WINDOW = 3
MASKS = LayerMasks({"full_attention": 0, "sliding_attention": WINDOW, "chunked_attention": WINDOW})

steps = st.builds(
    make_groups,
    seed=st.integers(0, 9999),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    longest=st.integers(1, 20),
)


def visible(micro: MicroBatch, kind: str, place: int) -> list[tuple[int, int]]:
    """(token, position) of all that the query at a flattened place may attend to, in order."""
    built = MASKS.build(micro.positions, micro.positions, torch.float32, micro.related())
    assert isinstance(built, dict)
    row, column = divmod(place, micro.input_ids.shape[1])
    seen = (built[kind][row, 0, column] == 0).nonzero().flatten().tolist()
    pairs = [(int(micro.input_ids[row, k]), int(micro.positions[row, k])) for k in seen]
    return sorted(pairs, key=lambda pair: pair[1])


def expected(ids: list[int], query: int, kind: str) -> list[tuple[int, int]]:
    """The same in the sequence alone, by the definition of the kind."""
    first = {
        "full_attention": 0,
        "sliding_attention": query - WINDOW + 1,
        "chunked_attention": query // WINDOW * WINDOW,
    }
    return [(ids[k], k) for k in range(max(0, first[kind]), query + 1)]


@settings(deadline=None, max_examples=40)
@given(steps, st.integers(1, 80), st.booleans(), st.data())
def test_every_token_is_scored_once_and_sees_its_own_sequence(groups, budget, share, data):
    batch = batch_of(groups)
    chosen = data.draw(st.lists(st.sampled_from(range(batch.n_sequences)), unique=True).map(sorted))
    micros = microbatches(batch, chosen, budget, share)
    tokens = [t for micro in micros for t in micro.tokens.tolist()]
    assert sorted(tokens) == batch.tokens_of(chosen).tolist()
    group_of, everything = batch.step.layout.group.tolist(), torch.cat(batch.responses)
    for micro in micros:
        for place, target, token in zip(
            micro.predicts.tolist(), micro.targets.tolist(), micro.tokens.tolist(), strict=True
        ):
            s = int(batch.step.layout.sequence[token])
            prompt = batch.prompts[group_of[s]].tolist()
            ids = prompt + batch.responses[s].tolist()
            query = len(prompt) - 1 + token - int(batch.offsets[s])
            assert target == int(everything[token]) == ids[query + 1]
            for kind in MASKS.sizes:
                assert visible(micro, kind, place) == expected(ids, query, kind)


@settings(deadline=None, max_examples=40)
@given(steps, st.integers(1, 80), st.booleans())
def test_the_budget_holds(groups, budget, share):
    batch = batch_of(groups)
    for micro in microbatches(batch, range(batch.n_sequences), budget, share):
        alone = len(set(batch.step.layout.sequence[micro.tokens].tolist())) == 1
        assert micro.n_tokens <= budget or alone
        assert micro.n_padded <= ROOM * budget or len(micro.input_ids) == 1
        built = MASKS.build(micro.positions, micro.positions, torch.float32, micro.related())
        assert isinstance(built, dict)
        for mask in built.values():  # a row that sees nothing would be NaN after its softmax
            assert (mask == 0).any(-1).all()


def test_a_shared_prompt_is_forwarded_once():
    prompt = Prompt("p", (), "", tuple(range(4, 14)))
    rollouts = tuple(rollout_of(prompt, i, ("policy", [4] * 5)) for i in range(4))
    batch = batch_of([Group(prompt, rollouts, tuple(verdict(float(i)) for i in range(4)))])
    shared, apart = (microbatches(batch, range(4), 1000, share) for share in (True, False))
    assert sum(m.n_tokens for m in shared) == 10 + 4 * 5
    assert sum(m.n_tokens for m in apart) == 4 * (10 + 5)


def test_lengths_of_one_to_a_thousand_waste_little_and_lose_nothing():
    prompt = Prompt("p", (), "", (4, 5))
    lengths = [1000, 1, 3, 700, 2, 90, 91, 1, 400, 5]
    rollouts = tuple(rollout_of(prompt, i, ("policy", [6] * n)) for i, n in enumerate(lengths))
    batch = batch_of([Group(prompt, rollouts, tuple(verdict(0.0) for _ in lengths))])
    micros = microbatches(batch, range(len(lengths)), 512, share_prompts=False)
    assert sorted(t for m in micros for t in m.tokens.tolist()) == list(range(sum(lengths)))
    assert [m.n_tokens for m in micros[:2]] == [1002, 702]
    assert all(m.n_tokens <= 512 for m in micros[2:])
    assert sum(m.n_padded for m in micros) <= 1.05 * sum(n + 2 for n in lengths)


def test_a_prompt_without_tokens_is_refused_by_its_row():
    prompt = Prompt("p", (), "", (), source="data.jsonl:7")
    group = Group(prompt, (rollout_of(prompt, 0, ("policy", [4])),), (verdict(1.0),))
    with pytest.raises(UserError, match=r"^data\.jsonl:7: the prompt has no tokens"):
        batch_of([group])
