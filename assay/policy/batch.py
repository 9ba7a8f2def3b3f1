"""The batch: the response tokens of a step's groups as flat arrays, one truth of what counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.errors import UserError
from assay.objective.layout import Layout
from assay.objective.step import Step
from assay.recipe.derived import part_names
from assay.recipe.schema import RewardRecipe
from assay.records import Group, Rollout


@dataclass(frozen=True)
class Batch:
    """A training step's tokens, without padding.

    S sequences (rollouts) in G groups with N response tokens in all; sequence s owns the tokens
    ``offsets[s]:offsets[s + 1]`` of every flat array of ``step``.
    """

    groups: tuple[Group, ...]
    prompts: tuple[Tensor, ...]
    """Per group: prompt token ids (P_g,)."""
    responses: tuple[Tensor, ...]
    """Per sequence: response token ids (T_s,)."""
    offsets: Tensor
    """(S + 1,) long."""
    step: Step
    """What the objective sees: no tokens, no text."""

    @property
    def n_sequences(self) -> int:
        """S."""
        return len(self.responses)

    @property
    def n_tokens(self) -> int:
        """N."""
        return int(self.offsets[-1])

    def tokens_of(self, sequences: Sequence[int]) -> Tensor:
        """Flat indices (n,) of the tokens of these sequences, in their order."""
        spans = [torch.arange(int(self.offsets[s]), int(self.offsets[s + 1])) for s in sequences]
        return torch.cat(spans) if spans else torch.empty(0, dtype=torch.long)


def pack(groups: Sequence[Group], reward: RewardRecipe, version: int | None = None) -> Batch:
    """Lay out groups as a `Batch` on the CPU, group by group, rollout by rollout.

    Rewards and log-probs keep their place beside their rollout whatever happens later: every consumer indexes these
    arrays, nothing sorts them. Invalid verdicts have reward NaN, tokens that the policy did not sample log-prob NaN.
    ``version``: of the weights that will be trained; the metrics then tell how much older each token's sampler was.
    Raises UserError for a prompt without tokens: nothing would predict a response's first token.
    """
    for group in groups:
        if not group.prompt.token_ids:
            raise UserError(f"{group.prompt.source or group.prompt.id}: the prompt has no tokens; remove the row")
    rollouts = [r for g in groups for r in g.rollouts]
    verdicts = [v for g in groups for v in g.verdicts]
    lengths = torch.tensor([len(r) for r in rollouts], dtype=torch.long)
    names = part_names(reward)
    weights = [p.weight for p in reward.parts]
    weights += [1.0] * (len(names) - len(weights))  # the overlong part
    part_rows = [[_number(v.parts.get(name)) for name in names] for v in verdicts]
    step = Step(
        layout=Layout(
            sequence=torch.repeat_interleave(torch.arange(len(rollouts)), lengths),
            group=torch.tensor([i for i, g in enumerate(groups) for _ in g.rollouts], dtype=torch.long),
            n_groups=len(groups),
        ),
        trainable=_flat([r.trainable for r in rollouts], torch.bool),
        valid=torch.tensor([v.valid for v in verdicts], dtype=torch.bool),
        rewards=torch.tensor([_number(v.reward) for v in verdicts], dtype=torch.float32),
        truncated=torch.tensor([r.finish == "length" for r in rollouts], dtype=torch.bool),
        sampler_logprobs=_flat([r.sampler_logprobs for r in rollouts], torch.float32),
        parts=torch.tensor(part_rows, dtype=torch.float32).reshape(len(rollouts), len(names)),
        part_weights=torch.tensor(weights, dtype=torch.float32),
        lags=None if version is None else _flat([_lags(r, version) for r in rollouts], torch.long),
    )
    return Batch(
        groups=tuple(groups),
        prompts=tuple(torch.tensor(g.prompt.token_ids, dtype=torch.long) for g in groups),
        responses=tuple(torch.tensor(r.token_ids, dtype=torch.long) for r in rollouts),
        offsets=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]),
        step=step,
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _lags(rollout: Rollout, version: int) -> list[int]:
    """Per token, ``version`` less the one that sampled it; 0 where the policy did not."""
    return [
        version - v
        for s in rollout.segments
        for v in (s.versions if s.kind == "policy" else (version,) * len(s.token_ids))
    ]


def _flat(rows: Sequence[Sequence[float | bool]], dtype: torch.dtype) -> Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=dtype)
