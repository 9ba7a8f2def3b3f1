"""The probe of the drift monitor: a few prompts with answers that the policy gave when the run began."""

from __future__ import annotations

import json

from assay.data.prompts import PromptSet
from assay.errors import UserError
from assay.loop.drift import DriftMonitor, DriftState
from assay.loop.folder import RunFolder, write_json
from assay.recipe.schema import Recipe
from assay.records import Group, Rollout, Segment, Verdict
from assay.rollout.dispatch import Dispatcher
from assay.rollout.engine import Request
from assay.rollout.sampling import Sampling
from assay.rollout.seeds import stream_seed

ADMISSIONS = (1 << 41) + (1 << 20)
"""Admission numbers of the probe start here, far from all others."""
PROMPTS = 8
"""Prompts asked, the first of the data."""
TOKENS = 16
"""Tokens of each answer: with a vocabulary of 150,000 the distributions at all of them take 77 MB."""


async def make_monitor(
    recipe: Recipe, folder: RunFolder, dispatcher: Dispatcher, prompts: PromptSet, state: DriftState
) -> DriftMonitor:
    """The monitor of a run; where it measures a KL, on the answers kept in the run folder, or else sampled now."""
    if recipe.drift.kl is None:
        return DriftMonitor(recipe.drift, state=state)
    answers = _kept(folder) or await _sampled(recipe, dispatcher, prompts)
    write_json(folder.drift_probe, answers)
    asked = {p.id: p for p in prompts.prompts if p.id in answers}
    if len(asked) < len(answers):
        raise UserError(
            f"{folder.drift_probe}: asks prompts that the data lack: resume with the data the run began with"
        )
    groups = []
    for prompt_id, ids in answers.items():
        segment = Segment("policy", tuple(ids), (0.0,) * len(ids), (0,) * len(ids))
        rollout = Rollout(prompt_id, 0, (segment,), "stop", "")
        groups.append(Group(asked[prompt_id], (rollout,), (Verdict(0.0, "scored"),)))
    return DriftMonitor(recipe.drift, groups, state)


def _kept(folder: RunFolder) -> dict[str, list[int]]:
    """The answers of a run that goes on: token ids by prompt; of a new one none."""
    return json.loads(folder.drift_probe.read_text(encoding="utf-8")) if folder.drift_probe.exists() else {}


async def _sampled(recipe: Recipe, dispatcher: Dispatcher, prompts: PromptSet) -> dict[str, list[int]]:
    """Answers of the policy as it is now."""
    sampling = Sampling(temperature=recipe.rollout.temperature, max_tokens=min(TOKENS, recipe.rollout.max_tokens))
    seed = stream_seed(recipe.run.seed, "drift")
    chosen = list({p.id: p for p in prompts.prompts}.values())[:PROMPTS]
    found: dict[str, list[int]] = {}

    def hear(_: int, rollout: Rollout) -> None:
        if rollout.token_ids:
            found[rollout.prompt_id] = list(rollout.token_ids)

    requests = [Request(ADMISSIONS + i, p, 1, sampling, seed) for i, p in enumerate(chosen)]
    await dispatcher.ask(requests, hear)
    return {p.id: found[p.id] for p in chosen if p.id in found}
