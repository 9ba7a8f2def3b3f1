"""Log-probs of the scored tokens of a micro-batch: logits exist only for them, and only a chunk at a time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from assay.errors import UserError
from assay.objective.layout import wide
from assay.policy.compiled import CompiledForest, compilable, fuse_attention
from assay.policy.forest import Forest, usable
from assay.policy.head import Head
from assay.policy.narrow import NarrowWeights
from assay.policy.packing import MicroBatch, Tree, assemble
from assay.policy.ragged import NAME, Places, Rows
from assay.policy.sublayers import fuse_sublayers, restore_sublayers
from assay.rollout.masks import LayerMasks
from assay.rollout.stem import STEM
from assay.rollout.weights import causal_lm_of

Ragged = Literal["compiled", "trees", "rows", "no"]
"""Attention of trees by compiled loops or by torch's kernel, of padded rows, or a trunk that forwards padding."""
LOG = logging.getLogger("assay")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Scorer:
    """Reads log-probs off a causal language model.

    Products are in ``compute``, those of the output head too (:mod:`assay.policy.head` says how its logits keep their
    precision); the softmax and everything after it are in float32, or in float64 where the weights are.
    """

    trunk: Callable[..., Any]
    """The model without its output head; (R, L) ids to (R, L, H) hidden states."""
    head: Head
    """Hidden states to log-probs and entropies."""
    masks: LayerMasks
    """What the layers attend to."""
    autocast: bool
    """Are the weights wider than `compute`?"""
    device: torch.device
    ragged: Ragged = "no"
    """Does the trunk take the tokens alone, and what does its attention take? (:mod:`assay.policy.ragged`)"""

    @property
    def weights(self) -> NarrowWeights:
        """The weights as the products take them, the trunk's and the head's."""
        return self.head.weights

    @property
    def compute(self) -> torch.dtype:
        """Precision of the products."""
        return self.weights.dtype

    def logprobs(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Natural-log probabilities and entropies of the scored tokens, both (n,).

        log p = (logits / temperature)[target] - logsumexp(logits / temperature); the entropy is of the same softmax.
        """
        micro = micro.to(self.device)
        return self.head(self._states(micro), micro.targets)

    @torch.no_grad()
    def distributions(self, micro: MicroBatch) -> Tensor:
        """Log-probs of the whole vocabulary where the scored tokens are predicted, (n, V)."""
        return self.head.distributions(self._states(micro.to(self.device)))

    def _states(self, micro: MicroBatch) -> Tensor:
        """Hidden states (n, H) that predict the scored tokens."""
        with torch.autocast(self.device.type, dtype=self.compute, enabled=self.autocast):
            if self.ragged == "no":
                hidden = self._hidden(micro.input_ids, micro.positions.clamp(min=0), self._mask(micro))
                predicts = micro.predicts
            else:
                places, mask = self._places(micro)
                ids, positions = (array.flatten()[places.order][None] for array in (micro.input_ids, micro.positions))
                hidden = self._hidden(ids, positions, mask, places=places)
                rank = torch.empty_like(micro.input_ids.flatten())
                rank[places.order] = torch.arange(len(places.order), device=self.device)
                predicts = rank[micro.predicts]
        return hidden.flatten(0, 1)[predicts]

    def _places(self, micro: MicroBatch) -> tuple[Places, Tensor | dict[str, Tensor]]:
        """Who attends to whom, and the masks that say it where the places do not."""
        if self._in_trees(micro):
            forest = CompiledForest if self.ragged == "compiled" else Forest
            return forest.of(micro), self.masks.blank(self.compute, self.device)
        return Rows(micro.places(), *micro.input_ids.shape), self._mask(micro)

    def _mask(self, micro: MicroBatch) -> Tensor | dict[str, Tensor]:
        return self.masks.build(micro.positions, micro.positions, self.compute, micro.related())

    def n_forwarded(self, micro: MicroBatch) -> int:
        """Tokens that pass the trunk: padding too where it does, and repeated beginnings where those do."""
        if self.ragged == "no":
            return micro.n_padded
        return micro.n_tokens - (micro.repeated if self._in_trees(micro) else 0)

    def _in_trees(self, micro: MicroBatch) -> bool:
        return self.ragged in ("compiled", "trees") and self.masks.sees_all(int(micro.positions.max()) + 1)

    def _hidden(self, ids: Tensor, positions: Tensor, mask: Tensor | dict[str, Tensor], **more: Any) -> Tensor:
        output = self.trunk(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, **more)
        return output.last_hidden_state

    @torch.no_grad()
    def logprobs_of_all(self, micros: Sequence[MicroBatch], n_tokens: int) -> Tensor:
        """Log-probs of the micro-batches' tokens as a flat array (n_tokens,) on the CPU; NaN at all others."""
        with self.weights.kept():
            return spread(micros, [self.logprobs(micro)[0].cpu() for micro in micros], n_tokens)


def spread(micros: Sequence[MicroBatch], parts: Sequence[Tensor], n_tokens: int) -> Tensor:
    """The micro-batches' numbers at their tokens' places in a flat array (n_tokens,) on the CPU; NaN elsewhere."""
    found = torch.full((n_tokens,), math.nan, dtype=parts[0].dtype if parts else torch.float32)
    for micro, part in zip(micros, parts, strict=True):
        found[micro.tokens] = part.cpu()
    return found


def make_scorer(
    model: Any,
    *,
    temperature: float,
    chunk: int,
    compute_dtype: str,
    device: torch.device,
    entropy_gradient: bool = False,
    kernels: bool = True,
) -> Scorer:
    """Take a Hugging Face causal LM (or its peft wrapper) apart into trunk and head, and check that it was right.

    The trunk is ragged where the model's attention can be (it goes through SDPA and passes on what it is given), in
    trees where that can be compiled (``kernels``) or torch has the kernel for it, else it forwards padded rows. Its
    norms, linear maps and feed-forward parts are fused (:mod:`assay.policy.sublayers`). Where what is compiled gives
    other log-probs in the precision of the products, a warning says so and torch's operations do it all. Raises
    UserError for an architecture whose trunk and head do not reproduce its own logits.
    """
    inner = causal_lm_of(model)
    trunk: Any = inner.base_model
    masters = next(inner.parameters()).dtype
    autocast = masters == torch.float32 and DTYPES[compute_dtype] != masters
    exact, weights = NarrowWeights(masters), NarrowWeights(DTYPES[compute_dtype] if autocast else masters)
    plain = Scorer(
        trunk=trunk,
        head=Head(inner, temperature, chunk, exact, entropy_gradient),
        masks=LayerMasks.of(inner.config.get_text_config()),
        autocast=False,
        device=device,
    )
    restore_sublayers(trunk)  # an earlier scorer's
    ragged = _raggedness(inner, plain, kernels and compilable(weights.dtype, inner.config.get_text_config()))
    fuse_sublayers(trunk, weights, kernels)
    if ragged == "compiled":
        fuse_attention(trunk)
    scorer = replace(plain, head=replace(plain.head, weights=weights), autocast=autocast, ragged=ragged)
    wrong = _wrong(inner, scorer) if ragged == "compiled" else None
    if wrong is None:
        return scorer
    LOG.warning("the update does not use compiled kernels, which would be faster: %s", wrong)
    return make_scorer(
        model,
        temperature=temperature,
        chunk=chunk,
        compute_dtype=compute_dtype,
        device=device,
        entropy_gradient=entropy_gradient,
        kernels=False,
    )


def _raggedness(model: Any, plain: Scorer, kernels: bool) -> Ragged:
    """How the trunk's attention can be, as seen on a probe. Raises UserError where not even padded rows are right."""
    if model.config._attn_implementation in ("sdpa", NAME):
        model.set_attn_implementation(NAME)
        cpu = plain.device.type == "cpu"
        ways: tuple[tuple[Ragged, bool], ...]
        ways = ("compiled", cpu and kernels), ("trees", cpu and usable()), ("rows", True)
        for way, possible in ways:
            if possible and _wrong(model, replace(plain, ragged=way)) is None:
                return way
        model.set_attn_implementation("sdpa")
    wrong = _wrong(model, plain)
    if wrong is not None:
        raise UserError(f"model: {wrong}")
    return "no"


@torch.no_grad()
def _wrong(model: Any, scorer: Scorer) -> str | None:
    """How trunk + head under our masks differ from the model's own logits; ``None`` where they do not."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
    return _differs(model, scorer, 0) or (_differs(model, scorer, STEM) if context >= STEM + 5 else None)


def _differs(model: Any, scorer: Scorer, start: int) -> str | None:
    """The same of three short sequences, two of which share a prompt, in two rows; prompts share ``start`` tokens."""
    config = model.config.get_text_config()
    ids = (torch.arange(11) * 7 + 3) % min(config.vocab_size, 1000)
    beginning = (torch.arange(start) * 5 + 1) % min(config.vocab_size, 1000)
    first, second = (torch.cat([beginning, rest]) for rest in (ids[:3], ids[7:9]))
    answers = ids[3:5], ids[5:7], ids[9:11]
    trees = (
        Tree(0, first, answers[:2], (torch.arange(2), torch.arange(2, 4))),
        Tree(1, second, answers[2:], (torch.arange(4, 6),)),
    )
    sequences = [torch.cat(pair)[None] for pair in ((first, answers[0]), (first, answers[1]), (second, answers[2]))]
    name = type(model).__name__
    try:
        ours, _ = scorer.logprobs(assemble([[tree] for tree in trees]))
        theirs = [wide(model(input_ids=s.to(scorer.device), use_cache=False).logits[0, -3:-1]) for s in sequences]
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError, IndexError) as error:
        reason = str(error).strip().split("\n")[0]
        return f"{name} cannot be trained with shared prompts ({type(error).__name__}: {reason})"
    logs = torch.log_softmax(torch.cat(theirs) / scorer.head.temperature, -1)
    wanted = logs.gather(1, torch.cat(answers)[:, None].to(scorer.device)).squeeze(1)
    if wanted.isnan().any():
        return "its log-probs are NaN: the weights are damaged, or too wide for their precision"
    gap = (ours - wanted).abs().max().item()
    if not gap <= (1e-3 if scorer.compute.itemsize >= 4 else 0.5):
        return (
            f"log-probs of {name} under packed attention differ from its own by {gap:.3g}; "
            f"its architecture ({config.model_type}) is not supported for training"
        )
    return None
