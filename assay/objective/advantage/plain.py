"""The reward as it is."""

from __future__ import annotations

from torch import Tensor

from assay.objective.advantage.estimator import Advantage, Signals, estimator, outcomes, spread
from assay.objective.layout import Layout
from assay.recipe.schema import ObjectiveRecipe


@estimator("none", formula="A_i = r_i", scale="equivariant")
def reward_itself(token_rewards: Tensor, layout: Layout, signals: Signals, settings: ObjectiveRecipe) -> Advantage:
    """A_i = r_i, without a baseline: REINFORCE (Williams 1992).

    With reward 1 and the loss ``reinforce`` it is maximum likelihood, which is how `assay sft` uses it.
    """
    return Advantage(spread(outcomes(token_rewards, layout, signals), layout, signals))
