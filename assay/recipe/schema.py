"""The one configuration, a frozen pydantic tree: a key's docstring documents it, its default is the truth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Precision = Literal["float32", "bfloat16"]
RolloutPrecision = Literal["float32", "bfloat16", "int8"]
DriftAction = Literal["warn", "publish", "sync", "rollback"]


class Section(BaseModel):
    """A frozen part of the recipe that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class LoraRecipe(Section):
    """Train low-rank adapters (peft) in place of the full weights."""

    rank: int = Field(default=16, ge=1)
    """Rank of each adapter."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters: alpha / rank."""
    targets: str | list[str] = "all-linear"
    """Module names to adapt, or ``all-linear``."""
    export: Literal["merged", "adapter"] = "merged"
    """What the exported folder holds: the whole model with adapters merged, or the adapter alone."""


class ModelRecipe(Section):
    """The policy: a Hugging Face causal language model."""

    path: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    """A folder of a model, of adapters or of a run, or a name on the hub; ``demo`` is the packaged
    SmolLM2-135M-Instruct (`assay fetch`)."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer where it is not the model's own."""
    chat_template: str | None = None
    """Path of a Jinja template that replaces the tokenizer's."""
    trust_remote_code: bool = False
    """Run code that comes with the model. Only for models you trust."""
    dtype: Precision = "float32"
    """Precision of the master weights, gradients and optimizer state."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the matrix products in training (autocast over the masters); ``auto``: bfloat16 where the
    machine has instructions for it, else float32."""
    device: str = "auto"
    """``auto`` (cuda, else mps, else cpu), or a torch device."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more compute."""
    lora: LoraRecipe | None = None
    """Low-rank adaptation; full fine-tuning when absent."""


class DataRecipe(Section):
    """Prompts to train on and to be held out."""

    train: list[str] = Field(default_factory=list)
    """Files (jsonl, json, parquet, csv), dataset folders, hub names (``hub:NAME[:CONFIG][@SPLIT]``), or
    ``reasoning_gym:NAME{"size": 1000, ...}``."""
    eval: list[str] = Field(default_factory=list)
    """Held-out prompts, in the same forms; or leave it empty and let ``holdout`` split them off ``train``."""
    holdout: int = Field(default=0, ge=0)
    """How many distinct *problems* (not rows) to hold out of the training data, in every wording."""
    format: Literal["auto", "trl", "verl", "open_instruct"] = "auto"
    """Column conventions; ``auto`` recognises them by their columns."""
    prompt: str = "prompt"
    """The column that holds the prompt: text, or a list of messages."""
    completion: str = "completion"
    """The column with the text to imitate (`assay sft`)."""
    system: str | None = None
    """A system message put before every prompt that has none."""
    suffix: str = ""
    """Text appended to every last user message, such as an answer format."""
    template: Literal["auto", "chat", "none"] = "auto"
    """Render with the chat template, or feed the text as it is; ``auto``: chat where there is a template."""
    enable_thinking: bool | None = None
    """Passed to chat templates that know it (Qwen3); absent: the template's own default."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Prompts longer than this are never cut: see ``overlong``."""
    overlong: Literal["skip", "refuse"] = "skip"
    """What becomes of prompts that are too long: counted and skipped, or the run is refused."""
    shuffle: bool = True
    """A new order each epoch, a function of ``run.seed`` and the epoch alone."""


class ThinkingRecipe(Section):
    """A thinking budget: a longer thinking span is closed with forced tokens, and the answer is asked for."""

    budget: int = Field(default=1024, ge=1)
    """Tokens of thinking."""
    close: str = "\n</think>\n\n"
    """What closes the span; its tokens are forced, and never trained on."""


