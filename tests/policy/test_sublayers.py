"""Fused norms and feed-forward parts: the modules' own results and gradients, with less kept for the backward pass."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import tiny_model
from torch import nn

from assay.policy.narrow import NarrowWeights
from assay.policy.sublayers import fuse_sublayers, restore_sublayers

EXACT = NarrowWeights(torch.float32)
LLAMA = 1 + 2 * (7 + 1 + 2) + 1 + 1
FUSED = {
    "llama": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA + 4,
    "mistral": LLAMA,
    "olmo2": LLAMA + 4,
    "gemma2": 2 * 7 + 1,
    "gpt2": 3,
}
"""Modules that are fused: the embedding, of each of two layers seven linear maps, the feed-forward part and the norms,
the last norm and the head. Gemma scales its embedding, its norms add 1 and its activation is another; GPT-2 has nothing
but two embeddings and a head."""


def gradients(model: nn.Module) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    ids = torch.arange(24).view(2, 12) % 50 + 4
    logits = model(input_ids=ids, use_cache=False).logits
    model.zero_grad()
    logits.log_softmax(-1)[..., 7].sum().backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", FUSED)
def test_results_and_gradients_are_the_models_own(family: str):
    model = tiny_model(family, num_hidden_layers=2)
    logits, wanted = gradients(model)
    assert fuse_sublayers(model, EXACT) == FUSED[family]
    found_logits, found = gradients(model)
    assert (found_logits - logits).abs().max() < 1e-5 * logits.abs().max()
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def test_what_is_frozen_gets_no_gradient_and_the_rest_the_same():
    model = tiny_model("llama")
    for name, p in model.named_parameters():
        p.requires_grad_("up_proj" in name)
    _, wanted = gradients(model)
    assert fuse_sublayers(model, EXACT)
    _, found = gradients(model)
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-4, atol=1e-6) for name in wanted)


def test_less_is_kept_for_the_backward_pass():
    def kept(model: nn.Module) -> int:
        seen: dict[int, int] = {}

        def note(x: torch.Tensor) -> torch.Tensor:
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            model(input_ids=torch.arange(600).view(2, 300) % 50 + 4, use_cache=False)
        return sum(seen.values())

    model = tiny_model("llama", max_position_embeddings=512)
    before = kept(model)
    fuse_sublayers(model, EXACT)
    assert kept(model) < 0.8 * before


def test_a_copy_computes_with_its_own_weights():
    model = tiny_model("llama")
    fuse_sublayers(model, EXACT)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    wanted = tiny_model("llama")
    ids = torch.arange(12)[None] + 4
    assert torch.allclose(other(ids).logits, wanted(ids).logits, atol=1e-5)


def test_adapted_and_narrow_modules_keep_their_own():
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(tiny_model("llama"), LoraConfig(r=2, target_modules=["up_proj"]))
    layers = len(adapted.get_base_model().model.layers)
    norms, maps, adapters = 2 * layers + 1, 7 * layers, 2 * layers
    assert fuse_sublayers(adapted, EXACT) == 1 + norms + maps + adapters + 1  # no feed-forward part
    assert fuse_sublayers(tiny_model("llama").to(torch.bfloat16), EXACT) == 0


def test_a_module_that_merely_looks_alike_keeps_its_own():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(torch.ones(16)), 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * self.weight

    assert fuse_sublayers(nn.Sequential(Twice()), EXACT) == 0


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_narrow_products_are_near_and_their_gradients_wide(family: str):
    """As near as torch's own narrow products; under autocast alone."""
    model = tiny_model(family, num_hidden_layers=2)
    logits, wanted = gradients(model)
    with torch.autocast("cpu", torch.bfloat16):
        _, theirs = gradients(model)
    fuse_sublayers(model, NarrowWeights(torch.bfloat16))
    outside, _ = gradients(model)
    assert torch.equal(outside, logits), "without autocast a module is what it was"
    with torch.autocast("cpu", torch.bfloat16):
        inside, found = gradients(model)
    assert 0 < (inside.float() - logits).abs().max() < 0.05 * logits.abs().max()
    for name, gradient in wanted.items():
        assert found[name].dtype == torch.float32
        assert found[name].is_contiguous()
        own = (theirs[name] - gradient).norm()
        assert (found[name] - gradient).norm() <= 2 * own + 1e-3 * gradient.norm(), name


def test_gradients_that_are_there_are_added_to():
    model = tiny_model("llama")
    fuse_sublayers(model, EXACT)
    _, once = gradients(model)
    once = {name: g.clone() for name, g in once.items()}
    logits = model(input_ids=torch.arange(24).view(2, 12) % 50 + 4, use_cache=False).logits
    logits.log_softmax(-1)[..., 7].sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, 2 * once[name], rtol=1e-5, atol=1e-7), name


def test_a_probe_leaves_gradients_alone():
    model = tiny_model("llama")
    _, before = gradients(model)
    before = {name: g.clone() for name, g in before.items()}
    fuse_sublayers(model, EXACT)
    assert all(torch.equal(p.grad, before[name]) for name, p in model.named_parameters())


def test_forwards_are_given_back():
    model = tiny_model("llama")
    fuse_sublayers(model, EXACT)
    restore_sublayers(model)
    assert not any("forward" in vars(module) for module in model.modules())


def test_padding_has_no_gradient():
    embedding = nn.Embedding(9, 4, padding_idx=2)
    assert fuse_sublayers(nn.Sequential(embedding), EXACT) == 1
    for _ in range(2):
        embedding(torch.tensor([[1, 2], [2, 3]])).sum().backward()
    assert embedding.weight.grad.sum(1).tolist() == [0, 8, 0, 8, 0, 0, 0, 0, 0]


def test_weights_are_cast_once_while_they_are_kept():
    narrow, weight = NarrowWeights(torch.bfloat16), nn.Parameter(torch.ones(3, 2))
    with narrow.kept():
        first = narrow(weight)
        assert narrow(weight) is first
    with torch.no_grad():
        weight.data.mul_(2)  # unseen by torch's count of changes
    with narrow.kept():
        assert torch.equal(narrow(weight), torch.full((3, 2), 2.0, dtype=torch.bfloat16))
    assert narrow(weight) is not narrow(weight)
    same = NarrowWeights(torch.float32)(weight)
    assert same.data_ptr() == weight.data_ptr()
    assert not same.requires_grad
