"""The architectures whose GGUF is known to be right: what llama.cpp is told of a model, and how its tensors differ.

Every family here is held to the trainer's log-probs by a test. llama.cpp knows more; a family joins with a
`Family` below and its line in that test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.errors import UserError

Fields = Iterator[tuple[str, Any]]
"""Metadata: (key, where ``{arch}`` stands for the architecture's name; value)."""


@dataclass(frozen=True)
class Family:
    """One ``model_type`` of transformers in llama.cpp's terms."""

    arch: str
    """llama.cpp's name of the architecture."""
    activation: str = "silu"
    interleaved: bool = False
    """Are rotary pairs neighbours there? transformers has the first halves of a head before its second."""
    shifted_norms: bool = False
    """Are norm weights stored with the 1 that transformers adds to them (Gemma)?"""
    head_from_embedding: bool = True
    """Is the embedding used as the output head where the file has none?"""
    fields: Callable[[Any], Fields] = lambda config: iter(())
    """Further metadata."""
    layers: Callable[[Any], list[str] | None] = lambda config: None
    """The attention kinds of the layers that llama.cpp assumes; ``None``: all attend to everything."""


def _every(n: int) -> Callable[[Any], list[str]]:
    """All layers slide but each n-th."""

    def kinds(config: Any) -> list[str]:
        full, sliding = "full_attention", "sliding_attention"
        return [sliding if (i + 1) % n else full for i in range(config.num_hidden_layers)]

    return kinds


def _gemma2(config: Any) -> Fields:
    yield "{arch}.attn_logit_softcapping", float(config.attn_logit_softcapping)
    yield "{arch}.final_logit_softcapping", float(config.final_logit_softcapping)
    yield "{arch}.attention.sliding_window", int(config.sliding_window)


def _gemma3(config: Any) -> Fields:
    yield "{arch}.attention.sliding_window", int(config.sliding_window)
    yield "{arch}.rope.freq_base_swa", float(rope_of(config, "sliding_attention")["rope_theta"])


FAMILIES = {
    "llama": Family("llama", interleaved=True),
    "mistral": Family("llama", interleaved=True),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "olmo2": Family("olmo2", head_from_embedding=False),
    "gemma2": Family("gemma2", "gelu_pytorch_tanh", shifted_norms=True, fields=_gemma2, layers=_every(2)),
    "gemma3_text": Family("gemma3", "gelu_pytorch_tanh", shifted_norms=True, fields=_gemma3, layers=_every(6)),
}
"""By the ``model_type`` of the Hugging Face config."""


def rope_of(config: Any, kind: str = "full_attention") -> dict[str, Any]:
    """The rotary settings of layers of this attention kind."""
    told = config.rope_parameters
    return told.get(kind, told) if isinstance(told, dict) else dict(told)


def family_of(config: Any, context: int) -> Family:
    """The family of a model that is to be served ``context`` tokens. Raises UserError for what is not known to work."""
    kind = config.model_type
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UserError(
            f"rollout.engine = llama_server: no GGUF that is known to be right for the architecture {kind!r} "
            f"(known: {known}): use native"
        )
    family = FAMILIES[kind]
    for wrong in _doubts(config, family, context):
        raise UserError(f"rollout.engine = llama_server: llama.cpp's {family.arch} model has {wrong}: use native")
    return family


def _doubts(config: Any, family: Family, context: int) -> Iterator[str]:
    """Where the model departs from what llama.cpp computes for its architecture."""
    activation = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
    if activation != family.activation:
        yield f"the activation {family.activation}, and this one {activation}"
    if rope_of(config).get("rope_type", "default") not in ("default", "linear", "llama3"):
        yield f"no rotary scaling of the type {rope_of(config)['rope_type']!r} that was verified"
    kinds, expected = getattr(config, "layer_types", None), family.layers(config)
    if expected is not None and kinds != expected:
        yield "another order of sliding and full attention"
    window = getattr(config, "sliding_window", None)
    slides = kinds is None or "sliding_attention" in kinds
    if expected is None and slides and window is not None and window < context:
        yield f"no sliding window, and this one attends to the last {window} tokens of {context}"
    if expected is not None and getattr(config, "query_pre_attn_scalar", None) != head_dim(config):
        yield f"queries scaled by the head's width {head_dim(config)}, and this one by {config.query_pre_attn_scalar}"
    if family.arch == "gemma3" and (config.final_logit_softcapping or config.attn_logit_softcapping):
        yield "no cap on logits"
    if family.shifted_norms and not config.tie_word_embeddings:
        yield "the embedding as its output head, and this one has its own"


def head_dim(config: Any) -> int:
    """Width of an attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def metadata(config: Any, family: Family, context: int) -> dict[str, Any]:
    """What the file says of the model's shape: llama.cpp's keys with int, float, str values."""
    rope = rope_of(config)
    told: dict[str, Any] = {
        "{arch}.block_count": config.num_hidden_layers,
        "{arch}.context_length": max(context, config.max_position_embeddings),
        "{arch}.embedding_length": config.hidden_size,
        "{arch}.feed_forward_length": config.intermediate_size,
        "{arch}.attention.head_count": config.num_attention_heads,
        "{arch}.attention.head_count_kv": config.num_key_value_heads,
        "{arch}.attention.key_length": head_dim(config),
        "{arch}.attention.value_length": head_dim(config),
        "{arch}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "{arch}.rope.dimension_count": head_dim(config),
        "{arch}.rope.freq_base": float(rope["rope_theta"]),
        "{arch}.vocab_size": config.vocab_size,
        **dict(family.fields(config)),
    }
    if rope.get("rope_type") == "linear":
        told |= {"{arch}.rope.scaling.type": "linear", "{arch}.rope.scaling.factor": float(rope["factor"])}
    return {key.format(arch=family.arch): value for key, value in told.items()}


def rope_factors(config: Any) -> Tensor | None:
    """(head_dim / 2,) float32: what each rotary frequency is divided by, where they are scaled apiece (Llama 3)."""
    rope = rope_of(config)
    if rope.get("rope_type") != "llama3":
        return None
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    width = head_dim(config)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    return plain / scaled.float()


def converted(name: str, tensor: Tensor, config: Any, family: Family) -> Tensor:
    """A tensor as llama.cpp's model of this family wants it; ``name`` is that of the Hugging Face checkpoint."""
    part = name.split(".")[-2]
    if family.interleaved and part in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if part == "q_proj" else config.num_key_value_heads
        rest = tensor.shape[1:]
        return tensor.reshape(heads, 2, -1, *rest).transpose(1, 2).reshape(-1, *rest)
    if family.shifted_norms and part.endswith("norm"):
        return tensor.float() + 1
    return tensor
