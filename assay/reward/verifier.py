"""What a verifier gets (:class:`Case`), what it gives (:class:`Judgement`), and where it is found by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pydantic import ValidationError

from assay.errors import UserError, nearest
from assay.recipe.schema import Section
from assay.records import REWARDED, Finish, Message, Outcome
from assay.registry import Registry

Options = TypeVar("Options", bound=Section)
Build = TypeVar("Build", bound="Callable[..., Verifier | AsyncVerifier]")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One completion to be judged: plain data that can be sent to a worker process."""

    completion: str
    """The answer as text, without the end-of-sequence token."""
    gold: Any = None
    """The right answer: the column that ``reward.gold`` names; ``None`` when the row has none."""
    prompt: str = ""
    """What the model was shown, after the chat template."""
    messages: tuple[Message, ...] = ()
    """The conversation before the answer."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The data row's other columns."""
    tokens: int = 0
    """Length of the completion in tokens."""
    finish: Finish = "stop"
    """Why generation ended."""
    max_tokens: int = 0
    """The longest completion allowed, in tokens."""
    token_ids: tuple[int, ...] = ()
    """The completion's tokens; filled only for functions that ask for ``completion_ids``."""


@dataclass(frozen=True)
class Judgement:
    """What one verifier found of one case; ``score`` is ``None`` exactly when ``outcome`` carries none."""

    score: float | None
    outcome: Outcome = "scored"
    answer: str | None = None
    """What was taken for the answer, in a canonical spelling (majority votes compare it)."""
    message: str = ""
    """Why, in words."""

    def __post_init__(self) -> None:
        if (self.score is None) != (self.outcome not in REWARDED):
            raise ValueError(f"outcome {self.outcome!r} with score {self.score!r}")
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"a score must be finite, not {self.score!r}")


def no_answer(message: str) -> Judgement:
    """There is nothing to judge: score 0, outcome ``no_answer``."""
    return Judgement(0.0, "no_answer", None, message)


def verifier_error(message: str) -> Judgement:
    """The verifier or its input is at fault: no score, never a 0."""
    return Judgement(None, "verifier_error", None, message)


class Verifier(Protocol):
    """Judges one case. Deterministic, without side effects; whatever it raises becomes a ``verifier_error``.

    A verifier may also have ``canary(gold) -> str``: the text of a completion that is surely right. It is
    run when a case timed out, to tell a broken verifier from a completion built to hang it. One that gives
    scores below 0 has ``lowest``: the least of them.
    """

    def __call__(self, case: Case) -> Judgement:
        """Judge one completion."""
        ...


class AsyncVerifier(Protocol):
    """Judges by asking a service: it waits and does not compute, so it runs in the trainer's process, many at once.

    Called in one event loop of a thread of its own. It bounds its own time; what it cannot get is ``unavailable``.
    Called plainly with one case (by tools, or in a worker) it asks, closes, and returns.
    """

    @property
    def per_group(self) -> bool:
        """Does it judge all rollouts of a prompt at once?"""
        ...

    async def judge(self, cases: Sequence[Case]) -> list[Judgement]:
        """Judge cases that belong together, in the order given."""
        ...

    async def close(self) -> None:
        """Close its connections; it may be used again."""
        ...

    def __call__(self, case: Case) -> Judgement:
        """Judge one completion and close."""
        ...


@dataclass(frozen=True)
class Factory(Generic[Options]):
    """Makes a verifier from the ``options`` of its reward part."""

    name: str
    options_type: type[Options]
    build: Callable[[Options], Any]
    """A :class:`Verifier`; an :class:`AsyncVerifier` where ``remote``."""
    remote: bool = False
    """Does it ask a service? Then it is not sent to a worker process."""

    def __call__(self, options: Mapping[str, Any]) -> Any:
        """Check the options and build; UserError for options that are unknown or of a wrong kind."""
        return self.build(read_options(self.options_type, options, self.name))


verifiers: Registry[Factory[Any]] = Registry("verifier", "assay.reward.verifiers")
"""Built-in verifiers by name."""


def register(name: str, options_type: type[Section], *, remote: bool = False) -> Callable[[Build], Build]:
    """Return a decorator that files a verifier (a class or function of its options) under ``name``.

    ``remote``: it is an :class:`AsyncVerifier`.
    """

    def file(build: Build) -> Build:
        verifiers.register(name)(Factory(name, options_type, build, remote))
        return build

    return file


def read_options(options_type: type[Options], options: Mapping[str, Any], name: str) -> Options:
    """Validate the options of the verifier ``name``; a :class:`UserError` names the option and the mend."""
    known = options_type.model_fields
    unknown = [key for key in options if key not in known]
    if unknown:
        raise UserError(
            f"verifier {name!r} has no option {unknown[0]!r}{nearest(unknown[0], known)}; "
            f"its options: {', '.join(known) or 'none'}"
        )
    try:
        return options_type.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        what = first["msg"].removeprefix("Value error, ")
        given = "" if first["type"] == "missing" else f", not {first['input']!r}"
        raise UserError(f"verifier {name!r}, option {where!r}: {what}{given}") from None


def describe(name: str) -> str:
    """One line per option of a built-in verifier: name, default, meaning; UserError if there is none."""
    fields = verifiers[name].options_type.model_fields
    return "\n".join(
        f"{key}: {'required' if info.is_required() else repr(info.default)} - {info.description or ''}"
        for key, info in fields.items()
    )


@dataclass(frozen=True)
class Part:
    """One term of the reward as a worker loads it: plain data."""

    name: str
    """Its name in metrics and messages."""
    verifier: str
    """Built-in name, or ``/absolute/path.py:function``."""
    options: Mapping[str, Any]
    """Settings of the verifier, or further arguments of the function."""
    source: str | None = None
    """Source code of the function's file, read once: an edit during a run must not change its reward."""


@dataclass(frozen=True)
class LoadedPart:
    """A part ready to judge, and what it wants to see."""

    judge: Callable[[Sequence[Case]], list[Judgement]]
    canary: Callable[[Any], str] = str
    """Gold answer -> the text of a completion that is surely right."""
    lowest: float = 0.0
    """The least score that it gives, as far as it is known before it is used."""
    per_group: bool = False
    """Does it judge all rollouts of a prompt at once?"""
    wants_ids: bool = False
    """Does it read ``Case.token_ids``?"""
