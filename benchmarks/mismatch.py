"""The gap between samplers and the trainer, measured on a real model; what bypass does at the first inner step.

python benchmarks/mismatch.py --save                                  # all that this environment can run
python benchmarks/mismatch.py "native int8" "llama.cpp q4_0" --save   # some of them; results are merged
python benchmarks/mismatch.py "vllm bfloat16" --vllm-python PATH      # a vLLM in an environment of its own
python benchmarks/mismatch.py --page                                  # docs/mismatch.md from the results

Each sampler answers 8 open questions twice with up to 256 tokens, and 12 sums 8 times with up to 24. The trainer
scores the same tokens, once in float32 and once in bfloat16 over float32 masters. On the sums, whose answers are
judged, the gradient of one update is taken twice: with the trainer's own log-probs as anchor (`recompute`), and with
the sampler's (`rollout`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf_model
import mismatch_page
import torch
from torch import Tensor

from assay.data.demo_model import resolve_model_path
from assay.data.prompts import load_prompts
from assay.hardware import with_precision
from assay.objective.mismatch import effective_sample_share, gap
from assay.policy.batch import Batch, pack
from assay.policy.model import load_model, load_tokenizer
from assay.policy.policy import Policy
from assay.recipe.schema import Recipe
from assay.records import Group, Prompt, Rollout, Verdict
from assay.reward.scorer import Scorer
from assay.rollout.engine import Engine, Request, sampling_of
from assay.rollout.engines import make_engine
from assay.rollout.fleet import Fleet

CPU = torch.device("cpu")
TRAINERS = ("float32", "bfloat16")
LENGTHS = (64, 256)
QUESTIONS = (
    "Explain how a bicycle stays upright.",
    "Write a short story about a lighthouse keeper.",
    "What are the advantages of public transport?",
    "Describe the water cycle for a child.",
    "How does bread rise?",
    "Give me a plan for a week of healthy meals.",
    "Why is the sky blue? Explain in detail.",
    "Write a letter to a friend about moving to a new city.",
)
SUMS = (
    'reasoning_gym:chain_sum{"size": 12, "seed": 5, "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}'
)


@dataclass(frozen=True)
class Side:
    """A sampler: its engine, and what the recipe says of it."""

    engine: str
    dtype: str = "auto"
    gguf: str | None = None
    """Precision of a GGUF file that llama.cpp samples from."""


SIDES = {
    **{f"native {dtype}": Side("native", dtype) for dtype in ("float32", "bfloat16", "int8")},
    "vllm bfloat16": Side("vllm_server", "bfloat16"),
    **{f"llama.cpp {kind}": Side("llama_server", gguf=kind) for kind in ("f16", "q8_0", "q4_0", "q4_1")},
}
"""All samplers by name."""
ROUNDED = ("q4_0", "q4_1")
"""Precisions of a GGUF file that the engine does not write itself."""


class GivenFile:
    """A GGUF file where llama.cpp's engine expects one of each version: the weights never change here."""

    def __init__(self, path: Path, precision: str) -> None:
        self.path = path
        self.precision = precision

    async def fresh(self, version: int) -> Path:
        """The file."""
        return self.path

    def last(self, version: int) -> Path:
        """The file."""
        return self.path

    def enter(self) -> None:
        """Nobody is counted."""

    def leave(self) -> None:
        """It is removed with its folder."""


def recipe_of(side: Side, model: str, compute: str, tokens: int, vllm_python: str | None = None, **more: Any) -> Recipe:
    """A recipe that samples with ``side`` and trains in ``compute``."""
    options: dict[str, Any] = {"python": vllm_python} if side.engine == "vllm_server" and vllm_python else {}
    values: dict[str, Any] = {
        "model": {"path": model, "compute_dtype": compute},
        "data": {"train": [SUMS], "max_prompt_tokens": 128},
        "rollout": {"engine": side.engine, "max_tokens": tokens, "max_running": 96, "options": options},
        "update": {"learning_rate": 1e-12, "max_grad_norm": None, "tokens_per_microbatch": 2048, "head_chunk": 256},
        **more,
    }
    if side.dtype != "auto":
        values["rollout"]["dtype"] = side.dtype
    if side.gguf in ("f16", "q8_0"):
        values["sync"] = {"gguf": side.gguf}
    return with_precision(Recipe.from_dict(values), "cpu")


