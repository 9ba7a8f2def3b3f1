"""llama.cpp's server at its own endpoint, ``/completion``: the only one that takes and returns token ids.

What its defaults would do is undone: it cuts with top-k 40, top-p .95 and min-p .05 unless told which samplers to use,
and its log-probs are those of the untempered softmax unless asked for those after sampling. So at temperature 1 no
sampler is named and the log-probs of the logits are taken; elsewhere temperature comes first, cuts behind it as in
`Sampling`, and the probabilities after sampling are taken. The draw itself is always the last step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assay.rollout.answer import Reported, of_the_draw
from assay.rollout.remote.dialect import Ask, Malformed, Piece, number
from assay.rollout.sampling import Sampling

_FINISH: Mapping[str, Literal["stop", "length"]] = {"eos": "stop", "word": "stop", "limit": "length"}


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """The fields of a question that mean what ``sampling`` means.

    >>> sampling_fields(Sampling())["samplers"], sampling_fields(Sampling(temperature=0.7))["samplers"]
    ([], ['temperature'])
    >>> sampling_fields(Sampling(top_k=5, min_p=0.1))["samplers"]
    ['temperature', 'top_k', 'min_p']
    """
    if sampling.greedy:  # a temperature of 0 alone would not be: it is a sampler's doing, and none is used
        return {"samplers": ["top_k"], "top_k": 1, "temperature": 1.0, "post_sampling_probs": False}
    cuts = {"top_k": sampling.top_k > 0, "top_p": sampling.top_p < 1, "min_p": sampling.min_p > 0}
    used = [name for name, on in cuts.items() if on]
    plain = sampling.temperature == 1 and not used
    return {
        "temperature": sampling.temperature,
        "samplers": [] if plain else ["temperature", *used],
        **{name: getattr(sampling, name) for name in used},
        "post_sampling_probs": not plain,
    }


@dataclass(frozen=True)
class LlamaDialect:
    """A llama.cpp server of 2025 or later.

    ``spelled``: does its vocabulary have true spellings? Then a token whose text ends in the midst of a character comes
    in no event of a stream, and without a log-prob: whole replies are asked for, which have at least all ids. (The
    files of :mod:`assay.rollout.llama` have other spellings, and none of this.)
    """

    spelled: bool = False
    name: str = "llama.cpp"
    health: str = "/health"
    several: bool = True

    @property
    def complete(self) -> bool:
        """See `Dialect.complete`."""
        return not self.spelled

    def reported(self, sampling: Sampling) -> Reported:
        """See `Dialect.reported`."""
        return of_the_draw(sampling)

    def question(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        """See `Dialect.question`. The continuations of one question share its prefill (``n_cmpl``)."""
        body = {
            "prompt": list(ask.token_ids),
            "n_cmpl": ask.n,
            "n_predict": ask.room,
            "seed": ask.seed,
            "stream": not self.spelled,
            "n_probs": 1,
            "return_tokens": True,
            "cache_prompt": False,
            **sampling_fields(ask.sampling),
        }
        return "/completion", body

    def read(self, event: Mapping[str, Any]) -> Sequence[Piece]:
        """See `Dialect.read`. Raises Malformed for an event without token ids."""
        tokens = event.get("tokens")
        if not isinstance(tokens, list):
            raise Malformed("an event without token ids (tokens)")
        ids = tuple(map(int, tokens))
        finish = _FINISH.get(str(event.get("stop_type"))) if event.get("stop") else None
        told = event.get("completion_probabilities") or []
        logprobs = aligned(ids, told) if self.spelled else logprobs_of(told)
        return [Piece(int(event.get("index", 0)), ids, logprobs, finish)]


def aligned(ids: Sequence[int], told: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """The log-probs of ``ids`` where some are not told: NaN for those.

    >>> aligned([5, 6, 7], [{"id": 5, "logprob": -0.5}, {"id": 7, "logprob": -1.0}])
    (-0.5, nan, -1.0)
    """
    left, found = list(told), []
    for token in ids:
        known = bool(left) and left[0].get("id") == token
        found.append(_logprob(left.pop(0)) if known else math.nan)
    return tuple(found)


def logprobs_of(told: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """The log-probs of tokens, told as such or, after sampling, as probabilities.

    >>> logprobs_of([{"id": 5, "logprob": -0.5}, {"id": 6, "prob": 1.0}, {"id": 7, "logprob": None}])
    (-0.5, 0.0, nan)
    """
    return tuple(_logprob(one) for one in told)


def _logprob(one: Mapping[str, Any]) -> float:
    if "prob" not in one:
        return number(one.get("logprob"))
    share = number(one["prob"])
    return math.log(share) if share > 0 else math.nan
