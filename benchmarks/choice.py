"""One side of `choices.py`: decodes or updates in one of the ways that were chosen between, in a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness
import learning
import torch
from decoding import Native, Work, first_prompts
from workers import Line

from assay.hardware import give_back_memory
from assay.policy import logprobs
from assay.policy.model import load_model
from assay.recipe.schema import ModelRecipe
from assay.rollout.engine import Request
from assay.rollout.fused import FusedNetwork
from assay.rollout.network import GeneralNetwork, Network
from assay.rollout.runner import ModelRunner
from assay.rollout.sampling import Sampling, draw_kernel, sample
from assay.rollout.seeds import uniforms
from assay.rollout.sequence import Sequence

NETWORKS: Mapping[str, Callable[[Any, torch.dtype], Network]] = {
    "general": GeneralNetwork,
    "fused": lambda model, dtype: FusedNetwork(model, dtype, packed=False, compiled=False),
    "packed": lambda model, dtype: FusedNetwork(model, dtype, compiled=False),
    "kernels": FusedNetwork,
    "kernels, second thread": FusedNetwork,
    "int8": lambda model, dtype: FusedNetwork(model.to(dtype), torch.int8),
}
"""Ways to decode."""
UPDATES: Mapping[str, dict[str, Any]] = {
    "chosen": {"tokens_per_microbatch": 1024},
    "padded rows": {"tokens_per_microbatch": 1024},
    "compiled layers": {"tokens_per_microbatch": 1024},
    "torch's own derivatives": {"tokens_per_microbatch": 1024},
    "torch's own kernels": {"tokens_per_microbatch": 1024},
    "4096 tokens at once": {"tokens_per_microbatch": 4096},
    "2 MiB pages": {"tokens_per_microbatch": 1024},
    "memory kept": {"tokens_per_microbatch": 1024},
}
"""Ways to update, and the recipe's keys of each: the first as `assay train` does it, the others differ in one thing."""


@torch.inference_mode()
def decode(runner: ModelRunner, work: Work, seed: int) -> int:
    """Answer every prompt of the work; the number of tokens. No answer ends before its length is reached."""
    settings = Sampling(max_tokens=work.tokens)
    rows = [
        Sequence(Request(i, p, work.samples, settings, seed), k, uniforms(seed, i, p.id, k, work.tokens))
        for i, p in enumerate(work.prompts)
        for k in range(work.samples)
    ]
    logits = runner.prefill(rows, list(range(len(rows))))
    kernel = draw_kernel(logits.dtype) if runner.network.compiled else None
    for step in range(work.tokens):
        numbers = torch.tensor([row.uniforms[step] for row in rows], dtype=torch.float64)
        draw = sample(logits, numbers, [settings] * len(rows), kernel)
        for row, token, logprob in zip(rows, draw.tokens.tolist(), draw.full_logprobs.tolist(), strict=True):
            row.append(token, logprob, None, 0, frozenset())
        if step + 1 < work.tokens:
            logits = runner.decode(rows)
    return len(rows) * work.tokens


def gap(work: Work, model: Any) -> dict[str, float]:
    """How far the engine's log-probs in the work's precision are from the trainer's: nats a token, and the KL."""
    cpu = torch.device("cpu")
    policy = learning.policy_of(Work(work.place, work.prompts, work.samples, work.tokens, "float32"), model, cpu)
    batch = learning.batch_of(work.prompts, Native(work, cpu, model).answers(0), policy)
    difference = policy.score(batch) - batch.step.sampler_logprobs
    return {"nats a token": float(difference.abs().mean()), "KL": float((difference.exp() - 1 - difference).mean())}


def updating(way: str, work: Work, model: Any) -> Callable[[int], dict[str, float]]:
    """A function that does an update and says what it took."""
    cpu = torch.device("cpu")
    if way == "padded rows":
        model.set_attn_implementation("eager")
    compiled = way == "compiled layers"  # of the model's own modules: torch.compile does not go through ours
    if compiled or way == "torch's own derivatives":
        logprobs.fuse_sublayers = lambda trunk, weights, compiled: 0
    policy = learning.policy_of(work, model, cpu, kernels=not compiled and way != "torch's own kernels", **UPDATES[way])
    if way == "padded rows":
        model.set_attn_implementation("sdpa")
    batch = learning.batch_of(work.prompts, Native(work, cpu, model).answers(0), policy)
    if compiled:
        for layer in model.model.layers:
            layer.compile(dynamic=True)

    def whole() -> None:
        give_back_memory()  # does nothing where memory is kept
        policy.update(batch, 0.0)

    def once(_: int) -> dict[str, float]:
        return {"figure": harness.timed(whole)[1]}

    return once


def decoding(way: str, work: Work, model: Any) -> Callable[[int], dict[str, float]]:
    """A function that decodes the work and says how fast."""
    runner = ModelRunner(NETWORKS[way](model, getattr(torch, work.precision)), 4096)
    decode(runner, work, 0)  # in this thread: torch has its pool of threads here from now on
    thread = ThreadPoolExecutor(1)

    def once(seed: int) -> dict[str, float]:
        def whole() -> int:
            return decode(runner, work, seed)

        tokens, seconds = harness.timed(thread.submit(whole).result if way.endswith("thread") else whole)
        return {"figure": tokens / seconds}

    return once


def main() -> None:
    """Load, warm up, and do rounds until nobody asks for more."""
    line = Line()
    said = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    prompts = first_prompts(said["model"], said["prompts"])
    work = Work(said["model"], prompts, said["samples"], said["tokens"], said["precision"])
    model = load_model(work.place, ModelRecipe(path=work.place), torch.device("cpu"), "float32")
    kind, way = said["kind"], said["way"]
    if kind == "gap":
        line.answer(gap(work, model))
        return
    once = decoding(way, work, model) if kind == "decode" else updating(way, work, model)
    once(0)  # warm up
    line.answer({})
    while True:
        line.answer(once(line.next()["seed"]))


if __name__ == "__main__":
    main()