def questions(tokenizer: Any) -> list[Prompt]:
    """The open questions, tokenised."""
    found = []
    for number, text in enumerate(QUESTIONS):
        message = [{"role": "user", "content": text}]
        if tokenizer.chat_template:
            text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        found.append(Prompt(f"question {number}", tuple(message), text, tuple(ids)))
    return found


def engine_of(side: Side, recipe: Recipe, model: Any, tokenizer: Any, place: str, folder: Path) -> Engine:
    """The engine; where llama.cpp's writes no file in the precision that is asked for, one is put in its place."""
    engine = make_engine(recipe, model, tokenizer)
    if side.gguf in ROUNDED:
        file = folder / f"{side.gguf}.gguf"
        gguf_model.write_gguf(Path(place), side.gguf, file)
        assert isinstance(engine, Fleet)
        (member,) = engine._members
        member.engine._files = GivenFile(file, side.gguf)
    return engine


async def answers(engine: Engine, prompts: Sequence[Prompt], n: int, recipe: Recipe, first: int) -> list[Group]:
    """Ask each prompt ``n`` times."""
    for number, prompt in enumerate(prompts, start=first):
        await engine.submit(Request(number, prompt, n, sampling_of(recipe.rollout), seed=7))
    found: dict[int, list[Rollout]] = {first + i: [] for i in range(len(prompts))}
    async for number, rollout in engine.finished():
        found[number].append(rollout)
    verdict = Verdict(0.0, "scored")
    ordered = [tuple(sorted(rows, key=lambda r: r.index)) for rows in found.values()]
    return [Group(p, rows, (verdict,) * len(rows)) for p, rows in zip(prompts, ordered, strict=True)]


def judged(groups: Sequence[Group], recipe: Recipe) -> list[Group]:
    """The groups with the verdicts of the recipe's verifier."""

    async def judge() -> list[Group]:
        with Scorer(recipe.reward, recipe.rollout.max_tokens) as scorer:
            return [Group(g.prompt, g.rollouts, tuple(await scorer.score(g.prompt, g.rollouts))) for g in groups]

    return asyncio.run(judge())


def gaps(batch: Batch, logprobs: Tensor) -> dict[str, Any]:
    """The gap over all tokens, and the effective sample size of sequence weights at some lengths."""
    step = batch.step
    sampler, known = step.sampler_logprobs, step.tokens & step.sampler_logprobs.isfinite() & logprobs.isfinite()
    found: dict[str, Any] = {k.removeprefix("m/"): v for k, v in gap(logprobs, sampler, known, "m").values().items()}
    place = torch.arange(batch.n_tokens) - batch.offsets[:-1][step.layout.sequence]
    for length in LENGTHS:
        within = known & (place < length)
        logs = step.layout.sum_by_sequence(logprobs - sampler, within)
        found[f"ess_{length}"] = float(effective_sample_share(logs))
        found[f"log_weight_std_{length}"] = float(logs.std())
    return found | {"tokens": int(known.sum()), "rollouts": batch.n_sequences}


def dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The inner product of two gradients in float64: over 10^8 numbers float32 is a twentieth off."""
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(one, other, strict=True))


def bypass(groups: Sequence[Group], side: Side, model: Any, place: str, vllm_python: str | None) -> dict[str, float]:
    """One update's gradient and metrics under the sampler's anchor, beside the gradient under the trainer's own."""
    found: dict[str, tuple[list[Tensor], dict[str, float]]] = {}
    for anchor in ("recompute", "rollout"):
        objective = {"anchor": anchor, "clip_low": 0.2, "clip_high": 0.2}
        recipe = recipe_of(side, place, "auto", 24, vllm_python, objective=objective)
        policy = Policy(recipe, model, CPU, 10)
        metrics = policy.update(pack(groups, recipe.reward), 0.0).metrics
        found[anchor] = [p.grad.clone() for p in model.parameters() if p.grad is not None], metrics
    (exact, _), (ours, metrics) = found["recompute"], found["rollout"]
    names = ("ratio_mean", "ratio_max", "clip_low_share", "clip_high_share")
    return {name: metrics.get(f"update/{name}", math.nan) for name in names} | {
        "gradient_cosine": dot(exact, ours) / math.sqrt(dot(exact, exact) * dot(ours, ours) or math.nan),
        "gradient_norm_ratio": math.sqrt(dot(ours, ours) / (dot(exact, exact) or math.nan)),
    }


def measure(
    side: Side, place: str, vllm_python: str | None, tokens: int, few: int, trainers: Sequence[str]
) -> dict[str, Any]:
    """All figures of one sampler, scored in each of ``trainers``. ``few``: only so many prompts of each kind."""
    recipe = recipe_of(side, place, "auto", tokens, vllm_python)
    short = recipe_of(side, place, "auto", min(24, tokens), vllm_python)
    model, tokenizer = load_model(place, recipe.model, CPU), load_tokenizer(place, recipe.model)
    sums = load_prompts(recipe.data, tokenizer, "train", recipe.reward.gold).prompts

    async def sample(folder: Path) -> tuple[list[Group], list[Group], float]:
        engine = engine_of(side, recipe, model, tokenizer, place, folder)
        try:
            await engine.publish(0)
            start = time.perf_counter()
            open_ended = await answers(engine, questions(tokenizer)[:few], 2, recipe, 0)
            taken = time.perf_counter() - start
            return open_ended, await answers(engine, sums[:few], 8, short, 1000), taken
        finally:
            await engine.close()

    with tempfile.TemporaryDirectory() as folder:
        open_ended, asked, seconds = asyncio.run(sample(Path(folder)))
    batch, found = pack(open_ended, recipe.reward), {}
    for compute in trainers:
        policy = Policy(recipe_of(side, place, compute, tokens, vllm_python), model, CPU, 10)
        found[compute] = gaps(batch, policy.score(batch))
    return {
        "gap": found,
        "bypass": bypass(judged(asked, short), side, model, place, vllm_python),
        "tokens_s": batch.n_tokens / seconds,
    }


def main() -> None:
    """Measure the samplers that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="*", help=f"of {', '.join(SIDES)}; absent: all")
    parser.add_argument("--model", default="demo", help="model folder, or demo")
    parser.add_argument("--tokens", type=int, default=256, help="longest answer to an open question")
    parser.add_argument("--few", type=int, default=100, help="at most so many prompts of each kind")
    parser.add_argument("--trainers", nargs="*", default=TRAINERS, help="precisions in which the trainer scores")
    parser.add_argument("--vllm-python", help="interpreter of an environment with vLLM")
    parser.add_argument("--save", action="store_true", help="merge into benchmarks/results/mismatch.json")
    parser.add_argument("--page", action="store_true", help="write docs/mismatch.md from the results, measure nothing")
    chosen = parser.parse_args()
    if chosen.page:
        mismatch_page.write()
        return
    for name in chosen.sides or SIDES:
        place = resolve_model_path(chosen.model)
        found = measure(SIDES[name], place, chosen.vllm_python, chosen.tokens, chosen.few, chosen.trainers)
        print(f"{name}: {json.dumps(found, indent=2)}", flush=True)
        if chosen.save:
            mismatch_page.keep(name, found)


if __name__ == "__main__":
    main()
