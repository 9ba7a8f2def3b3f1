"""Export: the trained policy as a standard Hugging Face folder with a model card."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from assay.errors import AssayError


def export(model: Any, tokenizer: Any, folder: Path, card: str, adapter_only: bool = False) -> Path:
    """Write model, tokenizer and card to ``folder``, aside first and then renamed.

    A peft model is merged into its base unless ``adapter_only``; the model in memory stays as it is. Any
    `from_pretrained` reads the result. Raises AssayError when the disk refuses.
    """
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        merged = deepcopy(model).merge_and_unload() if hasattr(model, "merge_and_unload") and not adapter_only else model
        merged.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        (aside / "README.md").write_text(card, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(aside, folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise AssayError(f"the model could not be written to {folder}: {error.strerror or error}") from error
    return folder


def model_card(base: str, recipe_yaml: str, results: Mapping[str, Any]) -> str:
    """A README for the exported folder: what it was trained from, how, and what was measured.

    ``results`` maps ``before`` and ``after`` to estimates by name, each with value, low, high and n.
    """
    lines = [
        "---",
        f"base_model: {base}",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [reinforcement-learning, grpo, assay]",
        "---",
        "",
        "# Trained with Assay",
        "",
        f"Reinforcement learning on verified rewards, from `{base}`.",
        "",
    ]
    before, after = results.get("before") or {}, results.get("after") or {}
    if after:
        lines += ["| held-out | before | after | prompts |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {name} | {_interval(before.get(name))} | {_interval(e)} | {e['n']} |" for name, e in after.items()
        ]
        lines.append("")
    return "\n".join([*lines, "## Recipe", "", "```yaml", recipe_yaml.strip(), "```", ""])


def _interval(estimate: Mapping[str, float] | None) -> str:
    if estimate is None:
        return ""
    return f"{estimate['value']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"
