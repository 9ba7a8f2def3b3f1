"""Before it serves a model, the engine compares its own cached forward with the model's plain one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.errors import UserError
from assay.records import Prompt
from assay.rollout import attention
from assay.rollout.engine import Request
from assay.rollout.runner import ModelRunner
from assay.rollout.sampling import Sampling
from assay.rollout.sequence import Sequence

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Allowed norm of the difference of centred logits over the norm of the logits: rounding is well below, a
wrong position or mask is near 1."""
STEPS = 3


def prepare(model: Any, prefill_tokens: int) -> ModelRunner:
    """Return a runner seen to agree with ``model``, whose attention is folded where that is possible.

    Two prompts of unequal length are prefilled together and decoded a few tokens; windows of up to 64
    positions are crossed. Raises UserError naming the architecture when the numbers differ or the model
    refuses the call.
    """
    name = type(model).__name__
    try:
        runner = ModelRunner(model, prefill_tokens)
        rows = _token_rows(model, runner.masks.largest_window)
        plain = [model(torch.tensor([row], device=runner.device)).logits[0] for row in rows]
        if model.config._attn_implementation != "eager":
            model.config._attn_implementation = attention.NAME
        cached = _cached_logits(runner, rows)
    except (
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        KeyError,
        RuntimeError,
        NotImplementedError,
    ) as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise UserError(
            f"the native engine cannot serve {name}: its forward fails with a slot cache "
            f"({type(error).__name__}: {reason}); use another engine or architecture"
        ) from error
    expected = torch.cat([logits[-STEPS:] for logits in plain])
    difference = _distance(cached, expected)
    if not difference <= TOLERANCE.get(runner.dtype, 0.1):
        raise UserError(
            f"the native engine cannot serve {name}: its cached logits differ from the model's own "
            f"by {difference:.3g} (relative norm); use another engine or architecture"
        )
    return ModelRunner(model, prefill_tokens)


def _token_rows(model: Any, window: int) -> list[list[int]]:
    """Two fixed token rows: prompts of 1 and of several tokens, each with the tokens to feed after it."""
    vocabulary = model.get_input_embeddings().num_embeddings
    longest = window + 3 if 0 < window <= 64 else 7
    return [[(i * 37 + 11 * n) % vocabulary for i in range(n + STEPS - 1)] for n in (1, longest)]


def _cached_logits(runner: ModelRunner, rows: list[list[int]]) -> Tensor:
    """Logits of the last STEPS positions of each row by prefill and decoding, (2 * STEPS, V)."""
    sequences = []
    for row in rows:
        prompt = Prompt("check", (), "", tuple(row[: 1 - STEPS]))
        request = Request(0, prompt, 1, Sampling(greedy=True))
        sequences.append(Sequence(request, 0, np.empty(0)))
    steps = [runner.prefill(sequences, list(range(len(rows))))]
    for step in range(STEPS - 1):
        for sequence, row in zip(sequences, rows, strict=True):
            sequence.tokens.append(row[step + 1 - STEPS])
        steps.append(runner.decode(sequences))
    return torch.stack(steps, 1).flatten(0, 1)


def _distance(got: Tensor, expected: Tensor) -> float:
    got, expected = (x.double().cpu() - x.double().cpu().mean(-1, keepdim=True) for x in (got, expected))
    return float((got - expected).norm() / expected.norm().clamp(min=1e-12))
