"""vLLM's completions endpoint, and others that follow it: ``/v1/completions`` with token ids both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assay.rollout.answer import Reported, of_the_draw, of_the_logits
from assay.rollout.remote.dialect import (
    Ask,
    Malformed,
    Piece,
    number,
)
from assay.rollout.sampling import Sampling

_IMPOSSIBLE = -9000.0
"""vLLM writes -9999 for a log-prob of minus infinity."""
_FINISH: Mapping[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}


@dataclass(frozen=True)
class VllmDialect:
    """A vLLM server of 2025 or later (``return_token_ids``)."""

    model: str
    """The name that it serves the model under."""
    processed: bool = False
    """Was it started with ``--logprobs-mode processed_logprobs``? By default log-probs are of the plain logits."""
    name: str = "vLLM"
    health: str = "/v1/models"
    several: bool = True
    complete: bool = True

    def reported(self, sampling: Sampling) -> Reported:
        """See `Dialect.reported`."""
        return of_the_draw(sampling) if self.processed else of_the_logits(sampling)

    def question(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        """See `Dialect.question`."""
        sampling = ask.sampling
        cuts: dict[str, Any] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
        if not sampling.greedy:
            cuts = {name: getattr(sampling, name) for name in cuts}
        body = {
            "model": self.model,
            "prompt": list(ask.token_ids),
            "n": ask.n,
            "max_tokens": ask.room,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            **cuts,
            "seed": ask.seed,
            "stop_token_ids": sorted(ask.stop),
            "ignore_eos": True,  # the ids above are all the ends there are
            "stream": True,
            "logprobs": 0,  # that of the sampled token alone
            "return_token_ids": True,
            "add_special_tokens": False,
            "skip_special_tokens": False,
        }
        return "/v1/completions", body

    def read(self, event: Mapping[str, Any]) -> Sequence[Piece]:
        """See `Dialect.read`. Raises Malformed for text without token ids or log-probs."""
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise Malformed("an event without choices")
        return [piece for choice in choices for piece in _read(choice)]


def _read(choice: Mapping[str, Any]) -> Sequence[Piece]:
    ids = choice.get("token_ids")
    finish = _FINISH.get(str(choice.get("finish_reason")))
    if not ids and not choice.get("text"):
        return [Piece(int(choice.get("index", 0)), (), (), finish)]
    if not isinstance(ids, list):
        raise Malformed("text without token ids (token_ids)")
    told = (choice.get("logprobs") or {}).get("token_logprobs")
    if not isinstance(told, list) or len(told) != len(ids):
        raise Malformed("token ids without a log-prob for each (logprobs.token_logprobs)")
    logprobs = tuple(p if p > _IMPOSSIBLE else float("nan") for p in map(number, told))
    return [Piece(int(choice.get("index", 0)), tuple(map(int, ids)), logprobs, finish)]
