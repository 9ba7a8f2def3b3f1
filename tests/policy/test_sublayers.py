"""Fused norms and feed-forward parts: the modules' own results and gradients, with less kept for the backward pass."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import tiny_model
from torch import nn

from assay.policy.sublayers import fuse_sublayers

FUSED = {"llama": 7, "qwen2": 7, "qwen3": 11, "mistral": 7, "olmo2": 11, "gemma2": 0, "gpt2": 0}
"""Sub-layers of two layers and the final norm that are fused: Gemma's norms add 1, its activation is another."""


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
    assert fuse_sublayers(model) == FUSED[family]
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
    assert fuse_sublayers(model)
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
    fuse_sublayers(model)
    assert kept(model) < 0.8 * before


def test_a_copy_computes_with_its_own_weights():
    model = tiny_model("llama")
    fuse_sublayers(model)
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
    assert fuse_sublayers(adapted) == 2 * layers + 1  # the norms
    assert fuse_sublayers(tiny_model("llama").to(torch.bfloat16)) == 0


def test_a_module_that_merely_looks_alike_keeps_its_own():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(torch.ones(16)), 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * self.weight

    assert fuse_sublayers(nn.Sequential(Twice())) == 0
