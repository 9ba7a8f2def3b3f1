"""A small language model with random weights, and sums to ask it: work that takes well under a second a step.

Its tokens are characters, 64 of them, all about equally likely at first, the end token among them: answers are about 64
tokens long, and their lengths exponential, a tail that a real model has too.
"""

from __future__ import annotations

import json
import string
from pathlib import Path

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
CHARACTERS = (string.digits + "+-*/=().,:?! \n" + string.ascii_letters)[: 64 - len(SPECIAL)]


def save_small_model(folder: Path, width: int = 384, layers: int = 6, seed: int = 0) -> Path:
    """Write model and tokenizer as a Hugging Face folder: about 11 million parameters."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *CHARACTERS))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    core.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=core, **names).save_pretrained(str(folder))
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_sums(path: Path, count: int = 400) -> Path:
    """Write so many sums as a file of prompts."""
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(20, 40) for b in range(20, 40)][:count]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path
