"""The objectives of the papers, as overlays on the defaults. What the recipe itself writes wins over them.

A preset is a function that returns values by key path; its docstring names the source and says what the
source leaves open. Sizes that belong to a machine (prompts per step, answer length, learning rate) are left
to the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from assay.recipe.keys import split
from assay.registry import Registry

Overlay = Mapping[str, Any]
"""Values by key path."""

PRESETS: Registry[Callable[[], Overlay]] = Registry("preset")
"""Every preset by name."""


def overlay(name: str) -> dict[str, Any]:
    """The values of preset ``name``, nested. Raises UserError, with the nearest name, where there is none."""
    nested: dict[str, Any] = {}
    for path, value in PRESETS[name]().items():
        *sections, last = split(path)
        place = nested
        for step in sections:
            place = place.setdefault(str(step), {})
        place[str(last)] = value
    return nested


def summary(name: str) -> str:
    """The first line of the preset's docstring: what it is and where it is from."""
    return (PRESETS[name].__doc__ or "").strip().splitlines()[0]


def _no_kl() -> dict[str, Any]:
    return {"objective.kl.coefficient": 0.0}


def _group_std(low: float, high: float) -> dict[str, Any]:
    """GRPO's advantage with the clipped loss and the given clip range."""
    return {
        "objective.estimator": "grpo",
        "objective.scale": "group",
        "objective.ratio": "token",
        "objective.loss": "clip",
        "objective.clip_low": low,
        "objective.clip_high": high,
    }


@PRESETS.register("grpo")
def grpo() -> Overlay:
    """GRPO: group mean and std, mean over each answer, KL in the loss. Shao et al. 2024, arXiv:2402.03300.

    The KL coefficient .04 and the k3 estimator are DeepSeekMath's. The paper makes one update of each batch,
    so its clip is idle, and does not print the clip range: .2 is PPO's. Dividing by each answer's own length
    makes long wrong answers cheap: see ``dr_grpo``.
    """
    return {
        **_group_std(0.2, 0.2),
        "objective.aggregation": "sequence",
        "objective.kl.coefficient": 0.04,
        "objective.kl.estimator": "k3",
        "objective.kl.where": "loss",
    }


@PRESETS.register("dr_grpo")
def dr_grpo() -> Overlay:
    """Dr. GRPO: no std, a constant in place of the length, no KL. Liu et al. 2025, arXiv:2503.20783.

    The constant is the cap on the answer's length (``objective.constant_tokens`` absent:
    ``rollout.max_tokens``). The clip range .2 is that of the authors' code; the paper does not discuss it.
    """
    return {
        **_no_kl(),
        "objective.estimator": "dr_grpo",
        "objective.ratio": "token",
        "objective.loss": "clip",
        "objective.clip_low": 0.2,
        "objective.clip_high": 0.2,
        "objective.aggregation": "constant",
    }


@PRESETS.register("dapo")
def dapo() -> Overlay:
    """DAPO: higher upper clip, dynamic sampling, soft length punishment. Yu et al. 2025, arXiv:2503.14476.

    Of the cap of 20,480 tokens the last 4,096, a share of .2, are punished linearly down to -1. The paper
    takes 16 optimizer steps from each batch; ``update.minibatches`` is left to the recipe, and with 1 the
    clip is idle. It bounds resampling by nothing; here ``rollout.max_extra_groups`` does. Its correctness
    reward is +1 / -1; a reward of 1 / 0 makes the punishment twice as strong beside it.
    """
    return {
        **_group_std(0.2, 0.28),
        **_no_kl(),
        "objective.aggregation": "token",
        "rollout.dynamic_sampling": True,
        "reward.overlong_buffer": 0.2,
        "reward.overlong_penalty": 1.0,
    }


@PRESETS.register("gspo")
def gspo() -> Overlay:
    """GSPO: one importance ratio per sequence, in a very narrow clip. Zheng et al. 2025, arXiv:2507.18071.

    The ratio is a geometric mean over the answer's tokens, so it stays near 1: the range is 3e-4 below, 4e-4
    above. The paper splits each batch into four mini-batches, without which there is nothing to clip. It
    leaves the KL term out "for brevity" and prints no coefficient: 0 here.
    """
    return {
        **_group_std(3e-4, 4e-4),
        **_no_kl(),
        "objective.ratio": "sequence",
        "objective.aggregation": "sequence",
        "update.minibatches": 4,
    }


@PRESETS.register("rloo")
def rloo() -> Overlay:
    """RLOO: REINFORCE against the mean of the other answers. Ahmadian et al. 2024, arXiv:2402.14740.

    The whole answer is one action: its log-prob is the sum over its tokens, and nothing is clipped. The KL
    coefficient .03 is that of the paper's summarisation runs. Its groups have 2 or 4 answers.
    """
    return {
        "objective.estimator": "rloo",
        "objective.loss": "reinforce",
        "objective.aggregation": "sequence_sum",
        "objective.kl.coefficient": 0.03,
        "objective.kl.estimator": "k1",
        "objective.kl.where": "reward",
    }


@PRESETS.register("cispo")
def cispo() -> Overlay:
    """CISPO: the clipped ratio is a weight, so no token loses its gradient. MiniMax 2025, arXiv:2506.13585.

    There is no lower clip: a ratio is above 0, which is what ``clip_low: 1`` says. The paper tunes only the
    upper bound and does not print it; 5 is the value that implementations took up with ScaleRL (Khatri et al.
    2025, arXiv:2510.13786), which adopts this loss. The paper normalises over the tokens of each group
    (``aggregation: prompt``); over the batch's tokens is the common reading, and the one here. Group std as
    in GRPO, no KL.
    """
    return {
        **_group_std(1.0, 5.0),
        **_no_kl(),
        "objective.loss": "cispo",
        "objective.aggregation": "token",
    }


@PRESETS.register("olmo3")
def olmo3() -> Overlay:
    """OLMo 3: DAPO's clip and sampling without std, with truncated weights. Olmo team 2025, arXiv:2512.13961.

    No KL, no std, token mean, clip .2 / .272; weights for the sampler's mismatch truncated at 2; groups whose
    rewards are all equal are replaced (their "active sampling"). No length punishment.
    """
    return {
        **_group_std(0.2, 0.272),
        **_no_kl(),
        "objective.scale": "none",
        "objective.aggregation": "token",
        "objective.correction.kind": "truncate",
        "objective.correction.level": "token",
        "objective.correction.high": 2.0,
        "rollout.dynamic_sampling": True,
    }


@PRESETS.register("reinforce++")
def reinforce_pp() -> Overlay:
    """REINFORCE++: advantages whitened over the batch, KL in the reward. Hu et al. 2025, arXiv:2501.03262.

    No group is needed: ``rollout.group_size: 1`` works. PPO's clipped loss with the usual .2 over tokens, KL
    by k1. The paper ties the method to no KL coefficient: .01 is a common one.
    """
    return {
        "objective.estimator": "reinforce++",
        "objective.gamma": 1.0,
        "objective.ratio": "token",
        "objective.loss": "clip",
        "objective.clip_low": 0.2,
        "objective.clip_high": 0.2,
        "objective.aggregation": "token",
        "objective.kl.coefficient": 0.01,
        "objective.kl.estimator": "k1",
        "objective.kl.where": "reward",
    }
