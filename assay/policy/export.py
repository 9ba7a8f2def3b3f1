"""Export: the trained policy as a standard Hugging Face folder with a model card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.policy.model import quiet_weights


def export(model: Any, tokenizer: Any, folder: Path, card: str, adapter_only: bool = False) -> Path:
    """Write model, tokenizer and card to ``folder``, aside first and then renamed.

    A peft model is merged into its base unless ``adapter_only``; the model in memory stays as it is. Any
    `from_pretrained` reads the result. Raises AssayError when the disk refuses.
    """
    from safetensors import SafetensorError

    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        with quiet_weights():
            _whole(model, adapter_only).save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        (aside / "README.md").write_text(card, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(aside, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise AssayError(f"the model could not be written to {folder}: {reason}") from error
    return folder


def _whole(model: Any, adapter_only: bool) -> Any:
    """What is to be written: the model itself, or a copy with its adapters merged."""
    if adapter_only or not hasattr(model, "merge_and_unload"):
        return model
    return deepcopy(model).merge_and_unload()


def model_card(base: str, recipe_yaml: str, results: Mapping[str, Any]) -> str:
    """A README for the exported folder: what it was trained from, how, and what was measured.

    ``results`` maps ``before`` and ``after`` to estimates by name, each with value, low, high and n, and ``tokens`` to
    what was trained on: ``given`` tokens are a text to imitate, others answers of the model itself.
    """
    imitated = bool((results.get("tokens") or {}).get("given"))
    tags, method = ("supervised-fine-tuning", "Supervised training on given completions")
    if not imitated:
        tags, method = ("reinforcement-learning, grpo", "Reinforcement learning on verified rewards")
    before, after = results.get("before") or {}, results.get("after") or {}
    table = []
    if after:
        table = ["| held-out | before | after | prompts |", "| --- | --- | --- | --- |"]
        table += [
            f"| {name} | {_interval(before.get(name))} | {_interval(e)} | {e['n']} |" for name, e in after.items()
        ]
        table.append("")
    lines = [
        "---",
        f"base_model: {json.dumps(base)}",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        f"tags: [{tags}, assay]",
        "---",
        "",
        "# Trained with Assay",
        "",
        f"{method}, from `{base}`.",
        "",
        *table,
        "## Recipe",
        "",
        "```yaml",
        recipe_yaml.strip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def _interval(estimate: Mapping[str, float] | None) -> str:
    if estimate is None:
        return ""
    return f"{estimate['value']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"
