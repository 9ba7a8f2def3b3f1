"""One engine on the demo model: seconds to start, to publish, tokens a second, and the gap of its log-probs.

    python benchmarks/engine_speed.py --engine vllm_server --dtype bfloat16

The gap is the mean |engine - trainer| log-prob a token, the trainer in float32, on answers of the model as it starts.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import harness
import torch

from assay.data.demo_model import resolve_model_path
from assay.hardware import with_precision
from assay.policy.model import load_model, load_tokenizer
from assay.recipe.schema import Recipe
from assay.records import Prompt, Rollout
from assay.rollout.engine import Engine, Request, sampling_of
from assay.rollout.engines import make_engine

QUESTION = "What is {} + {}? Answer with one number."


def prompts(tokenizer: Any, n: int) -> list[Prompt]:
    """Sums, in the chat template."""
    found = []
    for i in range(n):
        message = [{"role": "user", "content": QUESTION.format(i * 37 % 100, i * 61 % 100)}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        found.append(Prompt(f"sum {i}", tuple(message), text, tuple(ids)))
    return found


async def answers(engine: Engine, asked: list[Prompt], n: int, recipe: Recipe, first: int) -> list[Rollout]:
    """Ask each prompt ``n`` times."""
    for number, prompt in enumerate(asked, start=first):
        await engine.submit(Request(number, prompt, n, sampling_of(recipe.rollout), seed=7))
    return [rollout async for _, rollout in engine.finished()]


@torch.no_grad()
def gap(model: Any, asked: list[Prompt], rollouts: list[Rollout]) -> float:
    """Mean |engine - model| log-prob a token."""
    texts, total, tokens = {p.id: p.token_ids for p in asked}, 0.0, 0
    for rollout in rollouts:
        prompt = texts[rollout.prompt_id]
        logits = model(torch.tensor([[*prompt, *rollout.token_ids]])).logits[0, len(prompt) - 1 : -1].float()
        known = torch.log_softmax(logits, -1).gather(1, torch.tensor(rollout.token_ids)[:, None])[:, 0]
        total += float((known - torch.tensor(rollout.sampler_logprobs)).abs().sum())
        tokens += len(rollout)
    return total / tokens


async def measure(recipe: Recipe, rounds: int, asked: int, samples: int) -> None:
    """Start the engine, then publish and sample in turn."""
    place = resolve_model_path(recipe.model.path)
    tokenizer, model = load_tokenizer(place, recipe.model), load_model(place, recipe.model, torch.device("cpu"))
    wanted, begun = prompts(tokenizer, asked), time.perf_counter()
    engine = make_engine(recipe, model, tokenizer)
    try:
        await engine.publish(0)
        print(
            f"{engine.path}, {recipe.rollout.dtype}: started and given weights in {time.perf_counter() - begun:.1f} s"
        )
        await answers(engine, wanted[:1], 1, recipe, first=0)
        publishes, rates, rollouts = [], [], []
        for number in range(1, rounds + 1):
            begun = time.perf_counter()
            await engine.publish(number)
            published = time.perf_counter()
            rollouts = await answers(engine, wanted, samples, recipe, first=1000 * number)
            publishes.append(published - begun)
            rates.append(sum(map(len, rollouts)) / (time.perf_counter() - published))
        print(f"publish  {harness.Measured(tuple(publishes), 's')}")
        print(f"sampling {harness.Measured(tuple(rates), 'tokens/s')}")
        print(f"gap      {gap(model, wanted, rollouts[:16]):.2e} nats a token")
    finally:
        await engine.close()


def main() -> None:
    """Measure the engine that the options name."""
    parser = harness.arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--engine", default="vllm_server")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--python", help="of an environment that has vLLM, for vllm_server")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    chosen = parser.parse_args()
    rollout = {"engine": chosen.engine, "dtype": chosen.dtype, "max_tokens": chosen.tokens, "max_running": 64}
    options = {"python": chosen.python} if chosen.python else {}
    values = {
        "model": {"path": chosen.model, "compute_dtype": "float32"},
        "data": {"train": ["none.jsonl"], "max_prompt_tokens": 128},
        "rollout": {**rollout, **({"options": options} if options else {})},
    }
    recipe = with_precision(Recipe.model_validate(values), "cpu")
    asyncio.run(measure(recipe, chosen.rounds, chosen.prompts, chosen.samples))


if __name__ == "__main__":
    main()
