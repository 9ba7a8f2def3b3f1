"""Publishing: a version bump at the engine, then a probe that the new weights really arrived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from assay.errors import AssayError
from assay.records import Group, Prompt, Rollout, Verdict
from assay.rollout.dispatch import Dispatcher
from assay.rollout.engine import Request
from assay.rollout.sampling import Sampling

PROBE = 1 << 41
"""Admission number of probes, far from those of training and evaluation."""


class Publishable(Protocol):
    """What the probe asks of a policy."""

    def probe_logprobs(self, group: Group) -> list[float]:
        """Log-probs of the tokens of a group's one rollout under the trainer's weights."""
        ...


@dataclass
class Weights:
    """The way of the weights from the policy to the engine, with the version that the engine has."""

    dispatcher: Dispatcher
    prompt: Prompt
    """What the probe asks."""
    tolerance: float
    """Largest mean |engine - trainer| log-prob per token that rounding may explain."""
    temperature: float = 1.0
    """The training temperature: that of the log-probs that are compared."""
    tokens: int = 4
    """Length of the probe."""
    version: int = 0
    """The policy's: batches consumed."""
    published: Callable[[Any], None] = lambda policy: None
    """Told the policy whose weights the engine samples from now on."""

    async def start(self, policy: Publishable) -> None:
        """Publish the weights as they are, under the present version: those of a new or of a resumed run."""
        await self.dispatcher.engine.publish(self.version)
        await self.probe(policy)

    async def publish(self, policy: Publishable, due: bool = True) -> dict[str, float]:
        """Count the policy's present weights as the next version, and publish them if it is ``due``."""
        self.version += 1
        return await self.catch_up(policy) if due else {}

    async def catch_up(self, policy: Publishable) -> dict[str, float]:
        """Have the engine sample from the present version, if it does not yet, and compare log-probs on probe tokens.

        Returns ``sync/probe_gap``, the mean |difference| in nats. Raises AssayError as `probe` does: a sync that
        silently did nothing stops the run at this step.
        """
        engine = self.dispatcher.engine
        if engine.version == self.version:
            return {}
        await engine.publish(self.version)
        self.published(policy)
        return {"sync/probe_gap": await self.probe(policy)}

    async def probe(self, policy: Publishable) -> float:
        """Mean |engine - trainer| log-prob of a few tokens that the engine samples, others for each version.

        They are sampled, not the likeliest ones: those of a sure policy have log-probs near 0 whatever its weights.
        Each of several engines behind one is asked, and the largest of their gaps is returned. Raises AssayError when
        it is more than rounding, that is when an engine samples from other weights.
        """
        sampling = Sampling(temperature=self.temperature, max_tokens=self.tokens)
        heard: list[Rollout] = []
        engines = self.dispatcher.engine.limits.engines
        request = Request(PROBE, self.prompt, engines, sampling, seed=self.version, urgent=True)
        await self.dispatcher.ask([request], lambda _, rollout: heard.append(rollout))
        gaps = [self._gap(policy, rollout) for rollout in heard if any(rollout.trainable)]
        if not gaps:
            raise AssayError(f"after publishing version {self.version} the engine made no answer to the probe")
        gap = next((g for g in gaps if not g <= self.tolerance), max(gaps))  # NaN is more than any tolerance
        if not gap <= self.tolerance:
            raise AssayError(
                f"after publishing version {self.version} the engine's log-probs differ from the trainer's by "
                f"{gap:.3g} nats a token (at most {self.tolerance:g} is rounding): the weights did not arrive"
            )
        return gap

    def _gap(self, policy: Publishable, rollout: Rollout) -> float:
        """Mean |engine - trainer| log-prob over one answer to the probe."""
        theirs = rollout.sampler_logprobs
        ours = policy.probe_logprobs(Group(self.prompt, (rollout,), (Verdict(0.0, "scored"),)))
        return sum(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / len(theirs)
