"""A tokenizer of whole characters made on the spot, and writers of small data files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIALS = ["<unk>", "<s>", "</s>"]
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
BOS_TEMPLATE = "<s>" + TEMPLATE
THINKING_TEMPLATE = TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"


def character_tokenizer(
    template: str | None = None, *, adds_bos: bool = False, adds_eos: bool = False
) -> PreTrainedTokenizerFast:
    """Printable ASCII, one token a character; optionally a BOS before and an EOS after every text."""
    characters = [chr(i) for i in range(32, 127)] + ["\n"]
    vocabulary = {token: i for i, token in enumerate(SPECIALS + characters)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.add_special_tokens(SPECIALS)
    single = ("<s> " if adds_bos else "") + "$A" + (" </s>" if adds_eos else "")
    if adds_bos or adds_eos:
        specials = [(token, vocabulary[token]) for token in ("<s>", "</s>") if token in single]
        inner.post_processor = processors.TemplateProcessing(single=single, special_tokens=specials)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = template
    return tokenizer


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    """Write rows and return the path as a data spec."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)
