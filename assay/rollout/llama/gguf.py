"""A model's present weights as a GGUF file, written aside and renamed.

All files of a model have the same header, so it is made once; a new version is the header and the tensors behind it,
one at a time.
The vocabulary is not the tokenizer's: token ``i`` is spelled ``<i>``. The server is only ever given ids and asked for
ids, and with true spellings llama.cpp holds back tokens that end in the midst of a character, log-probs and
all, and ends answers at tokens that merely look like an end. For the same reason any tokenizer will do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from assay.errors import AssayError, MissingExtra, UserError
from assay.rollout.llama.family import Family, converted, family_of, metadata, rope_factors
from assay.rollout.weights import causal_lm_of, merged_weights

Precision = Literal["f16", "bf16", "q8_0"]
BLOCK = 32
"""Numbers that share a scale in q8_0."""


@dataclass(frozen=True)
class Layout:
    """What all versions of a model's file have in common."""

    config: Any
    family: Family
    names: dict[str, str]
    """llama.cpp's name by that of the Hugging Face checkpoint, in the order of the file."""
    kinds: dict[str, str]
    """Precision of each tensor, by llama.cpp's name."""
    header: bytes
    """The file up to its first tensor."""
    alignment: int
    precision: Precision
    size: int
    """Bytes of a file, about."""


def layout_of(model: Any, precision: Precision, stop: frozenset[int], context: int) -> Layout:
    """The layout of ``model``'s files. Raises UserError for a model whose GGUF is not known to be right.

    ``stop``: ids that end an answer; llama.cpp's file names three at most, the client ends answers at the others.
    """
    gguf = _package()
    config = causal_lm_of(model).config.get_text_config()
    family = family_of(config, context)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == family.arch)
    mapping = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tied = config.tie_word_embeddings and family.head_from_embedding
    writer = gguf.GGUFWriter(None, family.arch)
    for key, value in (metadata(config, family, context) | vocabulary(config.vocab_size, stop)).items():
        _add(writer, key, value)
    names, kinds = {}, {}
    factors = rope_factors(config)
    if factors is not None:
        kinds["rope_freqs.weight"] = _declare(gguf, writer, "rope_freqs.weight", factors, precision)
    for name, tensor in merged_weights(model):
        if tied and name == "lm_head.weight":
            continue
        known = mapping.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise UserError(
                f"rollout.engine = llama_server: no place in llama.cpp's {family.arch} for {name}: use native"
            )
        names[name] = known
        kinds[known] = _declare(gguf, writer, known, tensor, precision)
    header, data = _header(writer), sum(info.nbytes for info in writer.tensors[0].values())
    return Layout(config, family, names, kinds, header, writer.data_alignment, precision, len(header) + data)


def vocabulary(size: int, stop: frozenset[int]) -> dict[str, Any]:
    """Metadata of a vocabulary in which token ``i`` is spelled ``<i>`` and the ids in ``stop`` end an answer."""
    ends = sorted(stop)
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [f"<{i}>" for i in range(size)],
        "tokenizer.ggml.token_type": [1] * size,
        "tokenizer.ggml.merges": ["< 0"],
        "tokenizer.ggml.bos_token_id": ends[0] if ends else 0,
        "tokenizer.ggml.add_bos_token": False,
        **{f"tokenizer.ggml.{name}": i for name, i in zip(names, ends, strict=False)},
    }


def write(model: Any, layout: Layout, target: Path) -> Iterator[int]:
    """Write the file of ``model``'s present weights, yielding the bytes so far after each tensor.

    The file appears at ``target`` whole or not at all. Raises AssayError when the model has lost a tensor, or the disk
    is full.
    """
    aside = target.with_suffix(".part")
    try:
        with open(aside, "wb") as file:
            file.write(layout.header)
            for name, tensor in _tensors(model, layout):
                file.write(packed(tensor, layout.kinds[name]))
                file.write(bytes(-file.tell() % layout.alignment))
                yield file.tell()
        os.replace(aside, target)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise AssayError(f"cannot write the weights to {target.parent}: {error.strerror}") from error


def _tensors(model: Any, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """(llama.cpp's name, tensor) in the order of the header."""
    factors = rope_factors(layout.config)
    if factors is not None:
        yield "rope_freqs.weight", factors
    left = dict(layout.names)
    for name, tensor in merged_weights(model):
        known = left.pop(name, None)
        if known is not None:
            yield known, converted(name, tensor, layout.config, layout.family)
    if left:
        raise AssayError(f"the model has lost the tensor {min(left)!r} since the engine was built from it")


@torch.no_grad()
def packed(tensor: Tensor, kind: str) -> memoryview:
    """The bytes of a tensor in a precision: ``f32``, ``f16``, ``bf16`` or ``q8_0``.

    q8_0: each 32 numbers of a row share a float16 scale d = max|x| / 127, and are stored as round(x / d) in 8 bits.
    """
    tensor = tensor.detach().to("cpu")
    if kind != "q8_0":
        flat = tensor.to({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind]).contiguous()
        return flat.view(torch.uint8).numpy().data
    rows = tensor.float().reshape(-1, BLOCK)
    scale = rows.abs().amax(1, keepdim=True) / 127
    codes = torch.where(scale > 0, rows / scale, 0).round().to(torch.int8)
    both = torch.cat([scale.half().view(torch.uint8), codes.view(torch.uint8)], 1)
    return both.numpy().data


def _declare(gguf: Any, writer: Any, name: str, tensor: Tensor, precision: Precision) -> str:
    """Announce a tensor; return the precision that it gets: vectors stay exact, narrow rows are no whole blocks."""
    kind: str = precision if tensor.dim() > 1 else "f32"
    if kind == "q8_0" and tensor.shape[-1] % BLOCK:
        kind = "f16"
    sizes = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": (BLOCK + 2) / BLOCK}
    raw = gguf.GGMLQuantizationType[kind.upper()]
    shape = tuple(tensor.shape)
    nbytes = int(tensor.numel() * sizes[kind])
    writer.tensors[0][name] = gguf.gguf_writer.TensorInfo(shape=shape, dtype=raw, nbytes=nbytes)
    return kind


def _header(writer: Any) -> bytes:
    """The file up to its first tensor."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "header.gguf"
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        head = path.read_bytes()
    return head + bytes(-len(head) % writer.data_alignment)


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _package() -> Any:
    try:
        import gguf
        import gguf.gguf_writer
    except ImportError:
        raise MissingExtra("rollout.engine = llama_server", "gguf", "llama") from None
    return gguf
