"""Attention of packed trees without masks: what is not attended to is not computed either.

A micro-batch's tokens are its *spans*: each tree's prompt, then its responses. A token attends to its own span up to
itself and, in a response, to the whole of its prompt. With P and T the lengths of a prompt and of each of n responses,
that is P^2 / 2 + n (T^2 / 2 + T P) pairs, where a masked row computes (P + n T)^2: with long answers n times as many.

Where the prompts of all trees begin alike (a system message, examples), that *stem* is a span of its own, forwarded
once: the rest of each prompt attends to it as a response does to its prompt, and a response to both.

Spans of similar length go through one call of torch's kernel, and so do trees of similar shape for what their
responses see of the prompts. A response's two results are those of one softmax over both sets of keys, with z their
logsumexps::

    z = log(exp z_1 + exp z_2)        o = exp(z_1 - z) o_1 + exp(z_2 - z) o_2

and since the kernel's backward pass needs only o and z of the whole, it is called for each part with those. It is
called in float32: on CPUs its backward pass takes several times as long in bfloat16 where spans are short, and no less
where they are long. What is kept between the passes stays as narrow as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pad_sequence

from assay.objective.layout import wide
from assay.policy.packing import MicroBatch, Tree, assemble
from assay.rollout.shared import KERNEL
from assay.rollout.stem import STEM

BACKWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
"""The backward pass of `KERNEL`; ``None`` where this torch has none."""


@dataclass(frozen=True)
class Padded:
    """B runs of at most L tokens each; what is left over repeats the first token."""

    index: Tensor
    """(B, L) long."""
    used: Tensor
    """(B, L) bool."""

    @classmethod
    def of(cls, runs: Sequence[Tensor]) -> Padded:
        """From the runs (L_b,)."""
        index = pad_sequence(list(runs), batch_first=True, padding_value=-1)
        return cls(index.clamp(min=0), index >= 0)

    @cached_property
    def held(self) -> Tensor | None:
        """(n,) long: the places of all runs that hold a token; ``None`` where all do."""
        return None if bool(self.used.all()) else self.used.flatten().nonzero().squeeze(1)

    def take(self, flat: Tensor) -> Tensor:
        """(N, H, ...) -> (B, H, L, ...), in float32 or wider."""
        return wide(flat.index_select(0, self.index.flatten())).unflatten(0, self.index.shape).transpose(1, 2)

    def take_gradient(self, flat: Tensor) -> Tensor:
        """The same with 0 where there is no token."""
        taken = self.take(flat)
        return taken if self.held is None else taken * self.used[:, None, :, None]

    def give(self, padded: Tensor) -> Tensor:
        """(B, H, L, ...) -> (n, H, ...), the tokens' in the order of the runs."""
        flat = padded.transpose(1, 2).flatten(0, 1)
        return flat if self.held is None else flat.index_select(0, self.held)

    def to(self, device: torch.device) -> Padded:
        """The same on another device."""
        return Padded(self.index.to(device), self.used.to(device))


@dataclass(frozen=True)
class Call:
    """One call of the kernel: queries with keys (and values), of the same runs (causal) or each run with another."""

    queries: Padded
    keys: Padded
    causal: bool

    def mask(self, dtype: torch.dtype) -> Tensor | None:
        """(B, 1, 1, K) additive, where keys are padded and causality does not hide them."""
        if self.causal or self.keys.held is None:
            return None
        mask = torch.zeros(self.keys.used.shape, dtype=dtype, device=self.keys.used.device)
        return mask.masked_fill_(~self.keys.used, torch.finfo(dtype).min)[:, None, None]

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Results (n, H, D) and logsumexps (n, H) of the n tokens that ask, in the order of the runs."""
        parts = (self.queries.take(query), self.keys.take(key), self.keys.take(value))
        mixed, normaliser = KERNEL(*parts, 0.0, self.causal, attn_mask=self.mask(parts[0].dtype), scale=scale)
        return self.queries.give(mixed), self.queries.give(normaliser)

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, normaliser: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the queries that ask and of the keys and values that answer, in the order of the runs."""
        parts = (self.queries.take(query), self.keys.take(key), self.keys.take(value))
        whole = (self.queries.take(mixed), self.queries.take(normaliser).contiguous())
        asked = self.queries.take_gradient(grad)
        found = BACKWARD(asked, *parts, *whole, 0.0, self.causal, attn_mask=self.mask(asked.dtype), scale=scale)
        asking, answering, answered = found
        return self.queries.give(asking), self.keys.give(answering), self.keys.give(answered)


