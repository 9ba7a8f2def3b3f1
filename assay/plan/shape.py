"""The sizes of a model that decide what it costs, from its config alone: no weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.errors import UserError
from assay.loop.folder import model_place
from assay.policy.flops import Work, costs_of, forward_flops, update_flops
from assay.policy.model import adapter_base
from assay.recipe.schema import ModelRecipe


@dataclass(frozen=True)
class ModelShape:
    """What a model's costs are made of."""

    parameters: int
    trained: int
    """Of those, the ones that are trained (adapters alone, where there are some)."""
    layers: int
    forward_flops: float
    """FLOP of one token forward, its attention left out."""
    update_flops: float
    """FLOP of one token forward and backward."""
    kv_bytes: int
    """Bytes that a token takes in an engine's cache, 2 a number."""


def shape_of_size(parameters: float, lora_rank: int | None = None) -> ModelShape:
    """A dense model of so many parameters, built like the common ones: width 128 times depth, 8 heads of keys.

    12 width^2 parameters a layer, so depth = (parameters / (12 * 128^2))^(1/3). Of adapters on every matrix, about
    20 * rank * width a layer are trained.

    >>> shape_of_size(8e9).layers, shape_of_size(8e9).kv_bytes
    (34, 139264)
    """
    layers = max(1, round((parameters / (12 * 128**2)) ** (1 / 3)))
    trained = parameters if lora_rank is None else 20.0 * lora_rank * 128 * layers * layers
    forward = 2 * parameters
    return ModelShape(
        int(parameters), int(trained), layers, forward, 2 * forward + 2 * trained, layers * 2 * 8 * 128 * 2
    )


def shape_of(recipe: ModelRecipe) -> ModelShape:
    """The shape of the recipe's model. Raises UserError where its config is out of reach, with the way round."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    place = model_place(recipe.path)
    place = adapter_base(place) or place
    try:
        config = AutoConfig.from_pretrained(place, revision=recipe.revision, trust_remote_code=recipe.trust_remote_code)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=recipe.trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"model.path: the config of {recipe.path!r} cannot be read ({why}); say --parameters") from None
    rank = recipe.lora.rank if recipe.lora else None
    return _counted(model, rank)


def _counted(model: Any, lora_rank: int | None) -> ModelShape:
    """Count a model's parameters and products. Adapters are taken to sit on every matrix of two dimensions."""
    from torch import nn

    config = model.config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    parameters = sum(p.numel() for p in model.parameters())
    costs, one = costs_of(model), Work(tokens=1, scored=1)
    trained, update = parameters, update_flops(costs, one)
    if lora_rank is not None:
        linear = [m for m in model.base_model.modules() if isinstance(m, nn.Linear)]
        trained = sum(lora_rank * (m.in_features + m.out_features) for m in linear)
        update = 2 * forward_flops(costs, one) + 2 * trained
    layers = config.num_hidden_layers
    return ModelShape(parameters, trained, layers, forward_flops(costs, one), update, layers * 2 * kv_heads * width * 2)
