"""The loop on a page.

::

                      prompts in a seeded order
                                |
        +-----------------------v------------------------+
        |  source   admit prompts, sample, judge         |   engine  <---- weights ----+
        |           answers are judged while others      |   (native: this process,    |
        |           are still being sampled              |    the trainer's tensors)   |
        +-----------------------+------------------------+                             |
                                | groups: rollouts with verdicts                       |
        +-----------------------v------------------------+                             |
        |  policy   pack, advantages, anchor,            |                             |
        |           micro-batches, optimizer step(s)     +---- publish: version + 1 ---+
        +-----------------------+------------------------+        then a probe
                                | update
        +-----------------------v------------------------+
        |  run      metrics, rollout log, KL controller, |
        |           evaluation, checkpoint               |
        +------------------------------------------------+

One number tells the regimes apart: `regime.max_staleness`, how many versions old the oldest token of a rollout may be
when it is trained on. At 0, `source.next_groups` returns when everything that was started is finished, the weights move
when nothing is being sampled, and between two steps nothing is in flight: the state of a run is then the weights, the
optimizer and the few numbers of `RunState`. Above 0 the source goes on starting groups while the policy is updated, in
a thread beside the event loop; new weights come under running answers; a checkpoint also holds what is in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from assay.hardware import give_back_memory
from assay.loop.assembly import Ingredients, Parts, assemble, sampled_groups
from assay.loop.harvest import Harvest, Source
from assay.loop.interrupt import Interrupted
from assay.loop.memory import memory
from assay.loop.run import Describe, described
from assay.policy.batch import pack
from assay.policy.export import export, model_card
from assay.policy.policy import Policy, Update
from assay.recipe.load import Resolved
from assay.recipe.schema import Recipe, RewardRecipe
from assay.track.console import Console


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: Path
    """The run folder."""
    finished: bool
    """False when it was interrupted; then it can be resumed."""
    step: int
    """Steps done."""
    summary: dict[str, Any]
    """What summary.json holds."""


async def drive(parts: Parts) -> bool:
    """Train until all steps are done (True) or the user asks to stop (False)."""
    run, source, policy, weights = parts.run, parts.source, parts.policy, parts.weights
    try:
        await run.evaluate_and_checkpoint()
        while not run.finished:
            harvest = await run.unless_stopped(source.next_groups())
            async with run.doing("update"):
                if run.synchronous:
                    await weights.dispatcher.engine.sleep()  # nothing is in flight; the publish wakes it
                update = await run.off_loop(partial(updated, policy, harvest, run.recipe.reward, run.kl.coefficient))
            async with run.doing("publish"):
                drifted = await run.drifted(update)
                due = run.publish_due(weights.dispatcher.engine.version)
                if due and not run.recipe.regime.in_flight:
                    await source.drained()
                published = await weights.publish(policy, due)
            run.observe(harvest, update, drifted | published)
            await run.evaluate_and_checkpoint()
    except Interrupted:
        return False
    return True


def updated(policy: Policy, harvest: Harvest, reward: RewardRecipe, kl_coefficient: float) -> Update:
    """The policy, moved by a step's groups."""
    give_back_memory()  # what generation has freed
    try:
        return policy.update(pack(harvest.groups, reward, harvest.version), kl_coefficient)
    finally:
        policy.release()
        give_back_memory()


def train(recipe: Recipe | Resolved, *, resume: bool | Path = False, console: Console | None = None) -> Outcome:
    """Run a recipe from its data to a trained model, and return where everything lies.

    ``resume``: go on with the recipe's newest run, or with the run folder given. Raises UserError for what the user can
    mend, AssayError for a run that failed; a checkpoint is kept whenever there is one to keep.
    """
    return asyncio.run(run_loop(recipe, resume, console))


async def run_loop(
    recipe: Recipe | Resolved,
    resume: bool | Path,
    console: Console | None,
    make_source: Callable[[Ingredients], Source] = sampled_groups,
    describe: Describe = described,
) -> Outcome:
    """Assemble a run, drive it, export what came out. ``make_source`` and ``describe`` say what is trained on."""
    async with assemble(recipe, resume, console, make_source, describe) as parts:
        run = parts.run
        with run.interruptible():
            finished = await drive(parts)
        summary = run.summary()
        if finished:
            card = model_card(run.recipe.model.path, run.folder.recipe.read_text(encoding="utf-8"), summary)
            lora = run.recipe.model.lora
            adapter_only = lora is not None and lora.export == "adapter"
            with memory("export", run.recipe):
                export(parts.policy.model, parts.tokenizer, run.folder.model, card, adapter_only)
        return Outcome(run.folder.path, finished, run.state.step, summary)
