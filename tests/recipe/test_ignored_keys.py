"""No silently ignored option: what is set and not read is refused. The tables agree with the objective."""

from __future__ import annotations

import pytest

from assay.errors import UserError
from assay.objective.advantage import ESTIMATORS as REGISTERED
from assay.objective.correction import CORRECTIONS
from assay.objective.kl import CONTROLLERS, ESTIMATES
from assay.objective.loss import LOSSES as REGISTERED_LOSSES
from assay.recipe.ignored import RULES
from assay.recipe.keys import schema_keys
from assay.recipe.load import load_recipe
from assay.recipe.names import ESTIMATOR_KEYS, ESTIMATORS, LOSS_KEYS, LOSSES
from assay.recipe.schema import CorrectionRecipe, KlRecipe, RolloutRecipe
from assay.rollout.engines import engines

DATA = {"data": {"train": ["a.jsonl"]}}

ADAPTIVE = "objective.kl={coefficient: 0.1, controller: adaptive}"

CASES = [
    # an ignored setting, the reason, what makes it count
    (
        "objective.tau_pos=2",
        "objective.loss = clip does not read it (read by: sapo)",
        ["objective.loss=sapo"],
    ),
    (
        "objective.tau_neg=2",
        "objective.loss = clip does not read it (read by: sapo)",
        ["objective.loss=sapo"],
    ),
    (
        "objective.gamma=0.9",
        "objective.estimator = grpo does not read it (read by: reinforce++, gae)",
        ["objective.estimator=reinforce++"],
    ),
    (
        "objective.constant_tokens=64",
        "objective.aggregation = token divides by no constant",
        ["objective.aggregation=constant"],
    ),
    (
        "objective.kl.estimator=k1",
        "objective.kl.coefficient = 0: there is no KL term",
        ["objective.kl.coefficient=0.1"],
    ),
    (
        "objective.kl.where=reward",
        "objective.kl.coefficient = 0: there is no KL term",
        ["objective.kl.coefficient=0.1"],
    ),
    (
        "sync.backend=file",
        "rollout.engine = native has one way only (vllm and vllm_server have several)",
        ["rollout.engine=vllm"],
    ),
    (
        "rollout.servers=[http://127.0.0.1:8000]",
        "rollout.engine = native asks no server",
        ["rollout.engine=vllm_server"],
    ),
    ("sync.gguf=q8_0", "rollout.engine = native is given no GGUF", ["rollout.engine=llama_server"]),
    (
        "rollout.allow_stale=true",
        "rollout.engine = native is given every new version",
        ["rollout.engine=openai", "rollout.servers=[http://127.0.0.1:8000]"],
    ),
    ("objective.kl.target=0.2", "objective.kl.controller = fixed does not steer", [ADAPTIVE]),
    ("objective.kl.horizon=20", "objective.kl.controller = fixed does not steer", [ADAPTIVE]),
    *(
        (f"drift.{measure}_action=rollback", f"drift.{measure} has no threshold", [f"drift.{measure}=0.5"])
        for measure in ("kl", "ess", "surprise")
    ),
    (
        "objective.correction.high=3",
        "objective.correction.kind = none weighs nothing",
        ["objective.correction.kind=truncate"],
    ),
    (
        "objective.correction.level=sequence",
        "objective.correction.kind = none weighs nothing",
        ["objective.correction.kind=mask"],
    ),
    (
        "objective.correction.low=0.4",
        "objective.correction.kind = none has no lower edge (mask has)",
        ["objective.correction.kind=mask"],
    ),
    (
        "reward.overlong_penalty=2",
        "reward.overlong_buffer = 0 punishes nothing",
        ["reward.overlong_buffer=0.5"],
    ),
    (
        "rollout.max_extra_groups=3",
        "rollout.dynamic_sampling = false replaces no group",
        ["rollout.dynamic_sampling=true"],
    ),
    *(
        (setting, "there are no held-out prompts (data.holdout or data.eval)", ["data.holdout=4"])
        for setting in ("eval.samples=4", "eval.samples=0", "eval.temperature=0.5", "eval.limit=9")
    ),
    ("track.project=mine", "track.trackers = [] names nobody to tell it", ["track.trackers=[wandb]"]),
    *(
        (setting, "regime.max_staleness = 0 has no answers in flight at new weights", ["regime.max_staleness=1"])
        for setting in ("regime.in_flight=false", "regime.kv=keep")
    ),
    ("regime.max_groups=20", "regime.max_staleness = 0 admits one batch of groups anyway", ["regime.max_staleness=1"]),
    ("update.min_ratio=0.1", "update.schedule = constant does not fall", ["update.schedule=cosine"]),
]


