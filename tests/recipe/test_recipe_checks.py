"""Combinations that cannot work: each refused with its reason, and let pass when it is mended."""

from __future__ import annotations

import pytest

from assay.errors import UserError
from assay.recipe.checks import CHECKS, refusals, refuse_training
from assay.recipe.derived import anchor_needs, choose_anchor
from assay.recipe.doubts import of_resuming, warnings
from assay.recipe.load import check_recipe, load_recipe
from assay.recipe.schema import DataRecipe, LoraRecipe, ObjectiveRecipe, Recipe, RolloutRecipe

DATA = ["data.train=[a.jsonl]"]


def refused(overrides):
    with pytest.raises(UserError) as caught:
        load_recipe({}, [*DATA, *overrides])
    return str(caught.value)


CASES = [
    # overrides, the message, what mends it
    (
        ["rollout.group_size=1"],
        "rollout.group_size 1 gives every rollout advantage 0, because 'grpo' compares rollouts within their",
        ["objective.estimator=reinforce++"],
    ),
    (
        ["rollout.group_size=1", "objective.estimator=reinforce++", "rollout.dynamic_sampling=true"],
        "rollout.dynamic_sampling replaces groups whose rewards are equal: with group_size 1 that is every",
        ["rollout.group_size=2"],
    ),
    (
        ["rollout.top_p=0.9"],
        "rollout.top_p 0.9 samples from a cut distribution but trains the full one: use 1",
        ["rollout.top_p=1"],
    ),
    (
        ["rollout.top_k=50"],
        "rollout.top_k 50 samples from a cut distribution",
        ["data.train=[]", "data.eval=[b]"],
    ),
    (["rollout.min_p=0.1"], "rollout.min_p 0.1 samples from a cut distribution", ["rollout.min_p=0"]),
    (
        ["objective.anchor=live", "update.epochs=2"],
        "objective.anchor 'live' is not exact here, because the batch is used for 2 optimizer steps: use",
        ["objective.anchor=auto"],
    ),
    (
        ["objective.anchor=live", "objective.correction.kind=mask"],
        "objective.anchor 'live' is not exact here, because the correction weighs the anchor against the",
        ["objective.correction.kind=none"],
    ),
    (
        ["objective.anchor=live", "objective.kl={coefficient: 0.1, where: reward}"],
        "objective.anchor 'live' is not exact here, because the KL is subtracted from the rewards before",
        ["objective.kl.where=loss"],
    ),
    (
        ["objective.anchor=rollout", "objective.correction.kind=truncate"],
        "objective.anchor 'rollout' leaves nothing to correct, as its weight would be 1",
        ["objective.anchor=auto"],
    ),
    (
        ["objective.anchor=rollout", "objective.correction.reject_low=0.5"],
        "objective.anchor 'rollout' leaves nothing to correct, as its weight would be 1",
        ["objective.correction.reject_low=null"],
    ),
    (
        ["run.deterministic=true", "model.compute_dtype=bfloat16"],
        "model.compute_dtype bfloat16 does not go with run.deterministic: use float32",
        ["model.compute_dtype=float32"],
    ),
    (
        ["run.deterministic=true", "model.compute_dtype=float32", "rollout.dtype=bfloat16"],
        "rollout.dtype bfloat16 does not go with run.deterministic: use float32",
        ["rollout.dtype=auto"],
    ),
    (
        ["run.deterministic=true", "model.dtype=bfloat16"],
        "model.dtype bfloat16 does not go with run.deterministic: use float32",
        ["run.deterministic=false"],
    ),
    (
        ["model.dtype=bfloat16", "model.compute_dtype=float32"],
        "model.compute_dtype float32 cannot be had from weights in bfloat16",
        ["model.compute_dtype=bfloat16"],
    ),
    (
        ["objective.clip_low=1.5"],
        "objective.clip_low 1.5 is above 1, and no ratio is below 0: use at most 1 (1: no lower clip)",
        ["objective.loss=geo_mean"],
    ),
    (
        ["objective.dual_clip=1.1"],
        "objective.dual_clip 1.1 must be above 1 + clip_high = 1.2",
        ["objective.dual_clip=3"],
    ),
    (
        ["objective.correction={kind: mask, low: 2, high: 2}"],
        "objective.correction.low 2 is not below correction.high = 2: no token would be left",
        ["objective.correction.low=0.5"],
    ),
    (
        ["objective.correction={reject_low: 0.9, reject_high: 0.9}"],
        "objective.correction.reject_low 0.9 is not below correction.reject_high = 0.9: every sequence",
        ["objective.correction.reject_high=1.1"],
    ),
    (
        ["objective.correction.reject_low=1.2"],
        "objective.correction.reject_low leaves out 1, the weight of a sampler without mismatch",
        ["objective.correction.reject_low=0.8"],
    ),
    (
        ["objective.correction.reject_high=0.9"],
        "objective.correction.reject_high leaves out 1, the weight of a sampler without mismatch",
        ["objective.correction.reject_high=1.1"],
    ),
    (
        ["sync.every=drift", "drift.kl=0.1", "drift.kl_action=publish"],
        "sync.every 'drift' has no choice at regime.max_staleness = 0, which publishes every version",
        ["regime.max_staleness=4"],
    ),
    (
        ["sync.every=4", "regime.max_staleness=2"],
        "sync.every 4 leaves the engine further behind than regime.max_staleness = 2: at most 3",
        ["sync.every=3"],
    ),
    (
        ["sync.every=drift", "regime.max_staleness=4", "drift.kl=0.1"],
        "sync.every 'drift' publishes when the KL asks for it: set drift.kl (.05) and drift.kl_action=publish",
        ["drift.kl_action=publish"],
    ),
    (
        ["regime.max_staleness=null", "drift.ess=0.3"],
        "regime.max_staleness null needs a bound on what is in the making: set regime.max_groups, 64 or so",
        ["regime.max_groups=64"],
    ),
    (
        ["regime.max_staleness=null", "regime.max_groups=64"],
        "regime.max_staleness null leaves staleness to the drift monitor, which has no threshold",
        ["drift.ess=0.3"],
    ),
    (
        ["drift.ess=0.3", "drift.ess_action=publish"],
        "drift.ess_action 'publish' is what sync.every = 1 does at every version",
        ["drift.ess_action=warn"],
    ),
    (
        ["drift.kl=0.3", "drift.kl_action=sync"],
        "drift.kl_action 'sync' drops to staleness 0, where regime.max_staleness is: use warn or rollback",
        ["regime.max_staleness=1"],
    ),
    (
        ["drift.surprise=4", "drift.surprise_action=rollback", "checkpoint.every=0"],
        "drift.surprise_action 'rollback' needs checkpoints on the way: checkpoint.every = 0 keeps none, use 10",
        ["checkpoint.every=10"],
    ),
    (
        ["objective.kl.controller=adaptive"],
        "objective.kl.controller 'adaptive' multiplies the coefficient, and 0 stays 0",
        ["objective.kl.coefficient=0.1"],
    ),
    (
        ["objective.kl={coefficient: 0.1, where: reward, estimator: k3+}"],
        "objective.kl.estimator 'k3+' changes only a gradient, and a KL in the reward has none: use 'k3'",
        ["objective.kl.estimator=k3"],
    ),
    (
        [
            "objective.kl={coefficient: 0.1, where: reward}",
            "objective.estimator=gdpo",
            PARTS := "reward.parts=[{verifier: number}, {verifier: format}]",
        ],
        "objective.kl.where 'reward' never reaches 'gdpo', which reads the reward's parts: use 'loss'",
        ["objective.kl.where=loss"],
    ),
    (
        ["objective.estimator=gdpo"],
        "objective.estimator 'gdpo' normalises several reward parts apart, and there is one",
        [PARTS],
    ),
    (
        ["objective.estimator=gae"],
        "objective.estimator 'gae' needs a critic: not built yet",
        ["objective.estimator=opo"],
    ),
    (
        ["objective.estimator=remax"],
        "objective.estimator 'remax' needs a greedy rollout of every prompt: not built yet",
        ["objective.estimator=rloo"],
    ),
    (
        ["reward.parts=[{verifier: number}, {verifier: number, weight: 2}]"],
        "reward.parts 2 parts are called 'number': give each its own name",
        ["reward.parts[1].name=strict"],
    ),
    (
        ["reward.parts=[{verifier: number}, {verifier: format, when: {part: math}}]"],
        "reward.parts[1].when.part 'math' is no earlier part (earlier: number)",
        ["reward.parts[1].when.part=number"],
    ),
    (
        ["reward.parts=[{verifier: number}, {verifier: format, weight: 2}]", "reward.combine=product"],
        "reward.parts[1].weight 2 only scales a product (reward.combine): leave it out",
        ["reward.parts[1].weight=1"],
    ),
    (
        ["reward.parts=[{verifier: number, rows: [sum]}]"],
        "reward.parts[0].rows needs reward.verifier_column, whose values it lists",
        ["reward.verifier_column=kind"],
    ),
    (
        ["reward.verifier_column=kind"],
        "reward.verifier_column 'kind' chooses nothing: no part of reward.parts has rows",
        ["reward.parts=[{verifier: number, rows: [sum]}]"],
    ),
    (
        ["reward.parts[0].weight=0"],
        "reward.parts all weights are 0: every reward would be 0",
        ["reward.parts[0].weight=-1"],
    ),
    (
        ["reward.overlong_buffer=0.1", "rollout.max_tokens=8"],
        "reward.overlong_buffer 0.1 of rollout.max_tokens = 8 is less than a token: use 0.125 or more, or 0",
        ["reward.overlong_buffer=0.125"],
    ),
    (
        ["update.minibatches=5", "rollout.prompts_per_step=4"],
        "update.minibatches 5 are more than rollout.prompts_per_step = 4 groups: use at most 4",
        ["update.minibatches=4"],
    ),
    (
        ["update.tokens_per_microbatch=1000"],
        "update.tokens_per_microbatch 1000 may not hold one rollout of data.max_prompt_tokens + "
        "rollout.max_tokens = 1024 + 256 tokens: use at least 1280",
        ["data.max_prompt_tokens=744"],
    ),
    (
        ["regime.max_staleness=1", "regime.max_groups=15"],
        "regime.max_groups 15 groups can never fill a batch of rollout.prompts_per_step = 16: use more",
        ["regime.max_groups=16"],
    ),
    (
        ["rollout.oversample=2", "run.deterministic=true"],
        "rollout.oversample cancels by the clock which rollouts are slowest, and run.deterministic goes by indices "
        "alone: use 0",
        ["rollout.oversample=0"],
    ),
    (
        ["rollout.thinking.budget=256"],
        "rollout.thinking.budget 256 leaves no answer within rollout.max_tokens = 256: use less",
        ["rollout.thinking.budget=200"],
    ),
    (
        ["data.train=[]"],
        "data.train is empty: name prompts to train on",
        ["data.eval=[b]"],
    ),
    (
        ["data.holdout=10", "data.eval=[b]"],
        "data.holdout and data.eval both name held-out prompts: keep one",
        ["data.holdout=0"],
    ),
    (
        ["data.train=[]", "data.eval=[]", "data.holdout=10"],
        "data.holdout splits problems off data.train, which is empty",
        ["data.train=[a]"],
    ),
    (
        ["eval.every=5"],
        "eval.every 5 has nothing to evaluate on: set data.holdout or data.eval, or use 0",
        ["data.holdout=5"],
    ),
    (
        ["rollout.dynamic_sampling=true", "rollout.max_extra_groups=0"],
        "rollout.max_extra_groups 0 leaves rollout.dynamic_sampling nothing to replace groups with",
        ["rollout.max_extra_groups=1"],
    ),
    (
        ["model.lora.targets=[]"],
        "model.lora.targets is empty: nothing would be trained; use all-linear",
        ["model.lora.targets=[q_proj]"],
    ),
    (
        ["model.path=demo", "model.revision=main"],
        "model.revision belongs to a model of the hub, and model.path is 'demo'",
        ["model.path=some/model"],
    ),
    (
        ["run.deterministic=true", "rollout.engine=llama_server"],
        "rollout.engine llama_server does not go with run.deterministic: use native",
        ["run.deterministic=false"],
    ),
    (
        ["rollout.engine=openai"],
        "rollout.servers is empty: name the server that openai asks",
        ["rollout.servers=[http://127.0.0.1:8000]"],
    ),
    (
        ["rollout.engine=llama_server", "rollout.servers=[http://127.0.0.1:8000]"],
        "rollout.servers would keep the weights that they were started with",
        ["rollout.servers=[]"],
    ),
    (
        ["rollout.engine=llama_server", "rollout.max_running=256"],
        "rollout.max_running 256 are more slots than llama.cpp has: use at most 255 for each server",
        ["rollout.max_running=255"],
    ),
    (
        ["rollout.engine=transformers", "regime.kv=keep"],
        "regime.kv 'keep' is not possible with transformers, which computes them anew",
        ["regime.kv=recompute"],
    ),
    (
        ["rollout.engine=transformers", "rollout.dtype=int8"],
        "rollout.dtype int8 is the native engine's",
        ["rollout.dtype=bfloat16"],
    ),
    (
        ["rollout.process=trainer", "rollout.replicas=2"],
        "rollout.replicas 2 engines do not fit into the trainer's process",
        ["rollout.process=own"],
    ),
    (
        ["run.deterministic=true", "rollout.replicas=3"],
        "rollout.replicas 3: which replica gets an answer depends on the clock",
        ["rollout.replicas=1"],
    ),
    (
        ["rollout.process=own", "rollout.options={threads: half}"],
        "rollout.options threads must be a whole number of at least 1, not 'half'",
        ["rollout.options={threads: 1}"],
    ),
    (
        ["rollout.engine=vllm", "rollout.dtype=int8"],
        "rollout.dtype int8 is the native engine's",
        ["rollout.dtype=bfloat16"],
    ),
]


