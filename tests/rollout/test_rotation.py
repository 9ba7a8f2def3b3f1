"""Rotations from a table are those that the model itself computes; there is none where they change with the length."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model

from assay.rollout.rotation import TABLE, Rotations

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 1e4,
}


def _kinds(model):
    return tuple(dict.fromkeys(getattr(model.config, "layer_types", None) or ["full_attention"]))


@pytest.mark.parametrize(
    ("family", "changes"),
    [("llama", {}), ("llama", {"rope_parameters": LLAMA3}), ("gemma3", {}), ("olmo2", {})],
    ids=["llama", "llama3", "gemma3", "olmo2"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_table_holds_the_models_own_rotations(family, changes, dtype):
    model = tiny_model(family, **changes)
    rotary, kinds = model.base_model.rotary_emb, _kinds(model)
    rotations = Rotations(rotary, kinds, dtype, torch.device("cpu"))
    assert rotations._tables is not None
    for last in (3, TABLE - 1, TABLE, 5 * TABLE + 7, 2):  # the table grows twice on the way
        positions = torch.tensor([[0, last // 2], [last, 1]])
        turns = rotations.at(positions, known=True)
        assert set(turns) == set(kinds)
        for kind, (cos, sin) in turns.items():
            wanted = rotary(torch.empty(0, dtype=dtype), positions, *([kind] if family == "gemma3" else []))
            half = sin.shape[-1] // 2
            assert torch.equal(cos[:, :, 0], wanted[0])
            assert torch.equal(sin[:, :, 0, half:], wanted[1][..., half:])
            assert torch.equal(sin[:, :, 0, :half], -wanted[1][..., :half])


def test_rotations_that_change_with_the_length_are_computed_each_time():
    model = tiny_model("llama", rope_parameters=DYNAMIC, max_position_embeddings=16)
    rotary = model.base_model.rotary_emb
    rotations = Rotations(rotary, ("full_attention",), torch.float32, torch.device("cpu"))
    positions = torch.tensor([[3, 9]])
    short = rotations.at(positions, known=True)["full_attention"]
    rotations.at(torch.tensor([[3, 200]]), known=True)
    longer = rotations.at(torch.tensor([[9, 200]]), known=True)["full_attention"]
    assert torch.equal(short[0][0, :, 0], rotary(torch.empty(0), positions)[0][0])
    assert not torch.equal(longer[0][0, 0], short[0][0, 1])
