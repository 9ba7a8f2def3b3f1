"""Log-probs of the scored tokens of a micro-batch: logits exist only for them, and only a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from assay.errors import UserError
from assay.policy.packing import MicroBatch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Scorer:
    """Reads log-probs off a causal language model.

    The trunk runs in ``compute_dtype`` (autocast where the weights are wider); the output head, the softmax and
    everything after them run in float32.
    """

    trunk: nn.Module
    """The model without its output head; (R, L) ids to (R, L, H) hidden states."""
    head: Callable[[Tensor], Tensor]
    """Hidden states (n, H) to float32 logits (n, V)."""
    windows: dict[str, int | None]
    """Per layer type, how far back it sees; ``None``: everything."""
    temperature: float
    chunk: int
    """Scored tokens whose logits exist at one time."""
    autocast: torch.dtype | None
    device: torch.device
    entropy_gradient: bool = False
    """Do the entropies carry a gradient? Only an entropy bonus wants it."""

    def logprobs(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Natural-log probabilities and entropies of the scored tokens, both (n,) float32.

        log p = (logits / temperature)[target] - logsumexp(logits / temperature); the entropy is of the same softmax.
        In the backward pass each chunk's logits are computed again, not kept.
        """
        micro = micro.to(self.device)
        masks = {kind: micro.attention(window) for kind, window in self.windows.items()}
        mask: Any = masks if len(masks) > 1 else next(iter(masks.values()))
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            hidden = self.trunk(
                input_ids=micro.input_ids, attention_mask=mask, position_ids=micro.positions, use_cache=False
            ).last_hidden_state
        scored = hidden.flatten(0, 1)[micro.predicts]
        parts = [
            self._chunk(scored[i : i + self.chunk], micro.targets[i : i + self.chunk])
            for i in range(0, len(scored), self.chunk)
        ]
        return torch.cat([p for p, _ in parts]), torch.cat([e for _, e in parts])

    def _chunk(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if not torch.is_grad_enabled():
            return self._score(hidden, targets)
        result = checkpoint(self._score, hidden, targets, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(result, tuple)
        return result

    def _score(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logs = torch.log_softmax(self.head(hidden) / self.temperature, dim=-1)
        with torch.set_grad_enabled(self.entropy_gradient and torch.is_grad_enabled()):
            entropy = -(logs.exp() * logs).sum(-1)
        return logs.gather(1, targets[:, None]).squeeze(1), entropy


def make_scorer(
    model: nn.Module,
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
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft wraps
    compute = DTYPES[compute_dtype]
    masters = next(inner.parameters()).dtype
    scorer = Scorer(
        trunk=inner.base_model,
        head=_head(inner),
        windows=layer_windows(inner.config),
        temperature=temperature,
        chunk=chunk,
        autocast=compute if compute != masters else None,
        device=device,
        entropy_gradient=entropy_gradient,
    )
    _check(inner, scorer)
    return scorer


def _head(model: Any) -> Callable[[Tensor], Tensor]:
    """The output head in float32, with the logit transformations that some families apply after it."""
    config = model.config.get_text_config()
    softcap = getattr(config, "final_logit_softcapping", None)
    scale = getattr(config, "logit_scale", None) or 1.0
    divisor = getattr(config, "logits_scaling", None) or 1.0

    def head(hidden: Tensor) -> Tensor:
        linear = model.get_output_embeddings()
        if type(linear) is nn.Linear:
            bias = None if linear.bias is None else linear.bias.float()
            logits = nn.functional.linear(hidden.float(), linear.weight.float(), bias)
        else:  # wrapped by an adapter: let it do its own arithmetic
            logits = linear(hidden.to(next(linear.parameters()).dtype)).float()
        logits = logits * (scale / divisor)
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    return head


def layer_windows(config: Any) -> dict[str, int | None]:
    """How far back each attention layer type of a model sees, by the type's name; ``None``: to the start."""
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    kinds = set(getattr(text, "layer_types", None) or ())
    if not kinds:
        uses = window is not None and getattr(text, "use_sliding_window", True)
        return {"full_attention": window if uses else None}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


@torch.no_grad()
def _check(model: Any, scorer: Scorer) -> None:
    """Compare trunk + head under our masks with the model's own logits on two short sequences that share a prompt."""
    config = model.config.get_text_config()
    ids = (torch.arange(9) * 7 + 3) % min(config.vocab_size, 1000)
    branches = (ids[:5], ids[[0, 1, 2, 5, 6]])
    length = 7
    micro = MicroBatch(
        input_ids=ids[:length][None],
        positions=torch.tensor([[0, 1, 2, 3, 4, 3, 4]]),
        tree=torch.zeros(1, length, dtype=torch.long),
        branch=torch.tensor([[-1, -1, -1, 0, 0, 1, 1]]),
        predicts=torch.tensor([2, 3, 2, 5]),
        targets=ids[[3, 4, 5, 6]],
        tokens=torch.arange(4),
    )
    try:
        ours, _ = scorer.logprobs(micro)
        with torch.autocast(scorer.device.type, dtype=scorer.autocast, enabled=scorer.autocast is not None):
            theirs = [model(input_ids=b[None].to(scorer.device), use_cache=False).logits[0].float() for b in branches]
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        raise UserError(
            f"model: {type(model).__name__} cannot be trained with shared prompts ({type(error).__name__}: {error})"
        ) from error
    logs = [torch.log_softmax(x / scorer.temperature, -1) for x in theirs]
    wanted = torch.stack([logs[b][2 + i, branches[b][3 + i]] for b in (0, 1) for i in (0, 1)])
    narrow = torch.bfloat16 in (scorer.autocast, next(model.parameters()).dtype)
    gap = (ours - wanted).abs().max().item()
    if not gap <= (0.5 if narrow else 1e-3):
        raise UserError(
            f"model: log-probs of {type(model).__name__} under packed attention differ from its own by {gap:.3g}; "
            f"its architecture ({config.model_type}) is not supported for training"
        )