@pytest.mark.parametrize(("overrides", "message", "mend"), CASES, ids=lambda v: v[:60] if isinstance(v, str) else "")
def test_refused_with_its_reason_until_mended(overrides, message, mend):
    assert f": {message}" in refused(overrides)
    load_recipe({}, [*DATA, *overrides, *mend])
    load_recipe({}, [*DATA, *overrides], check=False)


def test_an_option_that_the_native_engine_does_not_know_is_refused():
    message = "rollout.options thread is nothing that native knows (did you mean 'threads'?): threads"
    assert message in refused(["rollout.process=own", "rollout.options={thread: 2}"])


def test_every_check_is_exercised():
    hit = set()
    for overrides, _, _ in CASES:
        recipe = load_recipe({}, [*DATA, *overrides], check=False).recipe
        hit |= {check.__name__ for check in CHECKS if list(check(recipe))}
    assert hit == {check.__name__ for check in CHECKS}


def test_fixed_weights_are_trained_on_only_where_that_is_meant():
    servers = ["rollout.engine=openai", "rollout.servers=[http://127.0.0.1:8000]"]
    with pytest.raises(UserError, match=r"rollout.engine: openai cannot be given new weights"):
        refuse_training(load_recipe({}, [*DATA, *servers]).recipe)
    refuse_training(load_recipe({}, [*DATA, *servers, "rollout.allow_stale=true"]).recipe)
    refuse_training(load_recipe({}, DATA).recipe)


