"""Loading a causal language model and its tokenizer, by folder or hub name, with or without adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

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
        raise UserError(f"model.device: {name!r} is not usable here ({str(error).splitlines()[0]})") from error
    return device


def check_model(path: str, recipe: ModelRecipe) -> None:
    """Raise UserError unless ``path`` names something with a model's config: the cheapest mistake to find first."""
    from transformers import AutoConfig

    mend = "give a folder that holds a config.json, a name on the hub, or demo (after `assay fetch`)"
    try:
        AutoConfig.from_pretrained(path, revision=recipe.revision, trust_remote_code=recipe.trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError) as error:
        why = "no such folder" if path.startswith(("/", ".", "~")) and not Path(path).exists() else first_line(error)
        raise UserError(f"model.path: {path!r} is not a model ({why}); {mend}") from error


def load_model(path: str, recipe: ModelRecipe, device: torch.device, dtype: str | None = None) -> Any:
    """The causal LM at ``path`` in ``dtype`` (absent: ``recipe.dtype``), on ``device``, in evaluation mode.

    Dropout is set to zero wherever the model has it: a ratio between two random thinnings of one policy measures
    noise. Raises UserError when ``path`` is not a model.
    """
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            path,
            revision=recipe.revision,
            trust_remote_code=recipe.trust_remote_code,
            dtype=DTYPES[dtype or recipe.dtype],
            attn_implementation="sdpa",
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise UserError(f"model.path: {path!r} is not a model that can be loaded: {first_line(error)}") from error
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for key in ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop"):
        if getattr(model.config, key, 0):
            setattr(model.config, key, 0.0)
    for module in model.modules():
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return model.to(device).eval()


def load_tokenizer(path: str, recipe: ModelRecipe) -> Any:
    """The tokenizer of ``recipe.tokenizer`` or of the model at ``path``, with ``recipe.chat_template`` if given."""
    from transformers import AutoTokenizer

    place = recipe.tokenizer or path
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            place, revision=recipe.revision, trust_remote_code=recipe.trust_remote_code
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise UserError(f"model.tokenizer: no tokenizer at {place!r}: {first_line(error)}") from error
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
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            return get_peft_model(model, config).eval()
        except ValueError as error:
            raise UserError(f"model.lora.targets: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of what an exception says; its type where it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
