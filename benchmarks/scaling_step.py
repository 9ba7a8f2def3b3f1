"""One size of the scaling benchmark, in a process of its own, so that its peak memory is its own.

Run by scaling.py with a file that describes the size. It answers for one generation and one update with their seconds.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import harness
import learning
import torch
from decoding import Native, Work, first_prompts
from workers import Line

from assay.policy.model import load_model
from assay.recipe.schema import ModelRecipe


@dataclass(frozen=True)
class Size:
    """How much goes through one step."""

    model: str
    """The model's folder."""
    device: str
    precision: str
    prompts: int
    samples: int
    """Rollouts of each prompt."""
    cap: int
    """Length of every answer."""
    running: int
    """Answers generated at once, at every size: else larger batches would be cheaper by the token."""
    budget: int
    """Tokens forwarded at once in the update (``update.tokens_per_microbatch``)."""

    @property
    def rollouts(self) -> int:
        """Answers in all."""
        return self.prompts * self.samples


def main() -> None:
    """Load, warm up, and do steps until nobody asks for more."""
    line = Line()
    size = Size(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    device = torch.device(size.device)
    prompts = first_prompts(size.model, size.prompts)
    work = Work(size.model, prompts, size.samples, size.cap, size.precision)
    model = load_model(size.model, ModelRecipe(path=size.model), device)
    native = Native(work, device, model, size.running)
    policy = learning.policy_of(work, model, device, tokens_per_microbatch=size.budget)
    policy.update(learning.batch_of(prompts, native.answers(0, 2), policy), 0.0)  # the optimizer's state is made
    line.answer({})
    while True:
        answers, generate = harness.timed(partial(native.answers, line.next()["seed"]), device.type)
        batch = learning.batch_of(prompts, answers, policy)
        _, update = harness.timed(partial(policy.update, batch, 0.0), device.type)
        line.answer({"generate": generate, "update": update, "tokens": batch.n_tokens, "device_mb": device_mb(device)})


def device_mb(device: torch.device) -> float:
    """The most memory that torch has held on a CUDA device; 0 elsewhere."""
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0


if __name__ == "__main__":
    main()
