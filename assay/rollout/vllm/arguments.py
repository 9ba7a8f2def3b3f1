"""What vLLM is started with: the recipe's settings as its own engine arguments, ``rollout.options`` laid over them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import UserError
from assay.recipe.derived import generation_dtype
from assay.recipe.schema import Recipe
from assay.rollout.vllm.transfer import Kind, backend_name

URGENT = 8
"""Slots of vLLM beyond ``rollout.max_running``, for requests that do not wait."""
EXTENSION = "assay.rollout.vllm.worker.WorkerExtension"
FEW_CORES = 8
"""Up to so many cores a vLLM on a CPU keeps scheduler and worker in one process. In two they wait for each other by
running in circles: on two cores nothing is left then for its threads, nor for the server that hands the tokens on."""
OURS = frozenset({"python", "environment", "devices"})
"""Keys of ``rollout.options`` that say how a vLLM is started, and are no arguments of its own."""
DECIDED = {
    "logprobs_mode": "log-probs would not be those of the distribution that is sampled from",
    "model": "it serves the policy: set model.path",
    "dtype": "set rollout.dtype",
    "max_num_seqs": "set rollout.max_running",
    "seed": "set run.seed",
    "host": "servers listen on this machine alone: start your own and name it in rollout.servers",
    "port": "a free one is taken: start a server of your own and name it in rollout.servers",
    "weight_transfer_config": "set sync.backend",
    "worker_extension_cls": "Assay's own takes weights, and ends vLLM with the run",
    "enable_lora": "adapters are merged into the weights that are sent",
    "api_key": "servers of our own listen on this machine alone",
}
"""Arguments that the recipe decides elsewhere, each with what to do instead."""


@dataclass(frozen=True)
class Start:
    """How to start a vLLM."""

    arguments: Mapping[str, Any]
    """vLLM's engine arguments by their names in Python."""
    environment: Mapping[str, str]
    """Variables for its processes."""
    python: str | None = None
    """The interpreter of an environment that has vLLM; ``None``: this one."""


def start_of(recipe: Recipe, model: Any, folder: Path, device: str, kind: Kind, *, shares_device: bool) -> Start:
    """How to start a vLLM that serves ``model``, whose config lies in ``folder``, for a trainer on ``device``.

    ``shares_device``: trainer and vLLM take turns on one device, so that it sleeps during an update. Raises UserError
    for an option that is decided elsewhere.
    """
    options = dict(recipe.rollout.options)
    for name in options:
        if name.replace("-", "_") in DECIDED:
            raise UserError(f"rollout.options.{name} is not yours to set: {DECIDED[name.replace('-', '_')]}")
    ours = {name: options.pop(name) for name in OURS & options.keys()}
    cuda = device.startswith("cuda")
    arguments: dict[str, Any] = {
        "model": str(folder),
        "dtype": generation_dtype(recipe),
        "load_format": "dummy",  # the weights come with the first publish
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "max_num_seqs": recipe.rollout.max_running + URGENT,
        "max_model_len": context_of(recipe, model),
        "enable_prefix_caching": True,
        "seed": recipe.run.seed,
        "trust_remote_code": recipe.model.trust_remote_code,
        "weight_transfer_config": {"backend": backend_name(kind)},
        "worker_extension_cls": EXTENSION,
    }
    if cuda and shares_device:
        arguments |= {"enable_sleep_mode": True, "gpu_memory_utilization": 0.5}
    if not cuda:
        # a prompt read in parts ends vLLM's CPU worker where answers have seeds of their own
        arguments |= {"enforce_eager": True, "block_size": 32, "enable_chunked_prefill": False}
        arguments["kv_cache_memory_bytes"] = cache_bytes(recipe, model)
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",  # the routes of weight updates
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_linked(folder)), os.environ.get("PYTHONPATH", "")])),
    }
    if kind == "ipc":
        environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # vLLM pickles device handles
    if not cuda:
        environment["TORCHDYNAMO_DISABLE"] = "1"  # nothing is compiled in eager mode but a helper, for seven seconds
    if not cuda and (os.cpu_count() or 1) <= FEW_CORES:
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the worker lives in the scheduler's process
    environment |= {str(name): str(value) for name, value in dict(ours.get("environment") or {}).items()}
    if ours.get("devices") is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(ours["devices"])
    spelled = {name.replace("-", "_"): value for name, value in options.items()}
    return Start(arguments | spelled, environment, ours.get("python"))


def context_of(recipe: Recipe, model: Any) -> int:
    """vLLM's context: what the longest prompt and answer need, as far as the model has it."""
    given = recipe.rollout.options.get("max_model_len", recipe.rollout.options.get("max-model-len"))
    if isinstance(given, int):
        return given
    needed = recipe.data.max_prompt_tokens + recipe.rollout.max_tokens
    has = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return needed if has is None else min(needed, has)


def cache_bytes(recipe: Recipe, model: Any) -> int:
    """Memory for keys and values on a CPU: all that may run at their longest, within an eighth of the machine's."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 32)
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 4096) // config.num_attention_heads
    layers = getattr(config, "num_hidden_layers", 32)
    per_token = 2 * layers * heads * size * (4 if generation_dtype(recipe) == "float32" else 2)
    one = per_token * context_of(recipe, model)
    wanted = one * (recipe.rollout.max_running + URGENT)
    return max(min(wanted, _memory() // 8), 2 * one, 64 << 20)


def as_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as vLLM's command line has them.

    >>> as_flags({"max_num_seqs": 4, "enforce_eager": True, "async_scheduling": False, "hf_overrides": {"a": 1}})
    ['--max-num-seqs=4', '--enforce-eager', '--no-async-scheduling', '--hf-overrides={"a": 1}']
    """
    flags: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if value is True or value is False:
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            flags.append(f"--{flag}={json.dumps(value) if isinstance(value, dict | list) else value}")
    return flags


def write_config(model: Any, folder: Path) -> Path:
    """The model's configuration as a folder that vLLM reads; weights and tokenizer it needs none."""
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    config.pop("quantization_config", None)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, default=str), encoding="utf-8")
    return folder


def logging_into(log: Path, folder: Path) -> dict[str, str]:
    """Variables that have vLLM write its log into a file, not among what the run shows."""
    settings = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s %(processName)s %(levelname)s %(message)s"}},
        "handlers": {"file": {"class": "logging.FileHandler", "filename": str(log), "formatter": "plain"}},
        "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
    }
    path = folder / "logging.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    return {"VLLM_LOGGING_CONFIG_PATH": str(path)}


def first_line(error: object) -> str:
    """The first line of a message that says something, cut to a length that can be read.

    >>> first_line(ValueError("1 validation error for ModelConfig\\n  Value error, no such quantization\\n"))
    'Value error, no such quantization'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "validation error" not in line] or lines or [type(error).__name__]
    return telling[0][:300]


def last_error(log: Path) -> str:
    """The last line of a log that names an error, and where the log is."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    telling = [line.strip() for line in text.splitlines() if "Error" in line]
    return f"({telling[-1][-300:] + '; ' if telling else ''}log: {log})"


def _memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _linked(folder: Path) -> Path:
    """A folder with this package and nothing else, for an interpreter of another environment, which has its own."""
    packages = folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    if not (packages / "assay").exists():
        (packages / "assay").symlink_to(Path(__file__).resolve().parents[2], target_is_directory=True)
    return packages
