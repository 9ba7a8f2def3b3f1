"""Before it serves a model, the engine compares its own cached forward with the model's plain one.

That also chooses the path: the fused network where it gives the model's numbers, transformers' own forward elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.errors import UserError
from assay.records import Prompt
from assay.rollout.engine import Request
from assay.rollout.fused import FusedNetwork
from assay.rollout.network import GeneralNetwork, Network
from assay.rollout.projection import Unfusable
from assay.rollout.runner import ModelRunner
from assay.rollout.sampling import Sampling
from assay.rollout.sequence import Sequence
from assay.rollout.weights import GenerationWeights

TOLERANCE = {
    torch.float64: 1e-3,
    torch.float32: 1e-3,
    torch.bfloat16: 0.1,
    torch.float16: 0.05,
    torch.int8: 0.5,
}
"""Allowed norm of the difference of centred logits over the norm of the logits: rounding is well below, a
wrong position or mask is near 1."""
STEPS = 3
SIBLINGS = 2
"""Answers to each prompt: with more than one the network shares its prompts."""
REFUSALS = (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError, NotImplementedError)
"""What a forward that was not made for a slot cache may raise."""


@torch.no_grad()
def prepare(model: nn.Module, prefill_tokens: int, dtype: torch.dtype | None, snapshot: bool) -> ModelRunner:
    """Return a runner seen to agree with ``model``: fused where that agrees too, else general.

    Two prompts of unequal length are prefilled together and decoded a few tokens, each as two answers that share it;
    windows of up to 64 positions are crossed. Raises UserError naming the architecture when the general path's numbers
    differ or the model refuses the call, and when 8 bits are asked for where there is no fused network.
    """
    plain: Any = GenerationWeights(model).causal_lm
    name = type(plain).__name__
    if dtype == torch.int8 and plain.device.type != "cpu":
        raise UserError(f"rollout.dtype: int8 is for the CPU, and the model is on {plain.device}: use bfloat16")
    try:
        network = FusedNetwork(model, dtype, snapshot=snapshot)
        difference = _difference(network, plain, prefill_tokens)
        if difference <= TOLERANCE[dtype or network.dtype]:
            return ModelRunner(network, prefill_tokens)
        why = f"its fused logits differ from the model's own by {difference:.3g} (relative norm)"
    except (Unfusable, *REFUSALS) as error:
        why = _reason(error)
    if dtype == torch.int8:
        raise UserError(f"rollout.dtype: int8 is not for {name} ({why}); use float32 or bfloat16")
    network = GeneralNetwork(model, dtype, snapshot=snapshot)
    try:
        difference = _difference(network, plain, prefill_tokens)
    except REFUSALS as error:
        raise UserError(
            f"the native engine cannot serve {name}: its forward fails with a slot cache ({_reason(error)}); "
            "use another engine or architecture"
        ) from error
    if not difference <= TOLERANCE[network.dtype]:
        raise UserError(
            f"the native engine cannot serve {name}: its cached logits differ from the model's own "
            f"by {difference:.3g} (relative norm); use another engine or architecture"
        )
    return ModelRunner(network, prefill_tokens)


def _difference(network: Network, plain: Any, prefill_tokens: int) -> float:
    """Norm of the difference of centred logits over the norm of the plain model's."""
    rows = _token_rows(plain, network.masks.largest_window)
    expected = torch.cat(
        [plain(torch.tensor([row], device=network.device)).logits[0, -STEPS:] for row in rows for _ in range(SIBLINGS)]
    )
    got = _cached_logits(ModelRunner(network, prefill_tokens), rows)
    got, expected = (x.double().cpu() - x.double().cpu().mean(-1, keepdim=True) for x in (got, expected))
    return float((got - expected).norm() / expected.norm().clamp(min=1e-12))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"


def _token_rows(model: Any, window: int) -> list[list[int]]:
    """Two fixed token rows: prompts of 1 and of several tokens, each with the tokens to feed after it."""
    vocabulary = model.get_input_embeddings().num_embeddings
    longest = window + 3 if 0 < window <= 64 else 7
    return [[(i * 37 + 11 * n) % vocabulary for i in range(n + STEPS - 1)] for n in (1, longest)]


def _cached_logits(runner: ModelRunner, rows: list[list[int]]) -> Tensor:
    """Logits of the last STEPS positions of SIBLINGS copies of each row by prefill and decoding, (n * STEPS, V)."""
    sequences: list[tuple[Sequence, list[int]]] = []
    for row in rows:
        request = Request(0, Prompt("check", (), "", tuple(row[: 1 - STEPS])), SIBLINGS, Sampling(greedy=True))
        sequences += [(Sequence(request, sibling, np.empty(0)), row) for sibling in range(SIBLINGS)]
    running = [sequence for sequence, _ in sequences]
    steps = [runner.prefill(running, list(range(len(running))))]
    for step in range(STEPS - 1):
        for sequence, row in sequences:
            sequence.tokens.append(row[step + 1 - STEPS])
        steps.append(runner.decode(running))
    return torch.stack(steps, 1).flatten(0, 1)
