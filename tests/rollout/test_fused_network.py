"""The fused network gives the model's own numbers, says when it cannot, and follows the trainer's weights."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from rollout_helpers import TEXTS, TOKENIZER, logits_of, prompt, requests, run
from tiny import tiny_model
from torch import nn

from assay.errors import UserError
from assay.rollout.engine import Request
from assay.rollout.fused import FusedNetwork
from assay.rollout.native import NativeEngine
from assay.rollout.network import GeneralNetwork
from assay.rollout.packed import MKL, ONEDNN, Packed, _works, compiled_products, library_for
from assay.rollout.projection import Dense, Int8, Unfusable
from assay.rollout.runner import ModelRunner
from assay.rollout.sampling import Sampling
from assay.rollout.selfcheck import prepare
from assay.rollout.sequence import Sequence

FUSED = {
    "llama": {"attention_bias": True, "mlp_bias": False},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "mistral": {},
    "gemma2": {},
    "gemma3": {"tie_word_embeddings": True},
    "olmo2": {},
}


def bent(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with its norms and biases off their initial ones and zeros, which would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
            elif "embed" not in name:
                parameter *= 1.2
    return model


def logits_along(network, n_steps=14, seed=3) -> torch.Tensor:
    """Logits (steps, rows, V) of two prompts prefilled together and fed the same random tokens."""
    generator = torch.Generator().manual_seed(seed)
    runner = ModelRunner(network, 200)
    rows = [Sequence(Request(0, prompt(text), 1, Sampling(max_tokens=99)), 0, np.empty(0)) for text in TEXTS[:3]]
    with torch.no_grad():
        steps = [runner.prefill(rows, [0, 1, 2])]
        for _ in range(n_steps):
            for row in rows:
                row.tokens.append(int(torch.randint(4, 60, (), generator=generator)))
            steps.append(runner.decode(rows).clone())
    return torch.stack(steps)


@pytest.mark.parametrize("family", FUSED)
def test_logits_are_those_of_the_general_path(family):
    model = bent(tiny_model(family, sharpness=2.0, num_hidden_layers=3, **FUSED[family]))
    fused, general = logits_along(FusedNetwork(model)), logits_along(GeneralNetwork(model))
    torch.testing.assert_close(fused, general, rtol=1e-4, atol=1e-4)
    assert general.std() > 0.1


@pytest.mark.parametrize("family", FUSED)
def test_common_families_are_fused_and_others_served_by_the_general_path(family):
    assert isinstance(prepare(tiny_model(family), 100, None, False).network, FusedNetwork)
    assert isinstance(prepare(tiny_model("gpt2"), 100, None, False).network, GeneralNetwork)


def test_an_engine_says_whose_forward_it_uses():
    assert NativeEngine(tiny_model("qwen3"), TOKENIZER).path == "native, fused products, compiled kernels"
    assert NativeEngine(tiny_model("gpt2"), TOKENIZER).path == "native, transformers' own forward"


def test_a_family_that_only_looks_alike_is_left_to_the_general_path():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = tiny_model("llama")
    mlp = model.model.layers[0].mlp
    mlp.down_proj.__class__ = Doubled
    with pytest.raises(Unfusable, match="Doubled is not a linear map"):
        FusedNetwork(model)
    wanted = requests(n=1, greedy=True)
    engine = NativeEngine(model, TOKENIZER)
    answers = run(engine, wanted)
    for request in wanted:
        rollout = answers[request.id, 0]
        expected = (
            logits_of(model, request, rollout).log_softmax(-1).gather(1, torch.tensor(rollout.token_ids)[:, None])
        )
        assert (torch.tensor(rollout.sampler_logprobs) - expected[:, 0]).abs().max() < 1e-4


def test_a_forward_that_differs_in_its_numbers_alone_is_left_to_the_general_path():
    model = tiny_model("llama")
    layer = model.model.layers[1]
    plain = layer.forward
    layer.forward = lambda x, *args, **kwargs: plain(x, *args, **kwargs) + 0.3 * x
    assert isinstance(prepare(model, 100, None, False).network, GeneralNetwork)


def test_the_trainers_tensors_serve_where_they_can_and_copies_are_made_anew_at_publish():
    model = tiny_model("llama", tie_word_embeddings=False).double()  # float32 ones may be packed, and so copied
    network = FusedNetwork(model)
    block = network._blocks[0]
    assert isinstance(block.down, Dense)
    assert isinstance(block.qkv, Dense)
    assert block.down.weight.data_ptr() == model.model.layers[0].mlp.down_proj.weight.data_ptr()
    place = block.qkv.weight.data_ptr()
    bent(model, seed=1)
    network.refresh()
    assert block.qkv.weight.data_ptr() == place
    torch.testing.assert_close(logits_along(network), logits_along(GeneralNetwork(model)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_new_weights_arrive_at_a_refresh(dtype):
    model = tiny_model("qwen2", tie_word_embeddings=True)
    network = FusedNetwork(model, dtype)
    before = logits_along(network)
    bent(model, seed=1)
    network.refresh()
    after, wanted = logits_along(network), logits_along(FusedNetwork(model, dtype))
    torch.testing.assert_close(after, wanted, rtol=0, atol=0)
    assert (before - after).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("library", filter(None, [MKL, ONEDNN, compiled_products()]), ids=lambda library: library.name)
@pytest.mark.parametrize("rows", [1, 2, 31, 128, 700])
def test_packed_products_are_the_plain_ones_for_any_number_of_rows(rows, library, dtype):
    if not _works(library, dtype):
        pytest.skip(f"{library.name} has no packed products in {dtype} here")
    generator = torch.Generator().manual_seed(rows)
    one, two = (nn.Linear(96, n, bias=bias) for n, bias in ((160, True), (24, False)))
    x = torch.randn(rows, 3, 96, generator=generator)
    with torch.no_grad():
        wanted = torch.cat([one(x), two(x)], -1)
        gap = 1e-5 if dtype == torch.float32 else 0.02
        found = Packed([one, two], dtype, library)(x.to(dtype))
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), wanted, rtol=10 * gap, atol=gap)


def test_a_processor_has_a_library_for_what_it_is_fast_in():
    for dtype in (torch.float32, torch.bfloat16):
        library = library_for(dtype)
        assert library is None or _works(library, dtype)
    assert library_for(torch.float64) is None


def test_a_snapshot_shares_nothing():
    model = tiny_model("gemma3", tie_word_embeddings=True)
    network = FusedNetwork(model, snapshot=True)
    before = logits_along(network)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(logits_along(network), before, rtol=0, atol=0)


def test_eight_bits_come_close_and_a_row_does_not_depend_on_the_others():
    generator = torch.Generator().manual_seed(0)
    one, two = (nn.Linear(96, n, bias=bias) for n, bias in ((40, True), (24, False)))
    x = torch.randn(5, 7, 96, generator=generator) * torch.logspace(-3, 3, 7)[:, None]
    projection = Int8([one, two])
    with torch.no_grad():
        exact, rounded = torch.cat([one(x), two(x)], -1), projection(x)
        assert rounded.shape == exact.shape
        error = (rounded - exact).norm(dim=-1) / exact.norm(dim=-1)
        assert 1e-4 < error.max() < 0.02
        torch.testing.assert_close(projection(x[:1, :1]), rounded[:1, :1], rtol=0, atol=0)
        one.weight *= -1
        one.bias *= -1
        projection.refresh()
        torch.testing.assert_close(projection(x)[..., :40], -rounded[..., :40], rtol=1e-5, atol=1e-6)
        assert not projection(torch.zeros(1, 96))[:, 40:].any()


def test_an_engine_in_eight_bits_answers_like_the_model_and_is_refused_elsewhere():
    model = tiny_model("llama", sharpness=2.0)
    wanted = requests(n=2)
    engine = NativeEngine(model, TOKENIZER, dtype=torch.int8)
    answers = run(engine, wanted)
    gaps = []
    for request in wanted:
        rollout = answers[request.id, 0]
        logs = logits_of(model, request, rollout).log_softmax(-1).gather(1, torch.tensor(rollout.token_ids)[:, None])
        gaps += (logs[:, 0] - torch.tensor(rollout.sampler_logprobs)).abs().tolist()
    assert 1e-4 < sum(gaps) / len(gaps) < 0.1
    asyncio.run(engine.publish(1))
    assert run(engine, wanted).keys() == answers.keys()
    with pytest.raises(UserError, match=r"rollout\.dtype: int8 is not for GPT2LMHeadModel"):
        NativeEngine(tiny_model("gpt2"), TOKENIZER, dtype=torch.int8)
