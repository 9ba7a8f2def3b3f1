"""Prompts that are read once give what each row's own copy gives, whoever leaves, whatever is published."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rollout_helpers import TEXTS, prompt
from tiny import tiny_model
from torch import nn

from assay.rollout.engine import Request
from assay.rollout.fused import FusedNetwork
from assay.rollout.network import GeneralNetwork, Network
from assay.rollout.runner import ModelRunner
from assay.rollout.sampling import Sampling
from assay.rollout.sequence import Sequence
from assay.rollout.shared import cached_rows

GROUPS = (6, 1, 8, 4)


def rows_of(groups: tuple[int, ...] = GROUPS) -> list[Sequence]:
    """Rows of groups of these sizes, interleaved as compaction leaves them."""
    settings = Sampling(max_tokens=99)
    made = [Request(i, prompt(TEXTS[i] * (1 + i)), n, settings) for i, n in enumerate(groups)]
    rows = [Sequence(request, k, np.empty(0)) for request in made for k in range(request.n)]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(5)).tolist()
    return [rows[i] for i in order]


class Walk:
    """A runner fed the same random tokens as every other walk."""

    def __init__(self, network: Network, rows: list[Sequence]) -> None:
        self.runner, self.rows = ModelRunner(network, 4096), rows
        self.generator = torch.Generator().manual_seed(1)
        self.logits = [self.fill()]

    @torch.no_grad()
    def fill(self) -> torch.Tensor:
        return self.runner.prefill(self.rows, list(range(len(self.rows))))

    @torch.no_grad()
    def go(self, steps: int) -> None:
        for _ in range(steps):
            for row in self.rows:
                row.tokens.append(int(torch.randint(4, 60, (), generator=self.generator)))
            self.logits.append(self.runner.decode(self.rows).clone())

    def leave(self, slot: int) -> None:
        """The row of a slot ends, and the last one moves into it."""
        last = len(self.rows) - 1
        self.runner.cache.move(last, slot, self.rows[last].length)
        self.rows[slot] = self.rows[last]
        self.rows.pop()


def both(model: nn.Module, compiled: bool) -> tuple[Walk, Walk]:
    return Walk(FusedNetwork(model, compiled=compiled), rows_of()), Walk(GeneralNetwork(model), rows_of())


def assert_shared(walk: Walk, compiled: bool) -> None:
    """The shared path must be what is tested."""
    assert walk.runner.network.compiled == compiled
    assert (walk.runner._prompts is None) == compiled


def assert_agreement(one: Walk, other: Walk) -> None:
    for mine, theirs in zip(one.logits, other.logits, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "olmo2"])
def test_rows_that_come_and_go(family: str, compiled: bool) -> None:
    """Rows leave from the middle, then a whole group does: the slots of the others change under them."""
    walks = both(tiny_model(family, sharpness=3.0, num_key_value_heads=2, num_attention_heads=4), compiled)
    for walk in walks:
        walk.go(4)
        for slot in (0, 2, 5, 11):
            walk.leave(slot)
            walk.go(2)
        alone = next(i for i, row in enumerate(walk.rows) if row.request.id == 2)
        walk.leave(alone)
        walk.go(3)
    assert_agreement(*walks)
    shared, apart = walks[0].runner.stats, walks[1].runner.stats
    assert shared.attended - shared.attended_padding == apart.attended - apart.attended_padding
    assert_shared(walks[0], compiled)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_publish_reads_the_prompts_anew(compiled: bool) -> None:
    model = tiny_model(sharpness=3.0)
    walks = both(model, compiled)
    for walk in walks:
        walk.go(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    for walk in walks:
        walk.runner.network.refresh()
        walk.logits.append(walk.fill())
        walk.go(3)
    assert_agreement(*walks)
    assert_shared(walks[0], compiled)
    moved = (walks[0].logits[4] - walks[0].logits[0]).abs().max()
    assert moved > 0.01, "the weights must have changed what is said"


def test_few_siblings_or_a_window_keep_each_row_to_itself() -> None:
    alone = Walk(FusedNetwork(tiny_model(), compiled=False), rows_of((1, 1, 1, 2)))
    alone.go(2)
    assert alone.runner._prompts is None
    windowed = Walk(FusedNetwork(tiny_model("gemma3"), compiled=False), rows_of())
    windowed.go(30)
    assert windowed.runner._prompts is None


def test_a_request_of_the_same_content_is_another_group() -> None:
    """Two equal requests are two groups, and one that takes a finished one's place is read anew."""
    rows = rows_of((2, 2))
    twin = replace(rows[0].request)
    walk = Walk(FusedNetwork(tiny_model(), compiled=False), rows)
    walk.go(1)
    before = walk.runner._prompts
    walk.go(1)
    assert walk.runner._prompts is before, "nothing changed, nothing is read again"
    walk.rows[:] = [
        Sequence(twin if row.request is rows[0].request else row.request, row.index, row.uniforms) for row in rows
    ]
    walk.logits.append(walk.fill())
    walk.go(1)
    assert walk.runner._prompts is not before


def test_kernels_read_a_prompt_where_the_first_of_its_rows_has_it() -> None:
    rows = rows_of()
    walk = Walk(FusedNetwork(tiny_model()), rows)
    walk.go(1)
    read = cached_rows(walk.rows, walk.runner.cache)
    asked = [row.asked for row in rows]
    assert read.source.tolist() == [asked.index(one) for one in asked]
    assert len(set(read.source.tolist())) == len(GROUPS)
    together = [asked[slot] for slot in read.order.tolist()]
    assert sorted(read.order.tolist()) == list(range(len(rows)))
    assert len([one for i, one in enumerate(together) if i == 0 or one != together[i - 1]]) == len(GROUPS)
    assert read.shared.tolist() == [len(row.request.prompt.token_ids) for row in rows]
    assert read.positions.tolist() == [row.length - 1 for row in rows]
    assert read.longest == max(row.length for row in rows)


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_kernels_see_no_further_than_a_window(family: str) -> None:
    walks = both(tiny_model(family, sharpness=3.0), True)
    for walk in walks:
        walk.go(12)
        walk.leave(3)
        walk.go(3)
    assert_agreement(*walks)
    assert walks[0].runner.network.compiled
