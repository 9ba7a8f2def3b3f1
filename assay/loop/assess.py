"""Using a model without training it: evaluation on held-out prompts, and answers to a question."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from assay.data.chat import prepare_messages, render, tokenize, uses_chat_template
from assay.data.prompts import load_prompts
from assay.hardware import prepare_torch, with_precision
from assay.loop.assembly import find_model, thinking_of
from assay.loop.evaluate import evaluate
from assay.loop.folder import model_place
from assay.loop.memory import memory
from assay.loop.summary import estimates_of
from assay.policy.model import check_model, load_model, load_outline, load_tokenizer, pick_device
from assay.recipe.load import Resolved
from assay.recipe.schema import DataRecipe, ModelRecipe, Recipe, RolloutRecipe
from assay.records import Prompt, Rollout
from assay.reward.scorer import Scorer
from assay.reward.selection import check_rows
from assay.rollout.dispatch import Dispatcher
from assay.rollout.engine import Engine, Request
from assay.rollout.engines import make_engine
from assay.rollout.sampling import Sampling
from assay.track.console import Console


def assess(resolved: Resolved, console: Console) -> dict[str, dict[str, float]]:
    """Evaluate ``model.path`` on the recipe's held-out prompts: estimates by name, each with value, low, high, n."""
    prepare_torch(resolved.recipe.run)
    return asyncio.run(_assess(resolved.recipe, console))


async def _assess(recipe: Recipe, console: Console) -> dict[str, dict[str, float]]:
    place, tokenizer = find_model(recipe)
    held_out = load_prompts(recipe.data, tokenizer, "eval", recipe.reward.gold)
    check_rows(recipe.reward, held_out.prompts)
    with Scorer(recipe.reward, recipe.rollout.max_tokens) as scorer:
        engine = _engine(recipe, place, tokenizer)
        try:
            with memory("evaluate", recipe):
                found = await evaluate(
                    Dispatcher(engine),
                    scorer,
                    held_out,
                    recipe,
                    partial(console.phase, "evaluate"),
                    thinking_of(recipe, tokenizer),
                )
        finally:
            await engine.close()
            console.stop()
    return estimates_of(found.metrics())


def ask(model: str, question: str, *, n: int, max_tokens: int, temperature: float, seed: int) -> list[Rollout]:
    """Sample ``n`` answers to a question; ``temperature`` 0 is greedy. ``model`` is what ``model.path`` may be."""
    sampling = Sampling(temperature=temperature or 1.0, max_tokens=max_tokens, greedy=temperature == 0)
    return asyncio.run(_ask(model, question, n, sampling, seed))


async def _ask(path: str, question: str, n: int, sampling: Sampling, seed: int) -> list[Rollout]:
    recipe = Recipe(model=ModelRecipe(path=path), rollout=RolloutRecipe(max_tokens=sampling.max_tokens))
    place = model_place(path)
    check_model(place, recipe.model)
    tokenizer = load_tokenizer(place, recipe.model)
    engine = _engine(recipe, place, tokenizer)
    try:
        with memory("generate", recipe):
            await engine.submit(Request(0, _prompt(question, tokenizer), n, sampling, seed))
            rollouts = [r async for _, r in engine.finished()]
    finally:
        await engine.close()
    return sorted(rollouts, key=lambda r: r.index)


def _prompt(question: str, tokenizer: Any) -> Prompt:
    data = DataRecipe()
    messages = prepare_messages(({"role": "user", "content": question},), data)
    text = render(messages, tokenizer, data, "the question")
    ids = tokenize(text, tokenizer, chat=uses_chat_template(tokenizer, data))
    return Prompt("question", messages, text, ids)


def _engine(recipe: Recipe, place: str, tokenizer: Any) -> Engine:
    device = pick_device(recipe.model.device)
    recipe = with_precision(recipe, device.type)
    with memory("load", recipe):
        if recipe.rollout.engine == "openai":
            return make_engine(recipe, load_outline(place, recipe.model), tokenizer)
        return make_engine(recipe, load_model(place, recipe.model, device), tokenizer)