Name = tuple[int, int, int]
"""A span: its row, its tree there, its response or -1 for the prompt."""
STEMS: Name = (-1, -1, -1)
"""The stem's."""


def laid_out(micro: MicroBatch) -> tuple[Tensor, dict[Name, Tensor]]:
    """The N tokens' indices into the flattened rows, and where among the N each span lies, one after the other.

    First the stem, of stems that of the first, then the rest of all prompts, then all responses, in order of trees.
    """
    tree, branch, positions = (part.flatten().cpu() for part in (micro.tree, micro.branch, micro.positions))
    rows = torch.arange(len(micro.tree)).repeat_interleave(micro.tree.shape[1])
    held = ((tree >= 0) & ~((branch < 0) & (positions < micro.stem))).nonzero().squeeze(1)
    order = torch.cat([torch.arange(micro.stem), held[branch[held] < 0], held[branch[held] >= 0]])
    name = torch.stack([rows, tree, branch], 1)[order]
    name[: micro.stem] = -1
    names, lengths = name.unique_consecutive(dim=0, return_counts=True)
    places = torch.arange(len(order)).split(lengths.tolist())
    return order, dict(zip(map(tuple, names.tolist()), places, strict=True))


@dataclass(frozen=True)
class Forest:
    """The trees of a micro-batch. Its N tokens stand in order: the stem, the rest of all prompts, all responses."""

    order: Tensor
    """(N,) long: each token's index into the micro-batch's flattened rows; of stems that of the first."""
    alone: int
    """How many, the first ones, attend to their own span only: the stem, or where there is none the prompts."""
    own: tuple[Call, ...]
    """Spans with themselves; every token asks once and answers once."""
    own_places: Tensor
    """(N,): where each token lies in the results of ``own``, one after the other."""
    across: tuple[Call, ...]
    """Responses with their prompts, prompts with their stem; every token but those ``alone`` asks once."""
    asks: Tensor
    """(N - alone,): where each token that asks lies in the results of ``across``."""
    answers: Tensor
    """(K,): which token each of the keys of ``across`` is, one after the other."""

    @classmethod
    def of(cls, micro: MicroBatch) -> Forest:
        """Read the trees off a micro-batch's arrays, on their device."""
        device, stem = micro.tree.device, micro.stem
        order, spans = laid_out(micro)
        beginning = spans.pop(STEMS, torch.arange(0))
        pairs = [
            (torch.cat([beginning, spans[(*key, -1)]]), torch.cat([span for _, span in group]))
            for key, group in groupby(((n, s) for n, s in spans.items() if n[2] >= 0), key=lambda pair: pair[0][:2])
        ]
        alone = sum(len(span) for key, span in spans.items() if key[2] < 0)
        if stem:
            pairs.append((beginning, torch.arange(stem, stem + alone)))
            spans[STEMS], alone = beginning, stem
        own = [Call(p, p, True) for p in map(Padded.of, _alike(list(spans.values()), lambda s: (_size(s),)))]
        across = [
            Call(Padded.of([asking for _, asking in some]), Padded.of([asked for asked, _ in some]), False)
            for some in _alike(pairs, lambda pair: (_size(pair[0]), _size(pair[1])))
        ]
        return cls(
            order=order.to(device),
            alone=alone,
            own=tuple(_moved(own, device)),
            own_places=_inverse([call.queries for call in own]).to(device),
            across=tuple(_moved(across, device)),
            asks=_inverse([call.queries for call in across], alone).to(device),
            answers=torch.cat([call.keys.index[call.keys.used] for call in across]).to(device),
        )

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **settings: Any
    ) -> tuple[Tensor, None]:
        """Attend with queries (1, H, N, D) to keys and values (1, KV, N, D); returns (1, N, H, D). No mask is read."""
        mixed: Any = _Attention.apply(*by_token(query, key, value), self, scale_of(query, settings))
        return mixed[None], None


