"""Before it serves a model, the engine compares its own cached forward with the model's plain one.

That also chooses the path: the fused network where it gives the model's numbers, transformers' own forward elsewhere.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.errors import UserError
from assay.records import Prompt
from assay.rollout.engine import Request
from assay.rollout.fused import FusedNetwork
from assay.rollout.graphs import recorder
from assay.rollout.network import GeneralNetwork
from assay.rollout.projection import Unfusable
from assay.rollout.runner import ModelRunner
from assay.rollout.sampling import Sampling
from assay.rollout.sequence import Sequence
from assay.rollout.stem import STEM
from assay.rollout.weights import GenerationWeights

LOG = logging.getLogger("assay")

TOLERANCE = {
    torch.float64: 1e-3,
    torch.float32: 1e-3,
    torch.bfloat16: 0.1,
    torch.float16: 0.05,
    torch.int8: 0.5,
}
"""Allowed norm of the difference of centred logits over the norm of the logits: rounding is well below, a
wrong position or mask is near 1."""
STEPS = 4
"""Positions compared: a prefill, and decoding as it is, recorded, and replayed."""
SIBLINGS = 2
"""Answers to each prompt: with more than one the network shares its prompts."""
REFUSALS = (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError, NotImplementedError)
"""What a forward that was not made for a slot cache may raise."""


@torch.no_grad()
def prepare(
    model: nn.Module,
    prefill_tokens: int,
    dtype: torch.dtype | None,
    snapshot: bool,
    *,
    graphs: bool = True,
    compiled: bool = True,
) -> ModelRunner:
    """Return a runner seen to agree with ``model``: fused where that agrees too, else general.

    Decoding steps are recorded (``graphs``) where the device can, and compiled (``compiled``) where there is a
    compiler, if what is replayed, and what is compiled, agrees as well.

    Two prompts of unequal length are prefilled together and decoded a few tokens, each as two answers that share it;
    windows of up to 64 positions are crossed. Raises UserError naming the architecture when the general path's numbers
    differ or the model refuses the call, and when 8 bits are asked for where there is no fused network.
    """
    plain: Any = GenerationWeights(model).causal_lm
    name = type(plain).__name__
    if dtype == torch.int8 and plain.device.type != "cpu":
        raise UserError(f"rollout.dtype: int8 is for the CPU, and the model is on {plain.device}: use bfloat16")
    try:
        network = _fused(model, plain, prefill_tokens, dtype, snapshot, compiled)
        records = recorder(network.device) if graphs else None
        if records and not _replays(ModelRunner(network, prefill_tokens, records), plain):
            records = None
        return ModelRunner(network, prefill_tokens, records)
    except (Unfusable, *REFUSALS) as error:
        why = _reason(error)
    if dtype == torch.int8:
        raise UserError(f"rollout.dtype: int8 is not for {name} ({why}); use float32 or bfloat16")
    network = GeneralNetwork(model, dtype, snapshot=snapshot)
    try:
        difference = _difference(ModelRunner(network, prefill_tokens), plain)
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


def _fused(
    model: nn.Module, plain: Any, prefill_tokens: int, dtype: torch.dtype | None, snapshot: bool, compiled: bool
) -> FusedNetwork:
    """A fused network that gives the model's numbers. Raises Unfusable where there is none.

    Where only one without compiled kernels does, a warning says so.
    """
    network = FusedNetwork(model, dtype, snapshot=snapshot, compiled=compiled)
    try:
        difference = _difference(ModelRunner(network, prefill_tokens), plain)
        if difference <= TOLERANCE[dtype or network.dtype]:
            return network
        why = f"its fused logits differ from the model's own by {difference:.3g} (relative norm)"
    except REFUSALS as error:
        why = _reason(error)
    if network.kernels is None:
        raise Unfusable(why)
    del network  # its weights, before those of another one
    network = _fused(model, plain, prefill_tokens, dtype, snapshot, compiled=False)
    LOG.warning("decoding does not use compiled kernels, which would be faster: %s", why)
    return network


def _replays(runner: ModelRunner, plain: Any) -> bool:
    """Does a runner that records give the model's numbers? A forward that asks the device for one cannot be recorded.

    Where not, a warning says why.
    """
    try:
        difference = _difference(runner, plain)
        if difference <= TOLERANCE[runner.network.dtype]:
            return True
        why = f"replayed logits differ from the model's own by {difference:.3g} (relative norm)"
    except REFUSALS as error:
        why = _reason(error)
    LOG.warning("decoding steps are not replayed as CUDA graphs, which would be faster: %s", why)
    return False


def _difference(runner: ModelRunner, plain: Any) -> float:
    """Norm of the difference of centred logits over the norm of the plain model's."""
    network = runner.network
    got, expected = [], []
    for rows in _token_rows(plain, network.masks.largest_window):
        for row in rows:
            expected += [plain(torch.tensor([row], device=network.device)).logits[0, -STEPS:]] * SIBLINGS
        got.append(_cached_logits(runner, rows))
    got, expected = torch.cat(got), torch.cat(expected)
    got, expected = (x.double().cpu() - x.double().cpu().mean(-1, keepdim=True) for x in (got, expected))
    return float((got - expected).norm() / expected.norm().clamp(min=1e-12))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"


def _token_rows(model: Any, window: int) -> list[list[list[int]]]:
    """Two fixed pairs of token rows: prompts of 1 and of several tokens, each with the tokens to feed after it.

    The prompts of the second pair begin alike; a context too short for them has none.
    """
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
    vocabulary = model.get_input_embeddings().num_embeddings
    longest = window + 3 if 0 < window <= 64 else 7
    pair = [[(i * 37 + 11 * n) % vocabulary for i in range(n + STEPS - 1)] for n in (1, longest)]
    beginning = [(i * 31 + 5) % vocabulary for i in range(STEM)]
    pairs = [pair, [beginning + row for row in pair]]
    return [some for some in pairs if max(map(len, some)) <= context]


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
        steps.append(runner.decode(running).clone())
    return torch.stack(steps, 1).flatten(0, 1)
