"""What an engine is: requests in, rollouts out as they finish, weights published to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Protocol

from assay.errors import AssayError, UserError
from assay.records import Prompt, Rollout, Segment

if TYPE_CHECKING:
    from assay.recipe.schema import RolloutRecipe
    from assay.rollout.sampling import Sampling


class EngineFailed(AssayError):
    """An engine cannot go on for a reason that every other engine would share: weights that diverged, no memory.

    Any other AssayError of an engine says that this one is lost (died, silent, out of reach), and others may take over.
    """


@dataclass(frozen=True)
class Request:
    """Answer one prompt ``n`` times."""

    id: int
    """Admission number of the group in its run; several requests of one group (retries) share it."""
    prompt: Prompt
    n: int
    """How many rollouts; their indices are ``first_index`` to ``first_index + n - 1``."""
    sampling: Sampling
    seed: int = 0
    """The run's seed: with admission number, prompt id and index it fixes a rollout's random numbers."""
    first_index: int = 0
    """Index of the first rollout: 0, or beyond those already sampled when some are sampled anew."""
    begun: tuple[Segment, ...] = ()
    """What the one rollout (``n`` is 1) holds already and goes on behind: a partial answer of an earlier version, or
    tokens that a thinking budget forced. They count in ``sampling.max_tokens``."""
    urgent: bool = False
    """Go before those that wait, and beyond ``max_running`` if need be: a probe does not wait for long answers."""

    def __post_init__(self) -> None:
        if self.begun and self.n != 1:
            raise ValueError(f"{self.n} rollouts cannot go on behind the same beginning")


@dataclass(frozen=True)
class Limits:
    """What an engine can take."""

    context: int | None
    """Most tokens of prompt and answer together; an answer that reaches it finishes as ``length``."""
    max_running: int
    """Answers generated at once."""
    engines: int = 1
    """Engines behind this one, each with weights of its own: an urgent request's rollouts are spread over them."""


@dataclass(frozen=True)
class Stats:
    """Counts since the engine was built."""

    generated_tokens: int = 0
    """Tokens sampled."""
    prefill_tokens: int = 0
    """Tokens forwarded before a first token could be sampled: each distinct prompt of a group once."""
    prefilled: int = 0
    """Sequences those were (a group's shared prompt is one)."""
    padded_tokens: int = 0
    """Positions computed in prefill that hold no token."""
    restored: int = 0
    """Rollouts whose prompt came from a stored prefix: too late for their siblings' prefill."""
    steps: int = 0
    """Decoding forwards."""
    decode_rows: int = 0
    """Rows of all decoding forwards; each belonged to a running answer."""
    attended: int = 0
    """Cache positions read by all decoding forwards, rows times longest row."""
    attended_padding: int = 0
    """Of those, the ones behind the end of a row shorter than the longest."""
    kv_measured: int = 0
    """Publishes after which an answer's next token was also predicted from keys and values computed anew, where they
    are kept (``regime.kv: keep``)."""
    kv_gap: float = 0.0
    """Sum over those of KL(from the kept ones || from new ones), nats."""

    def since(self, earlier: Stats) -> Stats:
        """What was added to ``earlier``.

        >>> Stats(steps=9, decode_rows=70).since(Stats(steps=7, decode_rows=50))
        Stats(generated_tokens=0, prefill_tokens=0, prefilled=0, padded_tokens=0, restored=0, steps=2, \
decode_rows=20, attended=0, attended_padding=0, kv_measured=0, kv_gap=0.0)
        """
        return Stats(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    def plus(self, other: Stats) -> Stats:
        """The counts of two engines together."""
        return Stats(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Engine(Protocol):
    """A sampler. One consumer at a time; all methods are called from one event loop."""

    @property
    def version(self) -> int:
        """The policy version that tokens sampled from now on carry."""
        ...

    @property
    def path(self) -> str:
        """How answers are made, in words."""
        ...

    @property
    def limits(self) -> Limits:
        """What fits."""
        ...

    @property
    def stats(self) -> Stats:
        """What was done so far."""
        ...

    async def submit(self, request: Request) -> None:
        """Queue a request. Raises UserError when its prompt leaves no room for an answer in the context."""
        ...

    def finished(self) -> AsyncGenerator[tuple[int, Rollout], None]:
        """Yield (request id, rollout) as rollouts finish; ends when nothing is in flight.

        A rollout that could not be made comes with the finish ``error``. Raises AssayError when the engine is gone.
        """
        ...

    async def cancel(self, request_id: int) -> None:
        """End the request's unfinished rollouts as ``cancelled``, tokens kept; ``finished`` yields them."""
        ...

    async def partials(self) -> list[tuple[int, Rollout]]:
        """(Request id, what it holds so far) of each unfinished rollout, as if cancelled now; they run on.

        What a checkpoint keeps. An engine that cannot know unfinished answers gives them without a segment.
        """
        ...

    async def publish(self, version: int) -> None:
        """The policy's weights have changed: sample from them, as ``version``, from the next token on."""
        ...

    async def sleep(self) -> None:
        """Nothing is in flight, and the trainer wants the memory: free what the next `publish` can make anew."""
        ...

    async def close(self) -> None:
        """Stop, and free what is held."""
        ...


def room_of(request: Request, context: int | None, whose: str = "the model's context") -> int:
    """Tokens that may be sampled behind what the request has begun. Raises UserError as `check_prompt`."""
    check_prompt(request.prompt, context, whose)
    begun, most = sum(len(s.token_ids) for s in request.begun), request.sampling.max_tokens
    return (most if context is None else min(most, context - len(request.prompt.token_ids))) - begun


def check_prompt(prompt: Prompt, context: int | None, whose: str = "the model's context") -> None:
    """Raise UserError when a prompt is empty, or leaves no room for an answer in the context, which is ``whose``."""
    length = len(prompt.token_ids)
    if length == 0:
        raise UserError(f"prompt {prompt.id} ({prompt.source}) has no tokens")
    if context is not None and length >= context:
        raise UserError(
            f"prompt {prompt.id} ({prompt.source}) has {length} tokens and {whose} is {context}: "
            "lower data.max_prompt_tokens, or use a model or an engine with a longer context"
        )


def sampling_of(rollout: RolloutRecipe, *, greedy: bool = False) -> Sampling:
    """Return the sampling settings that the recipe's ``rollout`` section writes down."""
    from assay.rollout.sampling import Sampling

    return Sampling(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        max_tokens=rollout.max_tokens,
        greedy=greedy,
    )
