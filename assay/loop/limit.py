"""How far a run is from what its machine could do: the work of a phase over what matrix products alone would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from assay.hardware import product_rate
from assay.loop.harvest import Harvest
from assay.policy.flops import Costs, costs_of, decode_flops, update_flops
from assay.policy.policy import Update
from assay.recipe.derived import generation_dtype
from assay.recipe.schema import Recipe, RolloutPrecision


@dataclass(frozen=True)
class Limit:
    """The arithmetic limit of a model on a machine."""

    costs: Costs
    precisions: Mapping[str, RolloutPrecision]
    """Of the matrix products of each phase (``generate``, ``update``)."""
    rates: Mapping[RolloutPrecision, float]
    """FLOP/s of matrix products in each of them."""

    def seconds(self, harvest: Harvest, update: Update) -> dict[str, float]:
        """What a step's phases would take if they were nothing but their matrix products, at full rate."""
        flops = {
            "generate": decode_flops(self.costs, harvest.sampling),
            "update": update_flops(self.costs, update.trained, update.scored),
        }
        return {phase: flops[phase] / self.rates[name] for phase, name in self.precisions.items()}

    def describe(self) -> str:
        """One line for the console.

        >>> Limit(Costs(1, 1, 1, 1, 1), {"generate": "float32", "update": "float32"}, {"float32": 2e11}).describe()
        '200 GFLOP/s in float32'
        """
        return ", ".join(f"{rate / 1e9:,.0f} GFLOP/s in {name}" for name, rate in self.rates.items())


def measure_limit(recipe: Recipe, model: Any, device: torch.device) -> Limit:
    """Time short products on ``device`` in the precisions that the phases use, with torch's present threads.

    ``model`` is a Hugging Face causal LM, or its peft wrapper; the recipe's precision is decided
    (`assay.hardware.with_precision`). It takes well under a second.
    """
    precisions: dict[str, Any] = {"generate": generation_dtype(recipe), "update": recipe.model.compute_dtype}
    rates = {name: product_rate(str(device), name) for name in dict.fromkeys(precisions.values())}
    return Limit(costs_of(model), precisions, rates)
