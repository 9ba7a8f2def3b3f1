"""What prompts begin with is computed once, and their answers are those of whole prompts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rollout_helpers import TEXTS, TOKENIZER, prompt, run
from tiny import tiny_model

from assay.rollout import stem
from assay.rollout.engine import Request
from assay.rollout.fused import FusedNetwork
from assay.rollout.native import NativeEngine
from assay.rollout.network import GeneralNetwork
from assay.rollout.runner import ModelRunner
from assay.rollout.sampling import Sampling
from assay.rollout.sequence import Sequence
from assay.rollout.stem import STEM

BEGINNING = "You are asked: what is "


def rows_of(texts: list[str], n: int = 2) -> list[Sequence]:
    made = [Request(i, prompt(text), n, Sampling(max_tokens=30)) for i, text in enumerate(texts)]
    return [Sequence(request, k, np.empty(0)) for request in made for k in range(n)]


@torch.no_grad()
def logits_along(network: GeneralNetwork | FusedNetwork, texts: list[str], budget: int) -> torch.Tensor:
    """Of a prefill and four steps, (steps, rows, V)."""
    rows, made = rows_of(texts), ModelRunner(network, budget)
    steps = [made.prefill(rows, list(range(len(rows))))]
    for step in range(4):
        for row in rows:
            row.tokens.append(5 + step)
        steps.append(made.decode(rows))
    return torch.stack(steps)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("budget", [40, 4096])
def test_logits_are_those_of_whole_prompts(family: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """gemma3's window is shorter than the beginning."""
    model = tiny_model(family, sharpness=2.0).double()
    texts = [BEGINNING + text for text in TEXTS]
    networks = [GeneralNetwork(model)] + ([FusedNetwork(model)] if family != "gpt2" else [])
    shared = [logits_along(network, texts, budget) for network in networks]
    monkeypatch.setattr(stem, "STEM", 10**6)
    whole = [logits_along(network, texts, budget) for network in networks]
    for ours, theirs in zip(shared, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert theirs.std() > 0.1


def test_an_engine_computes_it_once() -> None:
    engine = NativeEngine(tiny_model(), TOKENIZER)
    texts = [BEGINNING + text for text in TEXTS]
    before = engine.stats
    run(engine, [Request(i, prompt(text), 3, Sampling(max_tokens=4), 1) for i, text in enumerate(texts)])
    tokens = sum(len(prompt(text).token_ids) for text in texts)
    did = engine.stats.since(before)
    assert did.prefill_tokens == tokens - (len(texts) - 1) * len(prompt(BEGINNING).token_ids)
    assert did.prefilled == len(texts)


def test_the_last_token_of_each_is_its_own_and_little_is_not_shared() -> None:
    made = ModelRunner(FusedNetwork(tiny_model()), 4096)
    same = tuple(range(5, 5 + STEM))
    with torch.no_grad():
        stems = [
            made._stem(some) for some in ([same, (*same, 7)], [(*same, 7), (*same, 7, 8)], [same], [(4, 5), (4, 6)])
        ]
    assert [stem and stem.length for stem in stems] == [None, STEM, None, None]
