"""The output head and the softmax in one: log-probs and entropies of n tokens, logits only a chunk at a time.

Written with its own backward pass, because automatic differentiation would keep several arrays of the vocabulary's
width for each token. Here a chunk's logits are computed, reduced and dropped, and computed once more for their
gradient::

    l = (h W^T + b) m        log p = l_target - logsumexp(l)        H = -sum(p log p)
    dL/dl = g (onehot(target) - p) - e p (log p + H)        for upstream gradients g of log p and e of H

The last chunk's probabilities are kept instead of computed again: their memory was needed anyway. The passes over a
chunk go by blocks of rows that stay in the processor's cache, with one exponential for each logit::

    m = max(l)    e = exp(l - m)    z = sum(e)    logsumexp = m + log z    H = log z - sum(e (l - m)) / z
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from assay.objective.layout import wide

CACHED = 1 << 19
"""Logits of a block on the CPU: 2 MiB in float32."""


@dataclass(frozen=True)
class Head:
    """The output head of a Hugging Face causal LM, with the logit transformations that some families apply after it.

    Everything is computed in float32, or in float64 where the weights are, and at the given temperature.
    """

    model: Any
    temperature: float
    chunk: int
    """Tokens whose logits exist at one time."""
    entropy_gradient: bool = False
    """Do the entropies carry a gradient? Only an entropy bonus wants it."""

    def __call__(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs of ``targets`` (n,) given ``hidden`` (n, H), and entropies of the same softmax, both (n,)."""
        linear, scale, softcap = self._parts()
        if type(linear) is nn.Linear and softcap is None:
            bias = None if linear.bias is None else wide(linear.bias)
            settings = (scale / self.temperature, self.chunk, self.entropy_gradient)
            return _LogProbs.apply(wide(hidden), wide(linear.weight), bias, targets, *settings)

        def score(states: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
            return self._read(self._transformed(states), wanted)

        chunks = zip(hidden.split(self.chunk), targets.split(self.chunk), strict=True)
        parts: list[Any] = [
            checkpoint(score, *chunk, use_reentrant=False, preserve_rng_state=False)
            if torch.is_grad_enabled()
            else score(*chunk)
            for chunk in chunks
        ]
        return torch.cat([p for p, _ in parts]), torch.cat([e for _, e in parts])

    def distributions(self, hidden: Tensor) -> Tensor:
        """Log-probs of the whole vocabulary given ``hidden`` (n, H), all at once: (n, V)."""
        return torch.log_softmax(self._transformed(hidden), dim=-1)

    def _parts(self) -> tuple[Any, float, float | None]:
        """The linear layer, the factor of its logits, and their soft cap."""
        config = self.model.config.get_text_config()
        scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
        return self.model.get_output_embeddings(), scale, getattr(config, "final_logit_softcapping", None)

    def _transformed(self, states: Tensor) -> Tensor:
        """Logits over the temperature, capped where the family caps them."""
        linear, scale, softcap = self._parts()
        logits = wide(linear(states.to(next(linear.parameters()).dtype))) * scale
        capped = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return capped / self.temperature

    def _read(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logs = torch.log_softmax(logits, dim=-1)
        with torch.set_grad_enabled(self.entropy_gradient and torch.is_grad_enabled()):
            entropy = -(logs.exp() * logs).sum(-1)
        return logs.gather(1, targets[:, None]).squeeze(1), entropy


class _LogProbs(torch.autograd.Function):
    """See the module: ``hidden`` (n, H), ``weight`` (V, H), ``bias`` (V,) or None, ``targets`` (n,)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        multiplier: float,
        chunk: int,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        n = len(hidden)
        found, entropies, normalisers = (hidden.new_empty(n) for _ in range(3))
        probabilities = None
        for span in _spans(n, chunk):
            probabilities = None  # let go first: one chunk exists at a time
            probabilities = _logits(hidden[span], weight, bias, multiplier)
            _normalise(probabilities, targets[span], found[span], entropies[span], normalisers[span])
        ctx.save_for_backward(hidden, weight, bias, targets, entropies, normalisers)
        ctx.settings = (multiplier, chunk, entropy_gradient)
        ctx.kept = None if entropy_gradient else probabilities
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return found, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropies, normalisers = ctx.saved_tensors
        multiplier, chunk, entropy_gradient = ctx.settings
        grad_logprob = gradients[0] * multiplier
        grad_entropy = gradients[1] * multiplier if entropy_gradient else None
        grad_hidden = torch.empty_like(hidden)
        grad_weight = None
        grad_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        kept, ctx.kept = ctx.kept, None
        for span in reversed(_spans(len(hidden), chunk)):
            g = grad_logprob[span, None]
            if kept is not None:
                change, kept = kept.mul_(-g), None
            else:
                change = _logits(hidden[span], weight, bias, multiplier)
                pull = None if grad_entropy is None else (grad_entropy[span], entropies[span])
                _differentiate(change, normalisers[span], grad_logprob[span], pull)
            change.scatter_add_(1, targets[span, None], g)
            torch.mm(change, weight, out=grad_hidden[span])
            if grad_weight is not None:
                grad_weight.addmm_(change.t(), hidden[span])
            elif ctx.needs_input_grad[1]:
                grad_weight = change.t() @ hidden[span]
            if grad_bias is not None:
                grad_bias += change.sum(0)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _normalise(logits: Tensor, targets: Tensor, found: Tensor, entropies: Tensor, normalisers: Tensor) -> None:
    """Turn logits (n, V) into probabilities in place, and write log-probs, entropies and logsumexps, all (n,)."""
    for rows in _blocks(logits):
        block = logits[rows]
        wanted = block.gather(1, targets[rows, None]).squeeze(1)
        top = block.amax(-1, keepdim=True)
        exponentials = block.sub_(top).exp()
        z = exponentials.sum(-1)
        normalisers[rows] = top.squeeze(1) + z.log()
        found[rows] = (wanted - top.squeeze(1)) - z.log()
        entropies[rows] = z.log() - torch.linalg.vecdot(exponentials, block) / z
        torch.div(exponentials, z[:, None], out=block)


def _differentiate(logits: Tensor, normalisers: Tensor, grad: Tensor, pull: tuple[Tensor, Tensor] | None) -> None:
    """Turn logits (n, V) into dL/dl in place, but for the target's own +g; ``pull``: e and H, where e is wanted."""
    for rows in _blocks(logits):
        block = logits[rows].sub_(normalisers[rows, None])
        factor = -grad[rows, None]
        if pull is not None:
            grad_entropy, entropies = (array[rows, None] for array in pull)
            factor = factor - (block + entropies) * grad_entropy
        block.exp_().mul_(factor)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, multiplier: float) -> Tensor:
    logits = nn.functional.linear(hidden, weight, bias)
    return logits if multiplier == 1 else logits.mul_(multiplier)


def _spans(n: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, n)) for start in range(0, n, chunk)]


def _blocks(logits: Tensor) -> list[slice]:
    """Runs of rows whose logits fit in the cache; elsewhere than on the CPU all at once."""
    n, width = logits.shape
    return _spans(n, max(1, CACHED // width) if logits.device.type == "cpu" else max(1, n))
