"""Engines: what each of them can do."""

from __future__ import annotations

from collections.abc import Iterator

from assay.errors import nearest
from assay.recipe.checks.refusal import Refusal, check
from assay.recipe.derived import native_process
from assay.recipe.schema import Recipe

NATIVE_OPTIONS = ("threads",)
"""What ``rollout.options`` may hold for the native engine in a process of its own."""


@check
def deterministic_engine(recipe: Recipe) -> Iterator[Refusal]:
    """Bit-for-bit runs are made by the engine whose batches are a function of indices."""
    if recipe.run.deterministic and recipe.rollout.engine != "native":
        yield Refusal("rollout.engine", f"{recipe.rollout.engine} does not go with run.deterministic: use native")


@check
def engine_addresses(recipe: Recipe) -> Iterator[Refusal]:
    """``openai`` needs servers that run; ``llama_server`` starts its own, since it must load new weights."""
    engine, servers = recipe.rollout.engine, recipe.rollout.servers
    if engine == "openai" and not servers:
        yield Refusal("rollout.servers", "is empty: name the server that openai asks, such as http://127.0.0.1:8000")
    if engine == "llama_server" and servers:
        reason = (
            "would keep the weights that they were started with: leave it empty, and llama_server starts servers on "
            "each new version (for servers as they are, in evaluation: rollout.engine=openai)"
        )
        yield Refusal("rollout.servers", reason)


@check
def native_processes(recipe: Recipe) -> Iterator[Refusal]:
    """How many processes, and what each may be told."""
    rollout = recipe.rollout
    if rollout.engine != "native":
        return
    if rollout.replicas > 1 and rollout.process == "trainer":
        yield Refusal("rollout.replicas", f"{rollout.replicas} engines do not fit into the trainer's process: use 1")
    if rollout.replicas > 1 and recipe.run.deterministic:
        reason = f"{rollout.replicas}: which replica gets an answer depends on the clock; run.deterministic has 1"
        yield Refusal("rollout.replicas", reason)
    if native_process(recipe) == "trainer":
        return
    for name, value in rollout.options.items():
        if name not in NATIVE_OPTIONS:
            known = ", ".join(NATIVE_OPTIONS)
            yield Refusal(
                "rollout.options", f"{name} is nothing that native knows{nearest(name, NATIVE_OPTIONS)}: {known}"
            )
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            yield Refusal("rollout.options", f"{name} must be a whole number of at least 1, not {value!r}")


@check
def llama_slots(recipe: Recipe) -> Iterator[Refusal]:
    """llama.cpp has 256 sequences at most, and the probe takes one."""
    if recipe.rollout.engine == "llama_server" and recipe.rollout.max_running > 255 * recipe.rollout.replicas:
        reason = f"{recipe.rollout.max_running} are more slots than llama.cpp has: use at most 255 for each server"
        yield Refusal("rollout.max_running", reason)


@check
def kept_keys(recipe: Recipe) -> Iterator[Refusal]:
    """Engines that go on from tokens have no old keys and values to keep."""
    engine = recipe.rollout.engine
    if recipe.regime.kv == "keep" and engine in ("transformers", "llama_server", "openai"):
        yield Refusal("regime.kv", f"'keep' is not possible with {engine}, which computes them anew: use recompute")


@check
def plain_precision(recipe: Recipe) -> Iterator[Refusal]:
    """Only the native engine has 8-bit products."""
    engine = recipe.rollout.engine
    if engine == "transformers" and recipe.rollout.dtype == "int8":
        yield Refusal("rollout.dtype", "int8 is the native engine's: use float32 or bfloat16 with transformers")
    if engine in ("vllm", "vllm_server") and recipe.rollout.dtype == "int8":
        reason = f"int8 is the native engine's: use bfloat16 with {engine}, and rollout.options={{quantization: fp8}}"
        yield Refusal("rollout.dtype", reason)
