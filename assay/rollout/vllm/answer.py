"""What vLLM is asked for an answer, and what it says of it: the tokens, and by which version each was sampled."""

from __future__ import annotations

from typing import Any

from assay.records import Finish
from assay.rollout.answer import Answer
from assay.rollout.sampling import Sampling
from assay.rollout.seeds import seed_of
from assay.rollout.vllm.port import Ask, Piece

STREAM_EVERY = 8
"""Tokens in a piece: each costs a message, and what is lost with a server is less than one."""


def sampling_fields(sampling: Sampling, room: int, seed: int, stop: frozenset[int]) -> dict[str, Any]:
    """The fields of vLLM's ``SamplingParams`` for at most ``room`` tokens that mean what ``sampling`` means.

    >>> sampling_fields(Sampling(top_p=0.9, greedy=True), 8, 1, frozenset({2}))["temperature"]
    0.0
    """
    drawn = not sampling.greedy
    return {
        "temperature": sampling.temperature if drawn else 0.0,
        "top_p": sampling.top_p if drawn else 1.0,
        "top_k": sampling.top_k if drawn else 0,
        "min_p": sampling.min_p if drawn else 0.0,
        "max_tokens": room,
        "seed": seed,
        "stop_token_ids": sorted(stop),
        "ignore_eos": True,  # the ids above are all the ends there are
        "logprobs": 0,  # that of the sampled token alone
        "detokenize": False,
        "stream_interval": STREAM_EVERY,
    }


def name_of(answer: Answer) -> str:
    """Name of its present ask."""
    return f"{answer.request.id}-{answer.index}-{len(answer.request.begun)}-{answer.attempts}"


def ask_for(answer: Answer, stop: frozenset[int], salt: str) -> Ask:
    """Ask for what is missing."""
    ids = answer.question()
    seed = seed_of(answer.request, answer.index, len(answer.held))
    fields = sampling_fields(answer.request.sampling, answer.left, seed, stop)
    return Ask(name_of(answer), ids, fields, salt)


def take(answer: Answer, piece: Piece, version: int) -> bool:
    """Add a piece, sampled by ``version`` as far as is known; False when a log-prob is no number.

    The last piece tells the versions for certain.
    """
    for token, logprob in zip(piece.tokens, piece.logprobs, strict=True):
        if not answer.add(token, logprob, version):
            return False
    for label, first, end in piece.spans or ():
        if label.isdigit():
            known = range(answer.asked + first, min(answer.asked + end, len(answer.tokens)))
            answer.versions[known.start : known.stop] = [int(label)] * len(known)
    if piece.finish is not None:
        answer.finish = _finish(piece.finish, answer.cancelled)
    return True


def _finish(reason: str, cancelled: bool) -> Finish:
    if reason == "stop" or reason == "length":
        return reason
    return "cancelled" if reason == "abort" and cancelled else "error"
