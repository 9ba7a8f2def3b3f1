"""Costs computed from a model's size and a device's rates: where nothing was measured yet.

Rates come from data sheets, sizes from the model's config; the shares of the rates that are reached, and what a step
costs beside its arithmetic, are guesses, written here once and named in every plan that uses them.
"""

from __future__ import annotations

import math
from typing import Any

from assay.errors import UserError
from assay.plan.basis import Note
from assay.plan.costs import Costs, DecodeCost, PrefillCost, UpdateCost
from assay.plan.devices import Device
from assay.plan.distribution import Constant, LogNormal
from assay.plan.shape import ModelShape
from assay.plan.workload import DrawnWork
from assay.recipe.schema import Recipe
from assay.sync.weights import Weights

TRAINED = 0.35
"""Share of the peak FLOP that training reaches: 30 to 45 % is common for dense models with FSDP."""
PREFILLED = 0.5
"""Share of the peak FLOP that prefill reaches."""
STREAMED = 0.6
"""Share of the memory's rate at which decoding reads weights and cache."""
LAYER_S = 10e-6
"""Seconds of a decoding step for each layer beside its reading: kernels that wait for one another."""
HOST_S = 2e-3
"""Seconds of a decoding step for scheduling and sampling."""
SENT = 20e9
"""Bytes a second at which weights go from trainer to engine."""
OFFLOADED = 20e9
"""Bytes a second between a device and its host, for sleeping and waking."""
RESERVED = 0.3
"""Share of a device's memory that training keeps for activations, and an engine at least for its cache."""
DOUBLING = 0.9
"""What each doubling of the trainer's devices is worth, of twice the speed."""
VERDICT_S = 0.02
"""Seconds of a verdict by a program."""
OVERHEAD_S = 1.0
"""Seconds of a step for metrics, logs, checkpoints."""
FILLED = 0.35
"""Mean answer, as a share of ``rollout.max_tokens``; the 95th percentile is 2.5 times the mean."""
PROMPT = 200
"""Tokens of a prompt."""
SIGNAL = 0.6
"""Share of groups that have signal."""


def preset_work(recipe: Recipe) -> tuple[DrawnWork, list[Note]]:
    """Lengths where no run says them: a guess from the cap alone."""
    cap = recipe.rollout.max_tokens
    mean = max(1.0, FILLED * cap)
    work = DrawnWork(
        lengths=LogNormal(mean=mean, p95=2.5 * mean),
        prompt_tokens=Constant(value=min(PROMPT, recipe.data.max_prompt_tokens)),
        signal_share=SIGNAL,
    )
    return work, [
        Note("lengths", f"log-normal, mean {mean:,.0f}, p95 {2.5 * mean:,.0f} tokens, cut at {cap:,}", "guess"),
        Note("prompts", f"{work.prompt_tokens.mean:,.0f} tokens", "guess"),
        Note("groups with signal", f"{SIGNAL:.0%}", "guess"),
    ]


def device_costs(recipe: Recipe, shape: ModelShape, device: Device) -> tuple[Costs, list[Note]]:
    """Costs of a model on a device, with what they rest on.

    Raises UserError where not even 64 of them could hold an engine.
    """
    width = _weight_bytes(recipe.rollout.options)
    weights = shape.parameters * width
    gpus = _engine_gpus(recipe.rollout.options, weights, device)
    rate, stream = device.flops * gpus, device.bandwidth * gpus * STREAMED
    decode = {
        rows: max(weights / stream, rows * shape.forward_flops / (rate * PREFILLED)) + shape.layers * LAYER_S + HOST_S
        for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    }
    cache = None if device.name == "cpu" else int((0.9 * device.memory * gpus - weights) / shape.kv_bytes)
    state = shape.trained * (16 if recipe.model.dtype == "float32" else 8) + (shape.parameters - shape.trained) * 2
    costs = Costs(
        prefill=PrefillCost(per_token_s=shape.forward_flops / (rate * PREFILLED), fixed_s=HOST_S),
        decode=DecodeCost(steps=decode, per_cached_token_s=shape.kv_bytes / stream),
        update=UpdateCost(
            per_token_s=shape.update_flops / (device.flops * TRAINED),
            scored_token_s=shape.forward_flops / (device.flops * TRAINED),
            scaling=DOUBLING,
        ),
        probe_tokens=Weights.tokens,
        probe_prompt_tokens=PROMPT,
        publish_s=0.5 + shape.parameters * 2 / SENT,
        wake_s=0.0 if device.name == "cpu" else 2 * state / OFFLOADED,
        overhead_s=OVERHEAD_S,
        verifier=Constant(value=VERDICT_S),
        kv_tokens=cache,
        engine_gpus=gpus,
        least_trainer_gpus=1 if device.name == "cpu" else max(1, math.ceil(state / ((1 - RESERVED) * device.memory))),
    )
    return costs, _notes(shape, device, costs)


def _weight_bytes(options: dict[str, Any]) -> float:
    """Bytes of a weight in the engine."""
    return 1.0 if str(options.get("quantization", "")).lower() in {"fp8", "int8"} else 2.0


def _engine_gpus(options: dict[str, Any], weights: float, device: Device) -> int:
    """As many devices, a power of two, as leave room for a cache beside the weights; or what the recipe says."""
    if given := options.get("tensor_parallel_size"):
        return int(given)
    for exponent in range(7):
        if 0.9 * device.memory * 2**exponent - weights >= RESERVED * device.memory * 2**exponent:
            return 2**exponent
    raise UserError(f"the model's weights, {weights / 1e9:,.0f} GB, do not fit into 64 devices of {device.name}")


def _notes(shape: ModelShape, device: Device, costs: Costs) -> list[Note]:
    rates = f"{device.flops / 1e12:,.3g} TFLOP/s, {device.bandwidth / 1e12:,.3g} TB/s, {device.memory / 1e9:,.0f} GB"
    steps = costs.decode.steps
    engine = f" of {costs.engine_gpus} {device.name}" if costs.engine_gpus > 1 else ""
    notes = [
        Note("model", f"{shape.parameters / 1e9:,.3g} billion parameters, {shape.layers} layers", "computed"),
        Note(device.name, rates, "measured" if device.measured else "given", "" if device.measured else "data sheet"),
        Note(
            f"decoding, engine{engine}",
            f"{1000 * steps[1]:.3g} ms a step for 1 row, {1000 * steps[128]:.3g} ms for 128",
            "guess",
            f"{STREAMED:.0%} of the memory's rate, {LAYER_S * 1e6:.0f} us a layer, {HOST_S * 1e3:.0f} ms a step",
        ),
        Note(
            "training",
            f"{1 / costs.update.per_token_s:,.0f} tokens/s a device",
            "guess",
            f"{TRAINED:.0%} of the peak; twice the devices give {2 * DOUBLING:.1f} times the speed",
        ),
        Note(
            "publish",
            f"{costs.publish_s:.2g} s, sleeping and waking {costs.wake_s:.2g} GPU seconds",
            "guess",
            "20 GB/s",
        ),
        Note("a verdict", f"{VERDICT_S:g} s", "guess"),
    ]
    if costs.kv_tokens is not None:
        notes.insert(3, Note("cache", f"{costs.kv_tokens:,} tokens an engine", "computed", "90 % of the memory"))
    return notes