def test_a_generation_type_that_follows_another_is_not_blamed_twice():
    message = refused(["run.deterministic=true", "model.compute_dtype=bfloat16"])
    assert message.count("\n") == 0


def test_all_faults_are_told_at_once():
    message = refused(["rollout.group_size=1", "update.minibatches=99", "objective.tau_neg=2"])
    assert [line.split()[1] for line in message.splitlines()] == [
        "rollout.group_size",
        "update.minibatches",
        "objective.tau_neg",
    ]


def test_the_defaults_and_own_names_pass():
    assert refusals(Recipe(data=DataRecipe(train=["a"]))) == []
    mine = [
        "objective.estimator=mine",
        "objective.loss=my_loss",
        "objective.tau_pos=2",
        "objective.gamma=0.9",
    ]
    load_recipe({}, [*DATA, *mine, "rollout.group_size=1"])


def test_a_recipe_built_in_python_is_held_to_the_same_rules():
    data = DataRecipe(train=["a"])
    check_recipe(Recipe(data=data))
    with pytest.raises(UserError, match=r"recipe: rollout.group_size 1 gives"):
        check_recipe(Recipe(data=data, rollout=RolloutRecipe(group_size=1)))
    with pytest.raises(UserError, match=r"recipe: objective.lam is set, but objective.estimator = grpo"):
        check_recipe(Recipe(data=data, objective=ObjectiveRecipe(lam=0.9)))


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (["rollout.max_tokens=4"], "rollout.max_tokens = 4 cuts most answers before they end"),
        (
            ["update.warmup_steps=100"],
            "update.warmup_steps = 100 outlasts the run, which has 100 optimizer steps",
        ),
        (
            ["model.dtype=bfloat16"],
            "model.dtype = bfloat16 rounds away updates below 0.4 % of a weight: use float32",
        ),
        (["update.learning_rate=1e-3"], "update.learning_rate = 0.001 is high for training the full weights"),
        (["model.lora.rank=4"], "update.learning_rate = 1e-06 is low for adapters"),
        (
            ["objective.mask_truncated=true", "reward.overlong_buffer=0.5"],
            "reward.overlong_buffer = 0.5 punishes most at the cap, and objective.mask_truncated keeps those",
        ),
        (
            ["reward.parts=[{verifier: format}, {verifier: number}]"],
            "reward.parts[0].verifier = format is the first part, which says what counts as correct",
        ),
        (["objective.kl.coefficient=3"], "objective.kl.coefficient = 3 holds the policy at the reference"),
        (["objective.entropy=-0.1"], "objective.entropy = -0.1 rewards certainty"),
        (["objective.clip_high=0"], "objective.clip_high = 0 clips every ratio that rises at all"),
        (["data.eval=[a.jsonl]"], "data.eval holds a.jsonl, which is trained on: it is not held out"),
        (["checkpoint.every=0"], "checkpoint.every = 0 keeps nothing on the way"),
    ],
)
def test_what_is_probably_not_meant_is_said(overrides, warning):
    (found,) = warnings(load_recipe({}, [*DATA, *overrides]).recipe)
    assert found.startswith(warning)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_resumed_run_of_another_length_is_told_what_its_schedule_does(schedule):
    keys = [*DATA, f"update.schedule={schedule}"]
    old, new = (load_recipe({}, [*keys, f"run.steps={n}"]).recipe for n in (6, 9))
    assert of_resuming(old, old) == []
    told = of_resuming(old, new)
    assert len(told) == (schedule != "constant")
    assert all("run.steps was 6 and is now 9" in line and f"update.schedule = {schedule}" in line for line in told)


def test_no_doubts_about_the_defaults_or_adapters_at_their_rate():
    assert warnings(Recipe(data=DataRecipe(train=["a"]))) == []
    found = load_recipe({"model": {"lora": LoraRecipe().model_dump()}}, [*DATA, "update.learning_rate=1e-5"])
    assert warnings(found.recipe) == []


def test_the_anchor_is_live_exactly_where_nothing_needs_log_probs_before():
    assert anchor_needs(Recipe()) == []
    assert choose_anchor(Recipe()).kind == "live"
    asked = load_recipe({}, ["objective.anchor=recompute"], check=False).recipe
    assert choose_anchor(asked).kind == "recompute"
    assert "save a forward pass" in choose_anchor(asked).reason
    bypass = load_recipe({}, ["objective.anchor=rollout", "update.epochs=2"], check=False).recipe
    assert choose_anchor(bypass).kind == "rollout"
