"""A decoding step as one call against the same kernels called one by one, and against torch's operations."""

from __future__ import annotations

import pytest
import torch
from test_fused_network import FUSED, bent, logits_along
from tiny import tiny_model

from assay.rollout.fused import FusedNetwork
from assay.rollout.packed import compiled_products

pytestmark = pytest.mark.skipif(compiled_products() is None, reason="no products in bfloat16 are compiled here")
WIDE = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
GATED_OTHERWISE = {"gemma2", "gemma3"}


def network_of(family: str, **more: bool) -> FusedNetwork:
    shape = {key: value for key, value in WIDE.items() if key != "head_dim" or family in ("qwen3", "gemma2", "gemma3")}
    model = bent(tiny_model(family, sharpness=2.0, num_hidden_layers=3, **{**FUSED[family], **shape}))
    return FusedNetwork(model, torch.bfloat16, **more)


@pytest.mark.parametrize("family", sorted(set(FUSED) - GATED_OTHERWISE))
def test_it_is_what_its_parts_are(family: str) -> None:
    network = network_of(family)
    assert network._whole is not None
    whole = logits_along(network)
    network._whole = None
    torch.testing.assert_close(whole, logits_along(network), rtol=0.02, atol=0.02)
    plain = logits_along(network_of(family, compiled=False))
    assert (whole.float() - plain.float()).norm() < 0.03 * plain.float().norm()


@pytest.mark.parametrize("family", sorted(GATED_OTHERWISE & set(FUSED)))
def test_a_network_with_a_part_that_is_not_compiled_goes_part_by_part(family: str) -> None:
    assert network_of(family)._whole is None


def test_it_follows_the_weights_and_lets_go_of_them() -> None:
    network = network_of("llama")
    before = logits_along(network)
    network.release()
    assert network._whole is None
    with torch.no_grad():
        for block in network._blocks:
            for product in block.products:
                for source in product._sources:
                    source.weight.mul_(1.5)
    network.refresh()
    after = logits_along(network)
    assert (after - before).abs().max() > 0.1
    network._whole = None
    torch.testing.assert_close(after, logits_along(network), rtol=0.02, atol=0.02)
