"""llama.cpp as an engine beside the native one: tokens a second, seconds to publish, the gap of its log-probs.

For each precision of the weights: a round is all prompts answered several times, at temperature 1, by the engine as a
run would make it; publishing is the file written, the old server ended and a new one up; the gap is the mean and the
largest |engine - trainer| of a token's log-prob, against a float32 forward of the same tokens.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import harness
import torch

from assay.policy.model import load_model, load_tokenizer
from assay.recipe.schema import DataRecipe, ModelRecipe, Recipe, RolloutRecipe, RunRecipe, SyncRecipe
from assay.records import Prompt, Rollout
from assay.rollout.engine import Engine, Request
from assay.rollout.engines import make_engine
from assay.rollout.sampling import Sampling

KINDS = ("native", "f16", "bf16", "q8_0")


@dataclass(frozen=True)
class Side:
    """What was found of one engine."""

    rates: list[float]
    publish: list[float]
    gaps: list[float]

    def line(self, name: str) -> str:
        """A row of a table."""
        return (
            f"| {name} | {statistics.median(self.rates):,.0f} | {statistics.median(self.publish):.2f} | "
            f"{statistics.mean(self.gaps):.5f} | {max(self.gaps):.4f} |"
        )


def recipe_of(kind: str, rows: int, tokens: int, threads: int) -> Recipe:
    """The recipe whose engine is measured."""
    native = kind == "native"
    rollout: dict[str, Any] = {"engine": "native" if native else "llama_server", "max_running": rows}
    return Recipe(
        model=ModelRecipe(compute_dtype="float32"),
        data=DataRecipe(max_prompt_tokens=64),
        rollout=RolloutRecipe(max_tokens=tokens, **rollout),
        sync=SyncRecipe(gguf="f16" if native else kind),
        run=RunRecipe(threads=threads),
    )


def prompts_of(tokenizer: Any, n: int) -> list[Prompt]:
    """Sums, each another prompt."""
    texts = [f"Question: what is {17 * i % 90 + 10} plus {29 * i % 80 + 11}? Answer:" for i in range(n)]
    return [Prompt(text, (), text, tuple(tokenizer(text).input_ids)) for text in texts]


async def answers(engine: Engine, prompts: list[Prompt], samples: int, tokens: int, seed: int) -> list[Rollout]:
    """All prompts, each ``samples`` times."""
    for number, prompt in enumerate(prompts):
        await engine.submit(Request(number, prompt, samples, Sampling(max_tokens=tokens), seed))
    return [rollout async for _, rollout in engine.finished()]


async def measured(kind: str, model: Any, tokenizer: Any, chosen: Any) -> Side:
    """Rounds of one engine."""
    prompts = prompts_of(tokenizer, chosen.prompts)
    recipe = recipe_of(kind, chosen.prompts * chosen.samples, chosen.tokens, chosen.threads)
    engine = make_engine(recipe, model, tokenizer)
    rates: list[float] = []
    publish: list[float] = []
    found: list[Rollout] = []
    try:
        for number in range(chosen.rounds):
            start = time.perf_counter()
            await engine.publish(number + 1)
            publish.append(time.perf_counter() - start)
            start = time.perf_counter()
            found = await answers(engine, prompts, chosen.samples, chosen.tokens, number)
            rates.append(sum(map(len, found)) / (time.perf_counter() - start))
            print(f"{kind}: {rates[-1]:,.0f} tokens/s, published in {publish[-1]:.2f} s", file=sys.stderr)
    finally:
        await engine.close()
    by_id = {p.id: p for p in prompts}
    return Side(
        rates, publish, [g for r in found[:: chosen.samples // 2 or 1] for g in gaps(model, by_id[r.prompt_id], r)]
    )


@torch.no_grad()
def gaps(model: Any, prompt: Prompt, rollout: Rollout) -> list[float]:
    """|engine - trainer| of each token's log-prob."""
    ids = torch.tensor([[*prompt.token_ids, *rollout.token_ids]])
    logits = model(ids).logits[0, len(prompt.token_ids) - 1 : -1].float()
    ours = logits.log_softmax(-1).gather(1, torch.tensor(rollout.token_ids)[:, None])[:, 0]
    return (ours - torch.tensor(rollout.sampler_logprobs)).abs().tolist()


def main() -> None:
    """Measure each precision and print a table."""
    from assay.loop.folder import model_place

    parser = harness.arguments(__doc__ or "")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    place, recipe = model_place(chosen.model), ModelRecipe()
    torch.set_num_threads(chosen.threads)
    model, tokenizer = load_model(place, recipe, torch.device("cpu")), load_tokenizer(place, recipe)
    sides = {kind: asyncio.run(measured(kind, model, tokenizer, chosen)) for kind in KINDS}
    print("| engine | tokens/s | publish, s | gap, mean | gap, largest |\n| --- | --- | --- | --- | --- |")
    for kind, side in sides.items():
        print(side.line(kind if kind == "native" else f"llama_server, {kind}"))
    ratio = statistics.median(sides["f16"].rates) / statistics.median(sides["native"].rates)
    print(f"llama_server={ratio:.2f}")


if __name__ == "__main__":
    main()
