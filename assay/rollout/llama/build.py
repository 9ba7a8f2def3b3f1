"""From the recipe to engines of llama.cpp: slots and their context, threads, replicas."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.errors import MissingExtra, UserError
from assay.http import need_packages
from assay.recipe.schema import Recipe
from assay.rollout.engine import Engine, Limits
from assay.rollout.fleet import Fleet, Replica
from assay.rollout.llama.engine import LlamaEngine
from assay.rollout.llama.files import WeightFiles
from assay.rollout.llama.gguf import layout_of
from assay.rollout.llama.process import Settings
from assay.rollout.native import stop_tokens
from assay.rollout.weights import causal_lm_of

SPARE_SLOTS = 1
"""Beyond ``rollout.max_running``: for the probe, which does not wait."""
SPARE_TOKENS = 8
"""Of a slot's context, which llama.cpp ends an answer short of."""
_CONTEXT_STEP = 256


def make_llama(recipe: Recipe, model: Any, tokenizer: Any, folder: Path | None = None) -> Engine:
    """The engine ``llama_server`` of a recipe: a fleet of ``rollout.replicas`` servers.

    ``folder``: for the servers' logs, ``llama-server-N.log``; absent: they lie with the weights, and go with them.
    Raises MissingExtra without xllamacpp (or a binary) and the HTTP client, UserError for a model that llama.cpp is not
    known to compute right.
    """
    need_packages("rollout.engine = llama_server", "llama", "httpx2", "gguf")
    rollout, causal_lm = recipe.rollout, causal_lm_of(model)
    options = dict(rollout.options)
    binary = _binary(options.pop("binary", None))
    longest = getattr(causal_lm.config.get_text_config(), "max_position_embeddings", None)
    wanted = recipe.data.max_prompt_tokens + rollout.max_tokens
    context = min(wanted, longest) if longest else wanted
    stop = stop_tokens(causal_lm, tokenizer)
    files = WeightFiles(model, layout_of(model, recipe.sync.gguf, stop, context))
    settings = Settings(_params(recipe, context, options, binary is not None), binary)
    limits = Limits(context, slots_of(recipe))

    def make(number: int, adopted: int | None = None) -> LlamaEngine:
        log = None if folder is None else folder / f"llama-server-{number}.log"
        own = replace(settings, log=log)
        return LlamaEngine(
            files, tokenizer, own, limits=limits, stop=stop, timeout_s=rollout.timeout_s, adopted=adopted
        )

    def replica(number: int) -> Replica:
        async def restart() -> Engine:
            return make(number, adopted=fleet.version)

        return Replica(f"llama-server {number}", make(number), restart)

    fleet = Fleet([replica(i) for i in range(1, rollout.replicas + 1)], retries=rollout.max_retries)
    return fleet


def slots_of(recipe: Recipe) -> int:
    """Answers at once of each server: its share of ``rollout.max_running``."""
    return -(-recipe.rollout.max_running // recipe.rollout.replicas)


def _params(recipe: Recipe, context: int, options: dict[str, Any], program: bool) -> dict[str, Any]:
    """What servers are started with; ``options`` win."""
    slots = slots_of(recipe) + SPARE_SLOTS
    room = -(-(context + SPARE_TOKENS) // _CONTEXT_STEP) * _CONTEXT_STEP
    threads = recipe.run.threads or max(1, (os.cpu_count() or 1) // recipe.rollout.replicas)
    if program:
        return {"parallel": slots, "ctx_size": slots * room, "threads": threads, "no_warmup": True} | options
    threads = options.pop("n_threads", threads)
    return {
        "n_parallel": slots,
        "n_ctx": slots * room,
        "kv_unified": False,
        "cpuparams.n_threads": threads,
        "cpuparams_batch.n_threads": threads,
        "cache_ram_mib": 0,
        "cache_idle_slots": False,
        "cache_prompt": False,
        "fit_params": False,
        "warmup": False,
        "ui": False,
        "verbosity": 0,
        **options,
    }


def _binary(named: Any) -> str | None:
    """The program that the recipe names, as a path; ``None`` for the package, which must then be there."""
    if named is None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtra("rollout.engine = llama_server without options.binary", "xllamacpp", "llama")
        return None
    found = shutil.which(str(named))
    if found is None:
        raise UserError(f"rollout.options.binary: {named!r} is no program that can be run")
    return found
