"""Tiny language models and a character-level tokenizer, made from scratch in milliseconds, for tests.

    from tiny import save_tiny, tiny_model, tiny_tokenizer

    model = tiny_model("llama", seed=0)                 # a causal LM in eval mode, 85 k parameters
    tokenizer = tiny_tokenizer()                        # PreTrainedTokenizerFast over characters
    save_tiny(tmp_path / "model", family="qwen3")       # a Hugging Face folder with model and tokenizer

Further keywords are fields of the family's config (``num_hidden_layers=1``, ``eos_token_id=[1, 5]``, ...), in
llama's names for every family. ``sharpness`` scales the output head: greedy choices are then no near ties.
``AutoTokenizer`` reads a saved qwen2 folder back as transformers' own Qwen2Tokenizer, which drops spaces.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2", "olmo2")
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
CHARACTERS = string.digits + "+-*/=().,:?!<>#$\\{}_ \n" + string.ascii_letters
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] + ':' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)
PAD, BOS, EOS, UNK = range(4)
_CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM"),
}
_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}
_FAMILY_FIELDS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 8},
    "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 16},
    "gemma3": {"sliding_window": 8, "query_pre_attn_scalar": 16, "layer_types": None},
}


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character; ids 0..3 are <pad>, <bos>, <eos>, <unk>; a chat template ``u:...\\na:``."""
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *CHARACTERS))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_config(family: str = "llama", **fields: Any) -> Any:
    """The family's config with small sizes; ``fields`` override, in llama's names."""
    values: dict[str, Any] = {
        "vocab_size": len(SPECIAL) + len(CHARACTERS),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": True,
        "initializer_range": 0.1,
        **_FAMILY_FIELDS.get(family, {}),
        **fields,
    }
    if family == "gemma3" and values["layer_types"] is None:
        kinds = ("sliding_attention", "full_attention")
        values["layer_types"] = [kinds[i % 2] for i in range(values["num_hidden_layers"])]
    if family in ("llama", "olmo2", "qwen2"):
        values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
    if family == "gpt2":
        for dropped in ("num_key_value_heads", "head_dim"):
            values.pop(dropped)
        values = {_GPT2_NAMES.get(name, name): value for name, value in values.items()}
    return getattr(transformers, _CLASSES[family][0])(**values)


def tiny_model(
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    sharpness: float = 1.0,
    **fields: Any,
) -> Any:
    """A causal LM of ``family``, weights drawn from ``seed``, eval mode; torch's global RNG stays put."""
    config = tiny_config(family, **fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, _CLASSES[family][1])(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(std=0.1)
            if sharpness != 1.0:
                head = model.get_output_embeddings()
                head.weight = torch.nn.Parameter(head.weight.detach() * sharpness)
                model.config.tie_word_embeddings = False
    return model.to(dtype).eval()


def save_tiny(folder: str | Path, seed: int = 0, family: str = "llama", **config: Any) -> Path:
    """Write model and tokenizer as a Hugging Face folder; keywords as of :func:`tiny_model`."""
    folder = Path(folder)
    tiny_model(family, seed=seed, **config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
