"""What travels through the system: prompts, rollouts, verdicts, groups. Frozen, without padding, without tensors.

A prompt is asked of the policy several times; each answer is a rollout; a verifier gives each rollout a verdict;
the rollouts of one prompt with their verdicts are a group. Shapes: a rollout of two policy segments of 3 and 2 tokens
with a forced segment of 1 between them has ``token_ids`` of length 6 and ``trainable`` of
``(True, True, True, False, True, True)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Message = Mapping[str, Any]
"""One chat message: ``{"role": ..., "content": ...}``."""

SegmentKind = Literal["policy", "forced", "tool"]
Finish = Literal["stop", "length", "cancelled", "error"]
Outcome = Literal[
    "scored",
    "no_answer",
    "program_timeout",
    "program_crash",
    "unverifiable",
    "verifier_error",
    "verifier_timeout",
    "unavailable",
]
GroupKind = Literal["all_fail", "mixed", "all_pass", "no_signal"]

REWARDED: frozenset[Outcome] = frozenset({"scored", "no_answer", "program_timeout", "program_crash", "unverifiable"})
"""Outcomes that carry a reward: the policy's own doing. Every other outcome is the verifier's and carries none."""


@dataclass(frozen=True)
class Prompt:
    """One question of a data set, tokenised."""

    id: str
    """Stable across restarts and re-orderings: a hash of the question and its answer columns."""
    messages: tuple[Message, ...]
    """The conversation before the answer; a plain-text prompt is one user message (see ``text``)."""
    text: str
    """What the model is shown, after the chat template."""
    token_ids: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The data row's other columns: the gold answer, the data source, tests."""
    source: str = ""
    """Where the row came from: ``file:row`` or ``reasoning_gym:NAME[index]``."""
    problem: str = ""
    """Identity of the problem whatever its wording; a held-out split never shares one with training."""


@dataclass(frozen=True)
class Segment:
    """A run of tokens with one origin inside a rollout."""

    kind: SegmentKind
    """``policy``: sampled, trainable. ``forced``: from a budget or template. ``tool``: said by an environment."""
    token_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...] = ()
    """Per token, natural log, full softmax of logits / temperature by the engine that sampled; policy segments only."""
    versions: tuple[int, ...] = ()
    """Per token, the policy version that sampled it; policy segments only."""
    kept_logprobs: tuple[float, ...] | None = None
    """Per token, log-prob under the distribution truly sampled from (top-p/top-k/min-p renormalised).

    ``None`` when nothing was cut, that is when it equals ``sampler_logprobs``.
    """

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        if self.kind == "policy" and not (len(self.sampler_logprobs) == len(self.versions) == n):
            raise ValueError(f"a policy segment of {n} tokens needs {n} log-probs and {n} versions")


@dataclass(frozen=True)
class Rollout:
    """One answer to a prompt."""

    prompt_id: str
    index: int
    """Place in its group, 0-based; with ``prompt_id`` and the admission it names the rollout."""
    segments: tuple[Segment, ...]
    finish: Finish
    text: str
    """The answer as text, without the end-of-sequence token."""
    seconds: float = 0.0
    """From admission to the last token."""

    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens of all segments, in order."""
        return tuple(t for s in self.segments for t in s.token_ids)

    @cached_property
    def trainable(self) -> tuple[bool, ...]:
        """Per token: was it sampled by the policy?"""
        return tuple(s.kind == "policy" for s in self.segments for _ in s.token_ids)

    @cached_property
    def sampler_logprobs(self) -> tuple[float, ...]:
        """Per token; NaN where the token is not the policy's, so that a use of it cannot pass unseen."""
        return tuple(
            p
            for s in self.segments
            for p in (s.sampler_logprobs if s.kind == "policy" else (math.nan,) * len(s.token_ids))
        )

    @cached_property
    def oldest_version(self) -> int | None:
        """The policy version of the oldest sampled token: what staleness is counted from."""
        return min((v for s in self.segments for v in s.versions), default=None)

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Verdict:
    """What was found of one rollout. A reward is a verdict with a reason, not a bare number."""

    reward: float | None
    """``None`` exactly when ``outcome`` is not in :data:`REWARDED`: the verifier's fault is never a 0."""
    outcome: Outcome
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """Each verifier's unweighted score by its name in the recipe; those of ``reward.watch`` as ``watch/NAME``."""
    answer: str | None = None
    """What was taken for the answer."""
    seconds: float = 0.0
    message: str = ""
    """Why, in words: the exception, the missing tag, the comparison made."""
    correct: float | None = None
    """The score of the first part: how right the answer is. Accuracy is counted from it, not from shaping."""

    def __post_init__(self) -> None:
        if (self.reward is None) != (self.outcome not in REWARDED):
            raise ValueError(f"outcome {self.outcome!r} with reward {self.reward!r}")
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"a reward must be finite, not {self.reward!r}")

    @property
    def valid(self) -> bool:
        """Does it carry a reward?"""
        return self.reward is not None


def is_right(verdict: Verdict) -> bool:
    """Is the answer right: does the first reward part (else the reward) give at least one half?

    >>> is_right(Verdict(0.2, "scored", correct=1.0)), is_right(Verdict(None, "verifier_error"))
    (True, False)
    """
    score = verdict.correct if verdict.correct is not None else verdict.reward
    return score is not None and score >= 0.5


@dataclass(frozen=True)
class Group:
    """One prompt, its rollouts and their verdicts, index by index."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    verdicts: tuple[Verdict, ...]
    admission: int = 0
    """Running number of the group in its run: the order in which groups were started."""

    def __post_init__(self) -> None:
        if len(self.rollouts) != len(self.verdicts):
            raise ValueError(f"{len(self.rollouts)} rollouts with {len(self.verdicts)} verdicts")
        strangers = {r.prompt_id for r in self.rollouts} - {self.prompt.id}
        if strangers:
            raise ValueError(f"group of prompt {self.prompt.id} holds rollouts of {sorted(strangers)}")

    @cached_property
    def rewards(self) -> tuple[float, ...]:
        """Rewards of the valid rollouts."""
        return tuple(v.reward for v in self.verdicts if v.reward is not None)

    @cached_property
    def kind(self) -> GroupKind:
        """``mixed`` when valid rewards differ; else by their common correctness; ``no_signal`` with fewer than two.

        ``all_pass`` and ``all_fail`` go by the first reward part (``Verdict.correct`` above or at 0.5).
        """
        if len(self.rewards) < 2:
            return "no_signal"
        if max(self.rewards) != min(self.rewards):
            return "mixed"
        return "all_pass" if all(is_right(v) for v in self.verdicts if v.valid) else "all_fail"


def share(values: Sequence[bool]) -> float:
    """The share of true values; 0 of nothing.

    >>> share([True, False, False, False])
    0.25
    """
    return sum(values) / len(values) if values else 0.0
