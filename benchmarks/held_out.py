"""Held-out accuracy of a saved model, by transformers' own greedy decoding: the same judge for every side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from last_integer import right
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from assay.policy.model import quiet_weights
from assay.records import Prompt


def accuracy(model_folder: Path, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], tokens: int) -> float:
    """The share of prompts whose greedy answer, of at most ``tokens``, ends with the right integer; in float32."""
    with quiet_weights():
        model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32").eval()
    width = max(len(p.token_ids) for p in prompts)
    pad = tokenizer.eos_token_id
    ids = torch.tensor([[pad] * (width - len(p.token_ids)) + list(p.token_ids) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p.token_ids)) + [1] * len(p.token_ids) for p in prompts])
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=tokens, pad_token_id=pad
        )
    texts = tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
    answers = [right(text, str(p.columns["answer"])) for text, p in zip(texts, prompts, strict=True)]
    return sum(answers) / len(answers)
