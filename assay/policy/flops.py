"""How much arithmetic the work needs: pure counting, from a model's shape and from what goes through it.

A product of an (a, b) and a (b, c) matrix is 2abc floating-point operations. Counted are the products with weights and
the two of attention (queries with keys, shares with values). Not counted: look-ups in an embedding, norms, softmaxes,
sampling, the optimizer, padding, and whatever is computed a second time to save memory (checkpointed layers, the head's
logits in the backward pass). So the count is what the work needs, not what an implementation happens to do: the share
of the machine's limit falls when work is wasted.

A backward pass needs a product for the gradient of each matrix's input and another for that of the weight itself: twice
the forward pass. Weights that are not trained (LoRA's base) need the first alone. A sliding window is counted as full
attention, and every layer as passing a gradient on to its input.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from assay.rollout.engine import Stats
from assay.rollout.weights import causal_lm_of

if TYPE_CHECKING:
    from assay.policy.packing import MicroBatch


@dataclass(frozen=True)
class Costs:
    """What a model's products are made of."""

    trunk: int
    """Elements of the weight matrices that each token passes below the head; of experts, those that are chosen."""
    trunk_trained: int
    """Of those, the ones that are trained."""
    head: int
    """Elements of the output head: hidden size times vocabulary."""
    head_trained: int
    """The same where it is trained, else 0."""
    attention: int
    """FLOP of one query with one key, forward, over all layers: 4 x heads x head_dim each."""


@dataclass(frozen=True)
class Work:
    """What goes through a model."""

    tokens: int = 0
    """Through the trunk, padding left out."""
    scored: int = 0
    """Through the head."""
    attended: int = 0
    """Pairs of a token and one that it attends to, itself included."""

    def __add__(self, other: Work) -> Work:
        return Work(self.tokens + other.tokens, self.scored + other.scored, self.attended + other.attended)

    def __mul__(self, times: int) -> Work:
        return Work(self.tokens * times, self.scored * times, self.attended * times)


def costs_of(model: Any) -> Costs:
    """Count a Hugging Face causal LM, or its peft wrapper: adapters are matrices like others.

    Every parameter of two dimensions is a matrix that all tokens pass, except embeddings; one of three is a stack of
    experts, of which a token passes ``num_experts_per_tok``.
    """
    inner = causal_lm_of(model)
    config = inner.config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    active = _active_experts(config)
    trunk, trunk_trained = _elements(inner.base_model, active)
    head, head_trained = _elements(inner.get_output_embeddings(), active)
    return Costs(trunk, trunk_trained, head, head_trained, 4 * heads * width * config.num_hidden_layers)


def _elements(module: nn.Module, active: float) -> tuple[int, int]:
    """Elements of the matrices that a token passes, and of those that are trained."""
    matrices = {
        p: p.numel() if p.dim() == 2 else round(p.numel() * active)
        for part in module.modules()
        if not isinstance(part, nn.Embedding)
        for p in part.parameters(recurse=False)
        if p.dim() >= 2
    }
    return sum(matrices.values()), sum(n for p, n in matrices.items() if p.requires_grad)


def _active_experts(config: Any) -> float:
    """The share of the experts that a token passes; 1 without experts."""
    chosen = getattr(config, "num_experts_per_tok", None)
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((n for name in names if (n := getattr(config, name, None))), None)
    return chosen / experts if chosen and experts else 1.0


def work_of(micros: Iterable[MicroBatch]) -> Work:
    """The work of one pass over packed micro-batches: a shared prompt counts once, and so does a shared beginning.

    A token attends to as many as its position says, and to itself: a response's positions continue its prompt's.
    """
    work = Work()
    for micro in micros:
        attended = int((micro.positions + 1).sum())  # 0 for padding
        again = micro.repeated * (micro.stem + 1) // 2  # C (C + 1) / 2 pairs in each stem
        work += Work(micro.n_tokens - micro.repeated, len(micro.targets), attended - again)
    return work


def forward_flops(costs: Costs, work: Work) -> int:
    """FLOP of one forward pass."""
    return 2 * costs.trunk * work.tokens + 2 * costs.head * work.scored + costs.attention * work.attended


def update_flops(costs: Costs, trained: Work, scored: Work = Work()) -> int:
    """FLOP of an update: ``trained`` goes forward and backward, ``scored`` (anchor, reference) forward alone.

    With every weight trained that is three times the forward pass of ``trained``.
    """
    inputs = forward_flops(costs, trained)
    weights = 2 * costs.trunk_trained * trained.tokens + 2 * costs.head_trained * trained.scored
    shares_and_values = costs.attention * trained.attended  # attention's second half: both of its factors are inputs
    return forward_flops(costs, trained + scored) + inputs + weights + shares_and_values


def decode_flops(costs: Costs, did: Stats) -> int:
    """FLOP of what an engine did: its one-token forwards, with what they attend to, and its prefills.

    Of prefilled prompts the products with weights are counted, the head's at the last token of each; the attention
    among their tokens is left out.
    """
    tokens, scored = did.prefill_tokens + did.decode_rows, did.prefilled + did.decode_rows
    return forward_flops(costs, Work(tokens, scored, did.attended - did.attended_padding))
