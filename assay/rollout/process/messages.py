"""What a generation process and its parent say to each other."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

from assay.errors import AssayError, UserError
from assay.records import Rollout
from assay.rollout.engine import EngineFailed, Limits, Request, Stats
from assay.rollout.process.board import Plan
from assay.rollout.weights import causal_lm_of


@dataclass(frozen=True)
class Settings:
    """How a child generates."""

    dtype: str
    """``float32``, ``bfloat16``, ``int8``."""
    max_running: int
    threads: int
    """Of torch's products."""
    deterministic: bool = False
    kv: Literal["recompute", "keep"] = "recompute"
    graphs: bool = True
    compiled: bool = True


@dataclass(frozen=True)
class Setup:
    """What a child is told first."""

    settings: Settings
    plan: Plan
    """Of the board's memory."""
    version: int
    """Of the weights on the board."""
    device: str
    model: bytes
    """A pickled `Blueprint`: read once the child can import what it names."""


@dataclass(frozen=True)
class Blueprint:
    """A causal LM without its tensors."""

    kind: type
    config: Any
    generation_config: Any
    tokenizer: Any

    @staticmethod
    def of(model: Any, tokenizer: Any) -> Blueprint:
        """That of a model, adapters left out. The trainer's own attention stays with the trainer."""
        causal_lm = causal_lm_of(model)
        config = copy.deepcopy(causal_lm.config)
        if config._attn_implementation != "eager":
            config._attn_implementation = "sdpa"
        return Blueprint(type(causal_lm), config, causal_lm.generation_config, tokenizer)


@dataclass(frozen=True)
class Ready:
    """The child has built its engine."""

    path: str
    limits: Limits
    stats: Stats


@dataclass(frozen=True)
class Submit:
    """Take in a request."""

    request: Request


@dataclass(frozen=True)
class Round:
    """Deterministic mode: run what was submitted."""


@dataclass(frozen=True)
class Cancel:
    """End a request's rollouts."""

    request_id: int


@dataclass(frozen=True)
class Order:
    """To be acknowledged by `Done`: read the board as this version, or (``None``) sleep."""

    number: int
    version: int | None


@dataclass(frozen=True)
class Done:
    """An order was carried out."""

    number: int


@dataclass(frozen=True)
class Sampled:
    """One more token of some rollouts."""

    version: int
    rows: list[tuple[int, int, int, float, float | None]]
    """Request id, index, token, log-prob, and that of the distribution as cut, if it was."""
    stats: Stats


@dataclass(frozen=True)
class Finished:
    """A rollout is finished."""

    request_id: int
    rollout: Rollout
    stats: Stats


@dataclass(frozen=True)
class Busy:
    """Nothing to tell, but alive."""


@dataclass(frozen=True)
class Failed:
    """The child cannot go on."""

    message: str
    user_error: bool
    cause: Exception

    @staticmethod
    def of(error: Exception) -> Failed:
        """What to say of an exception, by which a parent can tell whose fault it was."""
        known = isinstance(error, AssayError)
        message = str(error) if known else f"{type(error).__name__}: {error}"
        plain = isinstance(error, (MemoryError, RuntimeError, OSError)) and type(error).__module__ in (
            "builtins",
            "torch",
        )
        return Failed(message, isinstance(error, UserError), error if plain else RuntimeError(message))

    def error(self, who: str) -> AssayError:
        """The exception to raise: no other process would fare better."""
        return UserError(self.message) if self.user_error else EngineFailed(f"{who} failed: {self.message}")