class RolloutRecipe(Section):
    """How answers are sampled."""

    engine: Literal["native", "transformers", "vllm", "vllm_server", "llama_server", "openai"] = "native"
    """The sampler. ``native``: Assay's own, on the trainer's weights; ``transformers``: plain ``generate``, slow;
    ``vllm``: beside the trainer; ``vllm_server``, ``llama_server``: over HTTP; ``openai``: any endpoint, as it is."""
    process: Literal["auto", "trainer", "own"] = "auto"
    """Where ``native`` runs; ``auto``: in the trainer's process, or in its own where it may run ahead of it."""
    replicas: int = Field(default=1, ge=1)
    """Engines that are started, each a process."""
    servers: list[str] = Field(default_factory=list)
    """Addresses of running servers, such as ``http://127.0.0.1:8000``; empty: servers are started."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the engine as they are, such as ``{tensor_parallel_size: 2, quantization: fp8}`` to vLLM."""
    allow_stale: bool = False
    """Train although the engine's weights are fixed (``openai``): it never samples from the policy as it is."""
    timeout_s: float = Field(default=300.0, gt=0)
    """An engine that is silent for this long while it has work is taken for dead."""
    oversample: int = Field(default=0, ge=0)
    """Rollouts started in a group beyond ``group_size``; the slowest are cancelled, which favours short answers."""
    thinking: ThinkingRecipe | None = None
    """Bound on the thinking span; absent: none."""
    prompts_per_step: int = Field(default=16, ge=1)
    """Groups in a training step."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts of each prompt."""
    max_tokens: int = Field(default=256, ge=1)
    """Longest answer; one that reaches it has finish reason ``length``."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature; the training log-probs are those of logits / temperature."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling. Below 1 only in evaluation: training on a cut distribution is refused."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Keep tokens at least this share of the likeliest one's probability."""
    dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    """Precision of generation; ``auto``: ``model.compute_dtype``. ``int8``: 8-bit matrix products on the CPU."""
    max_running: int = Field(default=128, ge=1)
    """Answers generated at once."""
    graphs: bool = True
    """Replay decoding steps as CUDA graphs, on such a device: faster, for some memory. Of the native engine."""
    dynamic_sampling: bool = False
    """Replace groups without signal (all right, all wrong) by more prompts until the step is full (DAPO)."""
    max_extra_groups: int | None = Field(default=None, ge=0)
    """Bound on replacements in a step, which then runs with what it has; absent: ``2 * prompts_per_step``."""
    max_retries: int = Field(default=1, ge=0)
    """How often a rollout is sampled anew whose verdict was invalid (the verifier's fault), or goes on elsewhere when
    its engine is lost."""


class Gate(Section):
    """What must hold for a reward part to count."""

    part: str
    """Name of an earlier part."""
    at_least: float = 1.0
    """The least score of that part."""


class RewardPart(Section):
    """One verifier in the weighted sum that is the reward."""

    verifier: str
    """A built-in name, or ``path/to/file.py:function`` with TRL's or verl's signature."""
    weight: float = 1.0
    """Its factor in the sum."""
    name: str | None = None
    """Its name in metrics; absent: the verifier's."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the verifier itself."""
    when: Gate | None = None
    """The part counts only when another part's score reaches a threshold: ``{part: math, at_least: 1}``."""
    rows: list[str] = Field(default_factory=list)
    """Values of ``reward.verifier_column`` whose rows this part judges; empty: every row."""


class WatchPart(Section):
    """A verifier that is scored beside the reward and is no part of it: what the policy cannot learn to please."""

    verifier: str
    """A built-in name, or ``path/to/file.py:function`` with TRL's or verl's signature."""
    name: str | None = None
    """Its name in metrics, after ``watch/``; absent: the verifier's."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the verifier itself."""


class RewardRecipe(Section):
    """How answers are judged."""

    parts: list[RewardPart] = Field(default_factory=lambda: [RewardPart(verifier="number")], min_length=1)
    """Weighted sum; the first part that judges a row also says what counts as correct."""
    combine: Literal["sum", "product"] = "sum"
    """``sum`` of weight times score, or the ``product`` of the scores."""
    verifier_column: str | None = None
    """Column that names, for each row, the part or parts (a list) that judge it: for each name the first part
    with it among its ``rows``."""
    watch: list[WatchPart] = Field(default_factory=list)
    """Verifiers held out of the reward, such as a stricter one: an alarm tells when only the reward rises."""
    gold: str = "answer"
    """The column with the right answer."""
    overlong_buffer: float = Field(default=0.0, ge=0, le=1)
    """DAPO's soft punishment: it grows to ``overlong_penalty`` over this last share of ``max_tokens``."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """The punishment at the cap."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Time for one verdict, measured in the worker that gives it."""
    workers: int = Field(default=1, ge=1)
    """Worker processes."""
    max_invalid: float = Field(default=0.5, ge=0, le=1)
    """A step in which more than this share of verdicts is invalid stops the run with the reason."""


class KlRecipe(Section):
    """The leash to the reference model."""

    coefficient: float = Field(default=0.0, ge=0)
    """0: no reference model is loaded."""
    estimator: Literal["k1", "k2", "k3", "abs", "k1+", "k2+", "k3+", "abs+"] = "k3"
    """Per-token estimate; a trailing ``+`` keeps the value and takes k2's gradient."""
    where: Literal["loss", "reward"] = "loss"
    """Added to the loss, or subtracted from the token rewards before advantages."""
    controller: Literal["fixed", "adaptive"] = "fixed"
    """``adaptive`` steers the coefficient towards ``target`` (Ziegler et al. 2019)."""
    target: float = Field(default=0.1, gt=0)
    """The mean KL per token that the adaptive controller holds."""
    horizon: int = Field(default=10000, ge=1)
    """How many rollouts the adaptive controller takes to react."""


