"""The engines by name: a new one is a factory here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from assay.recipe.derived import generation_dtype, native_process
from assay.recipe.schema import Recipe
from assay.registry import Registry
from assay.rollout.engine import Engine
from assay.rollout.native import NativeEngine

EngineFactory = Callable[[Recipe, Any, Any, Path | None], Engine]
"""Builds an engine from (recipe, model, tokenizer, folder): its processes may write their logs into the folder."""

engines: Registry[EngineFactory] = Registry("engine")
"""Engines by the name that ``rollout.engine`` gives them."""


@engines.register("native")
def native_engine(recipe: Recipe, model: Any, tokenizer: Any, folder: Path | None) -> Engine:
    """The engine on the trainer's weights, in this process (`assay.rollout.native`) or its own (`.process`)."""
    if native_process(recipe) == "own":
        from assay.rollout.process.factory import native_processes

        return native_processes(recipe, model, tokenizer)
    return NativeEngine(
        model,
        tokenizer,
        dtype=getattr(torch, generation_dtype(recipe)),
        max_running=recipe.rollout.max_running,
        deterministic=recipe.run.deterministic,
        snapshot=recipe.regime.max_staleness != 0,
        kv=recipe.regime.kv,
        graphs=recipe.rollout.graphs,
        compiled=recipe.run.kernels,
    )


@engines.register("vllm")
def vllm_engine(recipe: Recipe, model: Any, tokenizer: Any, folder: Path | None) -> Engine:
    """vLLM in the trainer's process tree (see :mod:`assay.rollout.vllm`)."""
    from assay.rollout.vllm.factory import embedded_engine

    return embedded_engine(recipe, model, tokenizer, folder)


@engines.register("vllm_server")
def vllm_server(recipe: Recipe, model: Any, tokenizer: Any, folder: Path | None) -> Engine:
    """vLLM servers, started here or running already (see :mod:`assay.rollout.vllm`)."""
    from assay.rollout.vllm.factory import server_engines

    return server_engines(recipe, model, tokenizer, folder)


@engines.register("transformers")
def transformers_engine(recipe: Recipe, model: Any, tokenizer: Any, folder: Path | None) -> Engine:
    """Plain ``generate`` in this process, the slow reference (see :mod:`assay.rollout.generate`)."""
    from assay.rollout.generate import GenerateEngine

    return GenerateEngine(
        model,
        tokenizer,
        dtype=getattr(torch, generation_dtype(recipe)),
        max_running=recipe.rollout.max_running,
        snapshot=recipe.regime.max_staleness != 0,
    )


@engines.register("openai")
def openai_engine(recipe: Recipe, model: Any, tokenizer: Any, folder: Path | None) -> Engine:
    """Servers that run already, with fixed weights (see :mod:`assay.rollout.remote.openai`)."""
    from assay.rollout.remote.openai import make_openai

    return make_openai(recipe, model, tokenizer)


@engines.register("llama_server")
def llama_server_engine(recipe: Recipe, model: Any, tokenizer: Any, folder: Path | None) -> Engine:
    """llama.cpp servers that are given each new version as a GGUF file (see :mod:`assay.rollout.llama`)."""
    from assay.rollout.llama.build import make_llama

    return make_llama(recipe, model, tokenizer, folder)


def make_engine(recipe: Recipe, model: Any, tokenizer: Any, folder: Path | None = None) -> Engine:
    """Return the engine that ``rollout.engine`` names, sampling from ``model`` (a Hugging Face causal LM).

    The recipe's precision must be decided (`assay.hardware.with_precision`). Servers that are started write their logs
    into ``folder``, else into one of their own that goes with them.
    """
    return engines[recipe.rollout.engine](recipe, model, tokenizer, folder)
