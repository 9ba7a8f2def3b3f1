"""Log-probs of the scored tokens of a micro-batch: logits exist only for them, and only a chunk at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from assay.errors import UserError
from assay.objective.layout import wide
from assay.policy.head import Head
from assay.policy.packing import MicroBatch, Tree, assemble
from assay.rollout.masks import LayerMasks
from assay.rollout.weights import causal_lm_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Scorer:
    """Reads log-probs off a causal language model.

    The trunk runs in ``compute`` (autocast where the weights are wider); the output head, the softmax and everything
    after them run in float32, or in float64 where the weights are.
    """

    trunk: Callable[..., Any]
    """The model without its output head; (R, L) ids to (R, L, H) hidden states."""
    head: Head
    """Hidden states to log-probs and entropies."""
    masks: LayerMasks
    """What the layers attend to."""
    compute: torch.dtype
    """Precision of the trunk's products."""
    autocast: bool
    """Are the weights wider than that?"""
    device: torch.device

    def logprobs(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Natural-log probabilities and entropies of the scored tokens, both (n,).

        log p = (logits / temperature)[target] - logsumexp(logits / temperature); the entropy is of the same softmax.
        """
        micro = micro.to(self.device)
        with torch.autocast(self.device.type, dtype=self.compute, enabled=self.autocast):
            hidden = self.trunk(
                input_ids=micro.input_ids,
                attention_mask=self.masks.build(micro.positions, micro.positions, self.compute, micro.related()),
                position_ids=micro.positions.clamp(min=0),
                use_cache=False,
            ).last_hidden_state
        return self.head(hidden.flatten(0, 1)[micro.predicts], micro.targets)

    @torch.no_grad()
    def logprobs_of_all(self, micros: Sequence[MicroBatch], n_tokens: int) -> Tensor:
        """Log-probs of the micro-batches' tokens as a flat array (n_tokens,) on the CPU; NaN at all others."""
        parts = [self.logprobs(micro)[0].cpu() for micro in micros]
        found = torch.full((n_tokens,), math.nan, dtype=parts[0].dtype if parts else torch.float32)
        for micro, part in zip(micros, parts, strict=True):
            found[micro.tokens] = part
        return found


def make_scorer(
    model: Any,
    *,
    temperature: float,
    chunk: int,
    compute_dtype: str,
    device: torch.device,
    entropy_gradient: bool = False,
) -> Scorer:
    """Take a Hugging Face causal LM (or its peft wrapper) apart into trunk and head, and check that it was right.

    Raises UserError for an architecture whose trunk and head do not reproduce its own logits.
    """
    inner = causal_lm_of(model)
    trunk: Any = inner.base_model
    masters = next(inner.parameters()).dtype
    autocast = masters == torch.float32 and DTYPES[compute_dtype] != masters
    scorer = Scorer(
        trunk=trunk,
        head=Head(inner, temperature, chunk, entropy_gradient),
        masks=LayerMasks.of(inner.config.get_text_config()),
        compute=DTYPES[compute_dtype] if autocast else masters,
        autocast=autocast,
        device=device,
    )
    _check(inner, replace(scorer, compute=masters, autocast=False))
    return scorer


@torch.no_grad()
def _check(model: Any, scorer: Scorer) -> None:
    """Compare trunk + head under our masks with the model's own logits on two short sequences that share a prompt."""
    config = model.config.get_text_config()
    ids = (torch.arange(7) * 7 + 3) % min(config.vocab_size, 1000)
    prompt, responses = ids[:3], (ids[3:5], ids[5:7])
    tree = Tree(0, prompt, responses, (torch.arange(2), torch.arange(2, 4)))
    try:
        ours, _ = scorer.logprobs(assemble([[tree]]))
        rows = [torch.cat([prompt, response])[None].to(scorer.device) for response in responses]
        theirs = [wide(model(input_ids=row, use_cache=False).logits[0, 2:4]) for row in rows]
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"model: {type(model).__name__} cannot be trained with shared prompts ({type(error).__name__}: {reason})"
        ) from error
    logs = torch.log_softmax(torch.cat(theirs) / scorer.head.temperature, -1)
    wanted = logs.gather(1, torch.cat(responses)[:, None].to(scorer.device)).squeeze(1)
    if wanted.isnan().any():
        raise UserError("model: its log-probs are NaN: the weights are damaged, or too wide for their precision")
    gap = (ours - wanted).abs().max().item()
    if not gap <= (1e-3 if scorer.compute.itemsize >= 4 else 0.5):
        raise UserError(
            f"model: log-probs of {type(model).__name__} under packed attention differ from its own by {gap:.3g}; "
            f"its architecture ({config.model_type}) is not supported for training"
        )
