"""A Llama model as a GGUF file, which llama.cpp reads: the weights in a precision of one's choice.

Only what the benchmark needs: the Llama architecture with tied embeddings and a byte-level tokenizer (the demo model).
Matrices get the precision asked for; norms stay in float32; the embedding, which is also the output head, is never
narrower than 8 bits, as in the files that llama.cpp's own tools write.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

KINDS = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}
"""Precisions of the matrices by the names that llama.cpp's users know."""
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""llama.cpp's names for the parts of a layer."""
OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def write_gguf(folder: Path, kind: str, target: Path) -> None:
    """Write the Hugging Face model in ``folder`` as the GGUF file ``target``; ``kind`` is a key of `KINDS`.

    Raises SystemExit for a model that is not a Llama with tied embeddings.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or not config["tie_word_embeddings"]:
        raise SystemExit(f"{folder}: only Llama models with tied embeddings are converted, not {config['model_type']}")
    writer = gguf.GGUFWriter(target, "llama")
    _write_shape(writer, config)
    _write_tokenizer(writer, folder, config)
    for name, weight in load_file(folder / "model.safetensors").items():
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        ours = next((count for part, count in heads.items() if part in name), None)
        _write_tensor(writer, _renamed(name), weight if ours is None else _interleaved(weight, ours), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _write_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    said = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"]: token["content"] for token in said["added_tokens"]}
    words = {i: word for word, i in said["model"]["vocab"].items()} | special
    kinds = (gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in sorted(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([words[i] for i in sorted(words)])
    writer.add_token_types(list(kinds))
    writer.add_token_merges([" ".join(pair) for pair in said["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _renamed(name: str) -> str:
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rotary pairs side by side, as llama.cpp turns them; transformers has a head's first halves before its second."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def _write_tensor(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, kind: str) -> None:
    chosen = KINDS[kind]
    if weight.ndim == 1:
        chosen = KINDS["f32"]
    elif name == "token_embd.weight" and kind.startswith("q4"):
        chosen = KINDS["q8_0"]
    packed = gguf.quants.quantize(np.ascontiguousarray(weight, dtype=np.float32), chosen)
    writer.add_tensor(name, packed, raw_dtype=chosen)
