"""The segments of an answer that was begun by another engine, under another version, or by a thinking budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from assay.records import Segment


def begun_tokens(begun: Sequence[Segment]) -> list[int]:
    """The token ids of all segments."""
    return [token for segment in begun for token in segment.token_ids]


def is_whole(begun: Sequence[Segment], stop: frozenset[int]) -> bool:
    """Is what was begun an answer already, since the policy itself ended it? A forced end is none.

    >>> is_whole([Segment("policy", (5, 2), (-1.0, -1.0), (0, 0))], frozenset({2})), is_whole([], frozenset({2}))
    (True, False)
    """
    return (
        bool(begun)
        and begun[-1].kind == "policy"
        and begun[-1].token_ids[-1:] != ()
        and begun[-1].token_ids[-1] in stop
    )


def decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    """How an answer's tokens become its text: all of them, special ones too, with the spaces that they have."""
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def appended(begun: tuple[Segment, ...], new: Segment | None) -> tuple[Segment, ...]:
    """``begun`` with a policy segment behind it: as part of its last one where that is the policy's too.

    >>> first, new = Segment("policy", (5,), (-1.0,), (0,)), Segment("policy", (6,), (-2.0,), (1,))
    >>> appended((first,), new)[0].versions, len(appended((first, Segment("forced", (9,))), new))
    ((0, 1), 3)
    """
    if new is None or not new.token_ids:
        return begun
    if not begun or begun[-1].kind != "policy":
        return (*begun, new)
    last = begun[-1]
    kept = None
    if last.kept_logprobs is not None or new.kept_logprobs is not None:  # None: nothing was cut, they are the same
        kept = tuple(p for s in (last, new) for p in (s.kept_logprobs or s.sampler_logprobs))
    ids, versions = last.token_ids + new.token_ids, last.versions + new.versions
    return (*begun[:-1], Segment("policy", ids, last.sampler_logprobs + new.sampler_logprobs, versions, kept))