class CorrectionRecipe(Section):
    """For a sampler that is not the anchor: weights exp(anchor - sampler)."""

    kind: Literal["none", "truncate", "mask"] = "none"
    """``truncate``: min(w, high) (TIS). ``mask``: tokens with w outside [low, high] are rejected (IcePop)."""
    level: Literal["token", "sequence"] = "token"
    """A weight per token, or the product over the sequence."""
    low: float = Field(default=0.5, ge=0)
    """Lower edge of the mask."""
    high: float = Field(default=2.0, gt=0)
    """Cap of the weight, or upper edge of the mask."""
    reject_low: float | None = Field(default=None, ge=0)
    """Sequences whose geometric-mean weight is below this are rejected; absent: no lower edge."""
    reject_high: float | None = Field(default=None, gt=0)
    """Sequences whose geometric-mean weight is above this are rejected; absent: no upper edge."""


class ObjectiveRecipe(Section):
    """The mathematics of the update, in its order: advantage, anchor, ratio, loss, sums, KL, correction."""

    estimator: str = "grpo"
    """How rewards become advantages."""
    scale: Literal["group", "batch", "none"] = "group"
    """For ``grpo`` and ``passk``: what divides the centred reward."""
    eps: float = Field(default=1e-6, ge=0)
    """Added to that standard deviation."""
    min_std: float = Field(default=1e-8, ge=0)
    """A smaller standard deviation gives advantage 0: a tiny one must not amplify noise."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of token rewards (``reinforce++``, ``gae``)."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's lambda."""
    anchor: Literal["auto", "live", "recompute", "rollout"] = "auto"
    """Whose log-probs the ratio divides by."""
    ratio: Literal["token", "sequence"] = "token"
    """Importance ratio per token, or GSPO's per sequence."""
    loss: str = "clip"
    """The policy loss."""
    clip_low: float = Field(default=0.2, ge=0)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound of the loss for negative advantages at very large ratios."""
    tau_pos: float = Field(default=1.0, gt=0)
    """SAPO's temperature for positive advantages."""
    tau_neg: float = Field(default=1.05, gt=0)
    """SAPO's temperature for negative advantages."""
    aggregation: Literal["token", "sequence", "sequence_sum", "constant", "prompt"] = "token"
    """How per-token losses become one number."""
    constant_tokens: int | None = Field(default=None, ge=1)
    """Dr. GRPO's constant; absent: ``rollout.max_tokens``."""
    mask_truncated: bool = False
    """Answers cut at the cap leave numerator and denominator; their reward still moves the baseline."""
    kl: KlRecipe = KlRecipe()
    """The KL term."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus."""
    correction: CorrectionRecipe = CorrectionRecipe()
    """Importance weights for the sampler's mismatch."""


class UpdateRecipe(Section):
    """The optimizer, and how a batch is walked."""

    learning_rate: float = Field(default=1e-6, gt=0)
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear warm-up."""
    min_ratio: float = Field(default=0.0, ge=0, le=1)
    """The schedule ends at this share of the peak."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled; on matrices only."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Adam's first moment."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Adam's second moment."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """Adam's epsilon."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Gradient clipping by global norm; ``null``: none."""
    epochs: int = Field(default=1, ge=1)
    """How often a batch is used."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per epoch over the batch. With 1 x 1 the ratio is 1 and the clip is idle."""
    tokens_per_microbatch: int = Field(default=4096, ge=1)
    """Tokens forwarded at once; never changes the update, only memory and speed: on a CPU 1024 is as fast as 4096 in
    half of the memory, a GPU wants more."""
    head_chunk: int = Field(default=1024, ge=1)
    """Scored tokens whose logits exist at one time."""
    share_prompts: bool = True
    """Forward each group's prompt once, its responses attending to it, and what prompts begin with once for several."""


class RegimeRecipe(Section):
    """How far generation may run ahead of training: one number, one code path."""

    max_staleness: int | None = Field(default=0, ge=0)
    """Versions that the oldest token of a rollout may be old when it is trained on. 0: synchronous; ``null``: any,
    bounded by ``max_groups`` and the drift monitor."""
    max_groups: int | None = Field(default=None, ge=1)
    """Groups in the making or waiting to be trained on, at most; absent: what ``max_staleness`` admits."""
    in_flight: bool = True
    """New weights under running answers; false: answers are finished under the weights they began with."""
    kv: Literal["recompute", "keep"] = "recompute"
    """Keys and values of running answers at new weights; ``keep`` is cheaper and inexact."""


class SyncRecipe(Section):
    """The way of the weights to the engine."""

    every: Annotated[int, Field(ge=1)] | Literal["drift"] = 1
    """Publish each so many versions; ``drift``: when the drift monitor's KL or ``max_staleness`` asks for it."""
    backend: Literal["auto", "nccl", "ipc", "shared_memory", "file"] = "auto"
    """How vLLM gets weights; ``auto``: as the devices allow."""
    gguf: Literal["f16", "bf16", "q8_0"] = "f16"
    """Precision of the weights that ``llama_server`` is given."""