def by_token(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (1, H, N, D), keys and values (1, KV, N, D) as (N, H, D) and (N, KV, D), in the precision of values."""
    query, key, value = (part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value))
    return query, key, value


def scale_of(query: Tensor, settings: Mapping[str, Any]) -> float:
    """What scores are multiplied by: the module's ``scaling``, absent 1 / sqrt(D)."""
    scaling = settings.get("scaling")
    return query.shape[-1] ** -0.5 if scaling is None else float(scaling)


class _Attention(torch.autograd.Function):
    """Queries (N, H, D), keys and values (N, KV, D) of a forest -> (N, H, D)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, forest: Forest, scale: float) -> Tensor:
        mixed, normaliser = _joined([call.forward(query, key, value, scale) for call in forest.own], forest.own_places)
        across, other = _joined([call.forward(query, key, value, scale) for call in forest.across], forest.asks)
        mine, last = normaliser[forest.alone :], mixed[forest.alone :]
        both = torch.logaddexp(mine, other)
        last.mul_((mine - both).exp_()[..., None]).add_(across * (other - both).exp_()[..., None])
        mine.copy_(both)
        mixed = mixed.to(query.dtype)
        ctx.save_for_backward(query, key, value, mixed, normaliser)
        ctx.forest, ctx.scale = forest, scale
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        forest, scale = ctx.forest, ctx.scale
        given = (gradients[0], *ctx.saved_tensors, scale)
        asked, keys, values = _joined([call.backward(*given) for call in forest.own], forest.own_places)
        far = [call.backward(*given) for call in forest.across]
        asked[forest.alone :] += torch.cat([q for q, _, _ in far]).index_select(0, forest.asks)
        keys.index_add_(0, forest.answers, torch.cat([k for _, k, _ in far]))
        values.index_add_(0, forest.answers, torch.cat([v for _, _, v in far]))
        return asked, keys, values, None, None


def _joined(parts: Sequence[tuple[Tensor, ...]], places: Tensor) -> tuple[Tensor, ...]:
    """The calls' results one after the other, put in the order of the tokens."""
    return tuple(torch.cat(some).index_select(0, places) for some in zip(*parts, strict=True))


def _size(run: Tensor) -> int:
    """The class of a length: lengths of one class differ by less than a half.

    >>> [_size(torch.arange(n)) for n in (1, 2, 3, 4, 5, 6, 8, 12)]
    [3, 4, 5, 6, 6, 7, 8, 9]
    """
    n = len(run)
    return 2 * n.bit_length() + (n >= 3 << n.bit_length() >> 2)


def _alike(items: list[Any], key: Callable[[Any], tuple[int, ...]]) -> list[list[Any]]:
    """The items in lists of one class each."""
    return [list(some) for _, some in groupby(sorted(items, key=key), key=key)]


def _moved(calls: Sequence[Call], device: torch.device) -> list[Call]:
    return [Call(call.queries.to(device), call.keys.to(device), call.causal) for call in calls]


def _inverse(runs: Sequence[Padded], first: int = 0) -> Tensor:
    """Where each of the tokens from ``first`` on stands, when the runs' tokens are laid one after the other."""
    return torch.cat([run.index[run.used] for run in runs]).sub(first).argsort()


@cache
def usable() -> bool:
    """Has this torch the kernel, with query heads that share keys, and is its backward pass right on a small forest?"""
    if KERNEL is None or BACKWARD is None:
        return False
    return all(_right(start) for start in (0, STEM))


def _right(start: int) -> bool:
    """Are result and gradients those of plain products, where prompts share ``start`` tokens?"""
    prompts = [torch.cat([torch.arange(start), torch.arange(50 * n, 51 * n)]) for n in (2, 3)]
    answers = (torch.arange(3), torch.arange(2))
    micro = assemble([[Tree(0, prompt, answers, (torch.arange(3), torch.arange(3, 5)))] for prompt in prompts])
    forest = Forest.of(micro)
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, len(forest.order), 16), (1, 2, len(forest.order), 16), (1, 2, len(forest.order), 16))
    parts = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    weights = torch.randn(1, len(forest.order), 4, 16, generator=generator)
    seen = micro.related() & (micro.positions[:, None] <= micro.positions[:, :, None])
    whole = torch.block_diag(*seen.float())[forest.order][:, forest.order] > 0
    whole[:, :start] = torch.arange(len(whole))[:, None] >= torch.arange(start)  # all that follows sees the stem
    query, key, value = parts[0], parts[1].repeat_interleave(2, 1), parts[2].repeat_interleave(2, 1)
    shares = (query @ key.transpose(2, 3) / 4).masked_fill(~whole, -torch.inf).softmax(-1)
    plain = (shares @ value).transpose(1, 2)
    try:
        ours, _ = forest.attend(nn.Identity(), parts[0], parts[1], parts[2], None)
        mine = torch.autograd.grad((ours * weights).sum(), parts)
    except RuntimeError:
        return False
    theirs = torch.autograd.grad((plain * weights).sum(), parts)
    pairs = [(ours, plain), *zip(mine, theirs, strict=True)]
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)
