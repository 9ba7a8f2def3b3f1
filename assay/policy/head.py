"""The output head and the softmax in one: log-probs and entropies of n tokens, logits only a chunk at a time.

Written with its own backward pass, because automatic differentiation would keep several arrays of the vocabulary's
width for each token. Here a chunk's logits are computed, reduced and dropped, and computed once more for their
gradient::

    l = (h W^T + b) m        log p = l_target - logsumexp(l)        H = -sum(p log p)
    dL/dl = g (onehot(target) - p) - e p (log p + H)        for upstream gradients g of log p and e of H

The last chunk's p - onehot is kept instead of computed again: its memory was needed anyway. Without e it is the same
for all upstream gradients, and g, a number a row, is multiplied into what is n x H instead of n x V.

The passes over a chunk go by blocks of rows that stay in the processor's cache, with one exponential for each logit::

    t = max(l)    e = exp(l - t)    z = sum(e)    logsumexp = t + log z    H = log z - sum(e (l - t)) / z

Products in bfloat16 sum in float32 and round their result to 8 bits: a logit of 20 to a sixteenth. So they are made
*less the target's logit*, which is computed apart in float32: what is rounded is l_j - l_target, and its error is no
larger than 2^-9 of the difference. A token that is as likely as the target is exact, and one far less likely hardly
counts; log p is then off by some thousandth of itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from assay.objective.layout import wide
from assay.policy.narrow import NarrowWeights, add_product

CACHED = 1 << 19
"""Logits of a block on the CPU: 2 MiB in float32."""


@dataclass(frozen=True)
class Head:
    """The output head of a Hugging Face causal LM, with the logit transformations that some families apply after it.

    Products are in the precision of ``weights``; everything else is in float32, or in float64 where the weights are,
    and at the given temperature.
    """

    model: Any
    temperature: float
    chunk: int
    """Tokens whose logits exist at one time."""
    weights: NarrowWeights
    entropy_gradient: bool = False
    """Do the entropies carry a gradient? Only an entropy bonus wants it."""

    def __call__(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs of ``targets`` (n,) given ``hidden`` (n, H), and entropies of the same softmax, both (n,)."""
        linear, scale, softcap = self._parts()
        if type(linear) is nn.Linear and softcap is None:
            bias = None if linear.bias is None else wide(linear.bias)
            settings = (scale / self.temperature, self.chunk, self.entropy_gradient, self.weights)
            return _LogProbs.apply(hidden.to(self.weights.dtype), linear.weight, bias, targets, *settings)

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
        weights: NarrowWeights,
    ) -> tuple[Tensor, Tensor]:
        product = _Product(weights(weight), None if bias is None else bias.detach(), multiplier)
        found, entropies, normalisers = (wide(hidden).new_empty(len(hidden)) for _ in range(3))
        kept = None
        for span in _spans(len(hidden), chunk):
            kept = None  # let go first: one chunk exists at a time
            kept, wanted = product.logits(hidden[span], targets[span])
            _normalise(kept, wanted, targets[span], (found[span], entropies[span], normalisers[span]), product)
        ctx.save_for_backward(hidden, targets, found, entropies, normalisers)
        ctx.settings = (weight, product, chunk, entropy_gradient)
        ctx.kept = None if entropy_gradient else kept
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return found, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, targets, found, entropies, normalisers = ctx.saved_tensors
        weight, product, chunk, entropy_gradient = ctx.settings
        _, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        grad_hidden, grad_weight, grad_bias = torch.empty_like(hidden), None, None
        kept, ctx.kept = ctx.kept, None
        for span in reversed(_spans(len(hidden), chunk)):
            factor = -product.multiplier * gradients[0][span]
            if kept is None:
                kept, wanted = product.logits(hidden[span], targets[span])
                pull = (factor, -product.multiplier * gradients[1][span], entropies[span]) if entropy_gradient else None
                _differentiate(kept, wanted, targets[span], (found[span], normalisers[span]), pull, product)
            change, kept = kept, None
            if entropy_gradient:
                factor = torch.ones_like(factor)  # is in it
            grad_hidden[span] = wide(change @ product.weight) * factor[:, None]
            if wants_weight:
                scaled = (wide(hidden[span]) * factor[:, None]).to(hidden.dtype)
                grad_weight = _sum(grad_weight, add_product(weight, change, scaled))
            if wants_bias:
                grad_bias = _sum(grad_bias, factor.to(change.dtype) @ change)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None


