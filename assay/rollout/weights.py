"""What the engine samples from: the trainer's parameters in a second shell, or a copy of them.

The trainer's module is never touched: its mode (dropout!), config, hooks and precision stay as they are,
because the engine works on a deep copy of the module *structure*. When the precision is the same the copy's
parameters *are* the trainer's tensors and cost nothing; otherwise (or for a snapshot) they are copies that
``refresh`` overwrites in place. Adapters (peft) are parameters like others, so they follow too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from assay.errors import AssayError


def causal_lm_of(model: Any) -> Any:
    """The Hugging Face causal LM itself, inside a peft wrapper or not."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def head_shape(config: Any) -> tuple[int, int]:
    """Numbers of a head, and query heads to a KV head, from a text config."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return width, heads // (getattr(config, "num_key_value_heads", None) or heads)


class GenerationWeights:
    """The module to generate with, and how it follows the trainer's."""

    def __init__(self, model: nn.Module, dtype: torch.dtype | None = None, *, snapshot: bool = False) -> None:
        """``dtype`` None keeps the model's; ``snapshot`` copies even when the precision is the same."""
        self.source = model
        floats = {p.dtype for p in model.parameters() if p.is_floating_point()}
        self.shared = not snapshot and (dtype is None or floats == {dtype})
        memo: dict[int, Any] = {}
        for parameter in model.parameters():
            memo[id(parameter)] = parameter if self.shared else _copied(parameter, dtype)
        self.module: nn.Module = copy.deepcopy(model, memo).eval()

    @property
    def causal_lm(self) -> Any:
        """The copy's causal LM: see `causal_lm_of`."""
        return causal_lm_of(self.module)

    def tensors(self) -> Iterator[torch.Tensor]:
        """The module's parameters and buffers."""
        yield from self.module.parameters()
        yield from self.module.buffers()

    @torch.no_grad()
    def refresh(self) -> None:
        """Follow the trainer's parameters and buffers. Raises AssayError when the structure is another."""
        mine, theirs = dict(self.module.named_modules()), dict(self.source.named_modules())
        changed = mine.keys() ^ theirs.keys()
        if changed:
            raise AssayError(
                f"the model has gained or lost the module {min(changed)!r} since the engine was built from it"
            )
        for path, source in theirs.items():
            module = mine[path]
            for name, parameter in source._parameters.items():
                own = module._parameters.get(name)
                if self.shared:
                    module._parameters[name] = parameter
                elif parameter is not None and own is not None:
                    own.copy_(parameter)
            for name, buffer in source._buffers.items():
                kept = module._buffers.get(name)
                if buffer is not None and kept is not None and kept.shape == buffer.shape:
                    kept.copy_(buffer)


@torch.no_grad()
def merged_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(Name, tensor) of the causal LM's checkpoint, adapters merged: what an engine elsewhere is given.

    Names are those of the Hugging Face checkpoint; tied tensors appear under each of their names, in the model's own
    precision. The model is not touched: a merged tensor is a new one, every other is the model's own.
    """
    base = causal_lm_of(model)
    deltas = {path: module for path, module in base.named_modules() if hasattr(module, "get_delta_weight")}
    for name, tensor in base.state_dict().items():
        path, _, leaf = name.rpartition(".")
        if ".lora_" in f".{name}":
            continue
        owner = path.removesuffix(".base_layer")
        adapted = deltas.get(owner) if path.endswith(".base_layer") else None
        if adapted is not None and leaf == "weight":
            for adapter in adapted.active_adapters:
                tensor = tensor + adapted.get_delta_weight(adapter).to(tensor.dtype)
        yield f"{owner}.{leaf}".lstrip("."), tensor


def _copied(parameter: nn.Parameter, dtype: torch.dtype | None) -> nn.Parameter:
    target = dtype if dtype and parameter.is_floating_point() else parameter.dtype
    return nn.Parameter(parameter.detach().to(target, copy=True), requires_grad=False)
