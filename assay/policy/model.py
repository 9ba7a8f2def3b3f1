"""Loading a causal language model and its tokenizer, by folder or hub name, with or without adapters.

A folder of adapters (`lora.export: adapter`, or any that peft writes) stands for the model that they are for with them
merged into it.

A policy is never put into training mode: dropout would make the ratio between two passes of one policy measure noise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from assay.errors import UserError
from assay.policy.logprobs import DTYPES
from assay.recipe.schema import LoraRecipe, ModelRecipe


def pick_device(name: str) -> torch.device:
    """``auto``: cuda, else mps, else cpu; otherwise the named device, which must exist."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"model.device: {name!r} is not usable here ({_first_line(error)})") from error
    return device


def check_model(path: str, recipe: ModelRecipe) -> None:
    """Raise UserError unless ``path`` names something with a model's config: the cheapest mistake to find first."""
    from transformers import AutoConfig

    base = adapter_base(path)
    place = path if base is None else base
    try:
        AutoConfig.from_pretrained(place, revision=recipe.revision, trust_remote_code=recipe.trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError) as error:
        why = "no such folder" if place.startswith(("/", ".", "~")) and not Path(place).exists() else _first_line(error)
        if base is None:
            mend = "give a folder that holds a config.json, a name on the hub, or demo (after `assay fetch`)"
            raise UserError(f"model.path: {path!r} is not a model ({why}); {mend}") from error
        raise UserError(
            f"model.path: {path!r} holds adapters for {base!r}, which is not a model ({why}); where it is now is to be "
            f"written into {ADAPTER}"
        ) from error


ADAPTER = "adapter_config.json"
"""Peft's file beside adapters."""


def adapter_base(path: str) -> str | None:
    """The model that the adapters in the folder ``path`` are for; ``None`` where it holds no adapters.

    Raises UserError when their config does not say it.
    """
    config = Path(path) / ADAPTER
    if not config.is_file():
        return None
    try:
        base = json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"model.path: {config} cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(base, str) or not base:
        raise UserError(f"model.path: {config} does not name the model that its adapters are for")
    return base


def load_model(path: str, recipe: ModelRecipe, device: torch.device, dtype: str | None = None) -> Any:
    """The causal LM at ``path`` in ``dtype`` (absent: ``recipe.dtype``), on ``device``, in evaluation mode.

    Attention goes through torch's SDPA, or through plain products where the scores are soft-capped (Gemma 2), which
    SDPA would leave out. Raises UserError when ``path`` is neither a whole model nor adapters for one.
    """
    base = adapter_base(path)
    if base is None:
        return _load_whole(path, recipe, dtype or recipe.dtype).to(device).eval()
    return _merged(_load_whole(base, recipe, dtype or recipe.dtype), path).to(device).eval()


def load_outline(path: str, recipe: ModelRecipe) -> Any:
    """The causal LM at ``path`` without its weights (on torch's meta device): shape, config and end tokens.

    For answers that are made elsewhere. Raises UserError when ``path`` holds no model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    place = adapter_base(path) or path
    told: dict[str, Any] = {"revision": recipe.revision, "trust_remote_code": recipe.trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(place, **told)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=recipe.trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise UserError(f"model.path: {path!r} is not a model that can be loaded: {_first_line(error)}") from error
    with suppress(OSError):  # many have none: the config's end tokens count
        model.generation_config = GenerationConfig.from_pretrained(place, revision=recipe.revision or "main")
    return model.eval()


def _load_whole(path: str, recipe: ModelRecipe, dtype: str) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        with quiet_weights():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path,
                revision=recipe.revision,
                trust_remote_code=recipe.trust_remote_code,
                dtype=DTYPES[dtype],
                attn_implementation="sdpa",
                output_loading_info=True,
            )
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"model.path: {path!r} is not a model that can be loaded: {_first_line(error)}") from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        kind = type(model).__name__
        raise UserError(f"model.path: {path!r} lacks {len(missing)} weights of a {kind}, such as {missing[0]}")
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")
    _make_savable(model.generation_config)
    return model


def _merged(model: Any, adapters: str) -> Any:
    """``model`` with the adapters of a folder merged into its weights."""
    from peft import PeftModel
    from safetensors import SafetensorError

    try:
        return PeftModel.from_pretrained(model, adapters).merge_and_unload().requires_grad_(True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"model.path: the adapters in {adapters!r} cannot be merged into {model.name_or_path!r}: "
            f"{_first_line(error)}"
        ) from error


def load_tokenizer(path: str, recipe: ModelRecipe) -> Any:
    """The tokenizer of ``recipe.tokenizer`` or of the model at ``path``, with ``recipe.chat_template`` if given."""
    from transformers import AutoTokenizer

    base = adapter_base(path)
    own = base is None or (Path(path) / "tokenizer_config.json").is_file()
    place = recipe.tokenizer or (path if own else base)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            place, revision=None if recipe.tokenizer else recipe.revision, trust_remote_code=recipe.trust_remote_code
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise UserError(f"model.tokenizer: no tokenizer at {place!r}: {_first_line(error)}") from error
    if recipe.chat_template is not None:
        try:
            tokenizer.chat_template = Path(recipe.chat_template).read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"model.chat_template: cannot read {recipe.chat_template!r}: {error.strerror}") from error
    return tokenizer


def add_lora(model: Any, lora: LoraRecipe, seed: int) -> Any:
    """Wrap ``model`` with fresh adapters (B = 0, so the policy starts as the model); only they are trainable."""
    from peft import LoraConfig, get_peft_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    alpha: Any = lora.alpha  # any number does, whatever peft's annotation says
    config = LoraConfig(r=lora.rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            return get_peft_model(model, config).eval()
        except ValueError as error:
            raise UserError(f"model.lora.targets: {_first_line(error)}") from error


def checkpoint_layers(model: nn.Module) -> None:
    """Have every decoder layer recompute its activations in the backward pass.

    transformers' own switch works in training mode only, where dropout would come with it. Raises UserError for a model
    without layers of transformers' kind.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(f"model.gradient_checkpointing: {type(model).__name__} has no layers that can be recomputed")
    for layer in layers:
        layer.forward = partial(_recomputed, layer.forward)


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


@contextmanager
def quiet_weights() -> Iterator[None]:
    """No progress bars while transformers reads or writes weights; those of downloads stay."""
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging

    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    enable_progress_bars()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _make_savable(generation: Any) -> None:
    """Say that one samples, where a generation config has sampling settings but does not: it could not be saved."""
    try:
        generation.validate(strict=True)
    except ValueError:
        generation.do_sample = True


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