@dataclass(frozen=True)
class _Product:
    """Hidden states to logits: (h W^T + b) m."""

    weight: Tensor
    """(V, H) in the precision of the product."""
    bias: Tensor | None
    multiplier: float

    def logits(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """h W^T (n, V), of each row less the same number, and (n,) what the targets' are in float32."""
        if wide(hidden) is hidden:
            logits = hidden @ self.weight.t()
            return logits, logits.gather(1, targets[:, None]).squeeze(1)
        exact = torch.linalg.vecdot(wide(hidden), wide(self.weight[targets]))
        less = exact.to(hidden.dtype)
        return torch.addmm(less[:, None], hidden, self.weight.t(), beta=-1), exact - less

    def block(self, logits: Tensor, rows: slice, wanted: Tensor, targets: Tensor) -> Tensor:
        """Rows of what `logits` has given, biased and multiplied, in float32 or wider: a copy where they are narrow."""
        block = wide(logits[rows])
        if block.dtype != logits.dtype:
            block.scatter_(1, targets[rows, None], wanted[rows, None])
        if self.bias is not None:
            block += self.bias
        return block if self.multiplier == 1 else block.mul_(self.multiplier)


def _normalise(
    logits: Tensor, wanted: Tensor, targets: Tensor, results: tuple[Tensor, Tensor, Tensor], product: _Product
) -> None:
    """Turn logits (n, V) into p - onehot in place, and write ``results``: log-probs, entropies and logsumexps (n,)."""
    found, entropies, normalisers = results
    for rows in _blocks(logits):
        block = product.block(logits, rows, wanted, targets)
        top = block.amax(-1, keepdim=True)
        block.sub_(top)
        at = block.gather(1, targets[rows, None])
        exponentials = block.exp()
        z = exponentials.sum(-1, keepdim=True)
        found[rows] = (at - z.log()).squeeze(1)
        normalisers[rows] = (top + z.log()).squeeze(1)
        entropies[rows] = z.log().squeeze(1) - torch.linalg.vecdot(exponentials, block) / z.squeeze(1)
        exponentials.div_(z).scatter_(1, targets[rows, None], found[rows, None].expm1())
        logits[rows] = exponentials


def _differentiate(
    logits: Tensor,
    wanted: Tensor,
    targets: Tensor,
    results: tuple[Tensor, Tensor],
    pull: tuple[Tensor, Tensor, Tensor] | None,
    product: _Product,
) -> None:
    """Turn logits (n, V) into p - onehot in place, given ``results``: log-probs and logsumexps (n,).

    ``pull``: -g m, -e m and H where entropies have a gradient; then into that of the logits, times m.
    """
    found, normalisers = results
    for rows in _blocks(logits):
        logs = product.block(logits, rows, wanted, targets).sub_(normalisers[rows, None])
        shares = logs.exp()
        change = shares if pull is None else shares.clone()
        change.scatter_(1, targets[rows, None], found[rows, None].expm1())
        if pull is not None:
            grad, grad_entropy, entropies = (array[rows, None] for array in pull)
            change.mul_(grad).add_(logs.add_(entropies).mul_(shares).mul_(grad_entropy))
        logits[rows] = change


def _sum(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """What there is of both; several parts are added up in float32 or wider."""
    return part if total is None or part is None else wide(total).add_(part)


def _spans(n: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, n)) for start in range(0, n, chunk)]


def _blocks(logits: Tensor) -> list[slice]:
    """Runs of rows whose logits fit in the cache; elsewhere than on the CPU all at once."""
    n, width = logits.shape
    return _spans(n, max(1, CACHED // width) if logits.device.type == "cpu" else max(1, n))