class DriftRecipe(Section):
    """Watching how far the policy has moved from the one that samples, before each publish: thresholds, and what is
    done beyond them. ``warn``: say so; ``publish``: hand the weights over now; ``sync``: and go on at staleness 0;
    ``rollback``: to the weights and the optimizer of the last good checkpoint."""

    kl: float | None = Field(default=None, gt=0)
    """Nats per token: KL(sampling policy, moved policy) of the whole vocabulary, on answers sampled once."""
    kl_action: DriftAction = "warn"
    """Beyond ``kl``."""
    ess: float | None = Field(default=None, gt=0, lt=1)
    """Least effective sample size of a step's sequence weights, over their number."""
    ess_action: DriftAction = "warn"
    """Below ``ess``."""
    surprise: float | None = Field(default=None, gt=0)
    """Standard deviations of the log gradient norm above its running mean."""
    surprise_action: DriftAction = "warn"
    """Beyond ``surprise``."""


class EvalRecipe(Section):
    """Held-out evaluation."""

    every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0: only before and after."""
    samples: int = Field(default=8, ge=0)
    """Sampled answers per prompt for mean@n, pass@k and majority@k; 0: greedy only."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of the sampled answers."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first prompts."""
    before: bool = True
    """Evaluate the untrained model too."""
    after: bool = True
    """Evaluate the final model."""


class CheckpointRecipe(Section):
    """What is kept to resume from."""

    every: int = Field(default=10, ge=0)
    """Steps between checkpoints; 0: only at the end and on interruption."""
    keep_last: int = Field(default=1, ge=1)
    """Most recent checkpoints kept."""
    keep_best: bool = True
    """Also keep the one with the best held-out accuracy: `assay export RUN` makes a model of it."""


class TrackRecipe(Section):
    """What a run shows and writes beside metrics.jsonl."""

    trackers: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = Field(default_factory=list)
    """Experiment trackers, when installed."""
    project: str = "assay"
    """The trackers' project or experiment name."""
    samples_every: int = Field(default=5, ge=0)
    """Steps between sample completions on the console; 0: none."""
    rollouts: bool = True
    """Write every completion to the run's ``rollouts/`` folder."""


class RunRecipe(Section):
    """The run itself."""

    name: str | None = None
    """Name of the run; absent: the recipe's file name and the time."""
    folder: str = "runs"
    """Where run folders are made."""
    steps: int = Field(default=100, ge=1)
    """Training steps."""
    seed: int = 0
    """Of the data order, the sampling and the adapters' initial values."""
    deterministic: bool = False
    """Bit-for-bit: float32, fixed threads, every batch's make-up a function of indices alone."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads for torch; absent: torch's own choice (deterministic: 1)."""
    kernels: bool = True
    """On a CPU, small loops compiled for it where there is a C compiler; ``false``: torch's own operations, slower."""


class Recipe(Section):
    """Everything that decides a run."""

    preset: str | None = None
    """Objective of a paper: grpo, dr_grpo, dapo, gspo, rloo, cispo, olmo3, reinforce++."""
    model: ModelRecipe = ModelRecipe()
    """The policy."""
    data: DataRecipe = DataRecipe()
    """Prompts."""
    rollout: RolloutRecipe = RolloutRecipe()
    """Sampling."""
    reward: RewardRecipe = RewardRecipe()
    """Verdicts."""
    objective: ObjectiveRecipe = ObjectiveRecipe()
    """Advantage and loss."""
    update: UpdateRecipe = UpdateRecipe()
    """Optimizer."""
    regime: RegimeRecipe = RegimeRecipe()
    """Synchronous or asynchronous."""
    sync: SyncRecipe = SyncRecipe()
    """Weights to the engine."""
    drift: DriftRecipe = DriftRecipe()
    """Thresholds and actions."""
    eval: EvalRecipe = EvalRecipe()
    """Held-out evaluation."""
    checkpoint: CheckpointRecipe = CheckpointRecipe()
    """Checkpoints."""
    track: TrackRecipe = TrackRecipe()
    """Visibility."""
    run: RunRecipe = RunRecipe()
    """Name, length, seed."""
    profile: bool = False
    """Record what torch does in two steps: a trace and a table of costs in the run's ``profile/`` folder."""

    @classmethod
    def from_file(cls, path: str | Path, *overrides: str) -> Recipe:
        """Read a recipe file with ``key=value`` overrides. Raises UserError: see ``assay.recipe.load``."""
        from assay.recipe.load import load_recipe

        return load_recipe(path, overrides).recipe

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """Read a recipe from a mapping, as a file would hold it, preset included. Raises UserError."""
        from assay.recipe.load import load_recipe

        return load_recipe(values).recipe
