"""Decoding: the native engine beside transformers' `generate`. Goal: 3 times its rate or more.

Both sides answer the same 16 prompts 8 times each with exactly 64 new tokens (ends of sequence do not stop them),
sampled at temperature 1 from the full softmax, in the precision that is faster on this machine. transformers gets what
serves it best: one padded batch of 128, its default (dynamic) cache, SDPA, inference mode.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import harness
import torch

from assay.data.demo_model import resolve_model_path
from assay.data.prompts import load_prompts
from assay.hardware import fast_precision
from assay.policy.model import load_model, load_tokenizer
from assay.recipe.schema import DataRecipe, ModelRecipe
from assay.records import Prompt
from assay.rollout.engine import Request
from assay.rollout.native import NativeEngine
from assay.rollout.sampling import Sampling

TASK = (
    'reasoning_gym:chain_sum{"size": 40, "seed": 1, "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}'
)


def native(model: Any, tokenizer: Any, prompts: tuple[Prompt, ...], samples: int, tokens: int, seed: int) -> float:
    """Tokens per second of the native engine."""
    engine = NativeEngine(model, tokenizer, max_running=len(prompts) * samples, stop=frozenset())

    async def run() -> int:
        for i, prompt in enumerate(prompts):
            await engine.submit(Request(i, prompt, samples, Sampling(max_tokens=tokens), seed))
        count = sum([len(r) async for _, r in engine.finished()])
        await engine.close()
        return count

    start = time.perf_counter()
    count = asyncio.run(run())
    return count / (time.perf_counter() - start)


def transformers_generate(
    model: Any, tokenizer: Any, prompts: tuple[Prompt, ...], samples: int, tokens: int, seed: int
) -> float:
    """Tokens per second of `generate` on one left-padded batch."""
    torch.manual_seed(seed)
    rows = [list(p.token_ids) for p in prompts for _ in range(samples)]
    width = max(map(len, rows))
    ids = torch.tensor([[tokenizer.eos_token_id] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=tokenizer.eos_token_id,
        )
    return (out.shape[1] - width) * len(rows) / (time.perf_counter() - start)


def main() -> None:
    """Measure both sides and print the ratio."""
    parser = harness.arguments(__doc__ or "")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    chosen = parser.parse_args()
    dtype = fast_precision("cpu") if chosen.dtype == "auto" else chosen.dtype
    place = resolve_model_path(chosen.model)
    recipe = ModelRecipe(path=place)
    tokenizer = load_tokenizer(place, recipe)
    prompts = load_prompts(DataRecipe(train=[TASK]), tokenizer).prompts[: chosen.prompts]
    model = load_model(place, recipe, torch.device("cpu"), dtype)
    work = (model, tokenizer, prompts, chosen.samples)
    native(*work, 2, 0), transformers_generate(*work, 2, 0)  # warm up
    sides = harness.alternate(
        {
            "assay": lambda seed: native(*work, chosen.tokens, seed),
            "transformers": lambda seed: transformers_generate(*work, chosen.tokens, seed),
        },
        chosen.rounds,
        "tokens/s",
    )
    ratio = sides["assay"].median / sides["transformers"].median
    settings = {k: v for k, v in vars(chosen).items() if k != "save"} | {"dtype": dtype}
    harness.finish("decode_vs_transformers", ratio, sides, settings, chosen.save)


if __name__ == "__main__":
    main()