@pytest.mark.parametrize(("setting", "reason", "mend"), CASES)
def test_set_but_not_read_is_refused(setting, reason, mend):
    key = setting.partition("=")[0]
    with pytest.raises(UserError) as caught:
        load_recipe(DATA, [setting])
    assert str(caught.value) == f"override: {key} is set, but {reason}: leave it out"
    load_recipe(DATA, [setting, *mend])


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["objective.estimator=rloo", "objective.scale=none"], "objective.scale"),
        (["objective.scale=none", "objective.eps=1e-3"], "objective.eps"),
        (["objective.scale=none", "objective.min_std=1e-3"], "objective.min_std"),
        (["objective.loss=reinforce", "objective.clip_high=0.3"], "objective.clip_high"),
        (["objective.loss=cispo", "objective.dual_clip=3"], "objective.dual_clip"),
        (["objective.loss=geo_mean", "objective.ratio=sequence"], "objective.ratio"),
        (["objective.lam=0.9"], "objective.lam"),
        (["objective.correction.kind=truncate", "objective.correction.low=0.1"], "objective.correction.low"),
        (["data.holdout=4", "eval.samples=0", "eval.temperature=0.5"], "eval.temperature"),
        (["data.template=none", "data.enable_thinking=true"], "data.enable_thinking"),
        (["rollout.engine=llama_server", "rollout.dtype=bfloat16"], "rollout.dtype"),
        (["rollout.engine=openai", "rollout.servers=[http://a]", "rollout.dtype=bfloat16"], "rollout.dtype"),
        (["rollout.engine=transformers", "rollout.replicas=2"], "rollout.replicas"),
        (["rollout.engine=transformers", "rollout.timeout_s=9"], "rollout.timeout_s"),
        (["rollout.engine=transformers", "rollout.options={threads: 2}"], "rollout.options"),
        (["rollout.engine=transformers", "rollout.process=own"], "rollout.process"),
        (["rollout.options={threads: 2}"], "rollout.options"),
        (["rollout.timeout_s=9"], "rollout.timeout_s"),
        (["rollout.engine=vllm", "rollout.replicas=2"], "rollout.replicas"),
        (["rollout.engine=vllm_server", "rollout.servers=[http://a]", "rollout.replicas=2"], "rollout.replicas"),
        (["data.template=none", "model.chat_template=t.jinja"], "model.chat_template"),
    ],
)
def test_keys_of_another_choice_are_refused(overrides, key):
    with pytest.raises(UserError, match=f"{key} is set, but "):
        load_recipe(DATA, overrides)


def test_every_rule_speaks_of_a_key_that_exists():
    assert {rule.key for rule in RULES} <= set(schema_keys())


def test_values_that_nobody_chose_are_not_refused():
    load_recipe({**DATA, "preset": "dapo"}, ["objective.loss=reinforce"])  # the preset's clip range is idle
    load_recipe({**DATA, "preset": "gspo", "objective": {"clip_low": 3e-4, "loss": "reinforce", "ratio": "sequence"}})
    load_recipe(DATA, ["objective.tau_pos=1.0"])  # the default, as a saved recipe writes it
    with pytest.raises(UserError, match=r"recipe: objective.clip_low is set, but"):
        load_recipe({**DATA, "preset": "gspo", "objective": {"clip_low": 0.1, "loss": "reinforce"}})


def test_the_recipe_knows_the_registered_estimators():
    assert set(ESTIMATORS) == set(REGISTERED)
    for name, facts in ESTIMATORS.items():
        entry = REGISTERED[name]
        assert facts.group_baseline == entry.group_baseline, name
        assert facts.reads == entry.keys - {"kl.reward"}, name
        assert facts.token_rewards == ("kl.reward" in entry.keys), name
        assert bool(facts.lacks) == (entry.needs in ("greedy", "values")), name
    assert frozenset().union(*(f.reads for f in ESTIMATORS.values())) == ESTIMATOR_KEYS


def test_the_recipe_knows_the_registered_losses():
    assert {name: LOSSES[name] for name in LOSSES} == {name: REGISTERED_LOSSES[name].keys for name in REGISTERED_LOSSES}
    assert frozenset().union(*LOSSES.values()) == LOSS_KEYS


def test_the_choices_of_the_schema_are_the_registered_ones():
    def choices(section, key):
        return set(section.model_fields[key].annotation.__args__)

    assert choices(CorrectionRecipe, "kind") == set(CORRECTIONS)
    assert choices(KlRecipe, "controller") == set(CONTROLLERS)
    assert choices(RolloutRecipe, "engine") == set(engines)
    assert choices(KlRecipe, "estimator") == set(ESTIMATES) | {f"{name}+" for name in ESTIMATES}
