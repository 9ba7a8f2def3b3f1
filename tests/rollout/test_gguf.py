"""GGUF files: what is refused, what is written, and when a file is there."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from tiny import tiny_model

from assay.errors import AssayError, UserError
from assay.rollout.llama.gguf import layout_of, packed, write


def layout(model, precision="f16", context=64):
    return layout_of(model, precision, frozenset({2, 7}), context)


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("gpt2", {}, "architecture 'gpt2'"),
        ("mistral", {"sliding_window": 8}, "no sliding window, and this one attends to the last 8 tokens of 64"),
        ("llama", {"hidden_act": "gelu"}, "the activation silu, and this one gelu"),
        ("gemma3", {}, "another order of sliding and full attention"),
        ("gemma2", {"query_pre_attn_scalar": 99}, "queries scaled by the head's width 16, and this one by 99"),
        ("gemma2", {"tie_word_embeddings": False}, "the embedding as its output head, and this one has its own"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
            "no rotary scaling of the type 'yarn' that was verified",
        ),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(family, fields, message):
    with pytest.raises(UserError, match=message):
        layout(tiny_model(family, **fields))


@pytest.mark.parametrize("precision", ["f16", "bf16", "q8_0"])
def test_the_file_holds_the_weights_in_the_precision(tmp_path, precision):
    model = tiny_model("qwen2")
    sizes = list(write(model, layout(model, precision), tmp_path / "m.gguf"))
    assert sizes == sorted(sizes)
    assert (tmp_path / "m.gguf").stat().st_size == sizes[-1]
    read = {t.name: t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for ours, theirs in {
        "blk.1.attn_k.weight": "model.layers.1.self_attn.k_proj.weight",
        "blk.0.attn_q.bias": "model.layers.0.self_attn.q_proj.bias",
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }.items():
        expected = model.state_dict()[theirs].numpy()
        found = gguf.dequantize(read[ours].data, read[ours].tensor_type).reshape(expected.shape)
        exact = expected.ndim == 1
        assert read[ours].tensor_type.name == ("F32" if exact else precision.upper())
        assert np.abs(found - expected).max() <= (0 if exact else 0.01) * np.abs(expected).max()
    assert "output.weight" not in read  # tied


def test_eight_bits_are_llama_cpps_eight_bits():
    weights = torch.randn(6, 64) * torch.tensor([[1e-3], [1.0], [50.0], [0.0], [1.0], [1e-6]])
    theirs = gguf.quantize(weights.numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert bytes(packed(weights, "q8_0")) == theirs.tobytes()


def test_a_file_is_whole_or_absent(tmp_path):
    model = tiny_model("llama")
    steps = write(model, layout(model), tmp_path / "m.gguf")
    next(steps)
    assert [p.name for p in tmp_path.iterdir()] == ["m.part"]
    steps.close()
    assert not (tmp_path / "m.gguf").exists()
    with pytest.raises(AssayError, match="cannot write the weights"):
        list(write(model, layout(model), tmp_path / "absent" / "m.gguf"))


def test_a_model_that_lost_a_tensor_is_not_written(tmp_path):
    model = tiny_model("llama")
    known = layout(model)
    del model.model.norm
    with pytest.raises(AssayError, match=r"lost the tensor 'model.norm.weight'"):
        list(write(model, known, tmp_path / "m.gguf"))
