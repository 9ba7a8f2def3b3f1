"""Servers that somebody else runs: what they say of themselves, held to what training needs."""

from __future__ import annotations

from typing import Any

from assay.errors import UserError
from assay.http import reason
from assay.recipe.schema import Recipe
from assay.rollout.vllm.engine import VllmEngine
from assay.rollout.vllm.placement import transfer_kind
from assay.rollout.vllm.served import ServedPort, httpx2
from assay.rollout.vllm.transfer import SHARED_MEMORY, Kind, backend_name
from assay.rollout.vllm.workshop import Workshop

ASK_S = 60.0
HOW_TO_SERVE = (
    "start it as `VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs "
    '--weight-transfer-config \'{"backend": "nccl"}\'` (docs/engines.md)'
)


def remote_engine(shop: Workshop, url: str) -> VllmEngine:
    """The server at ``url``. Raises UserError when it is not there or not set up for training."""
    config = served_config(url)
    model, parallel = config.get("model_config") or {}, config.get("parallel_config") or {}
    backend = (config.get("weight_transfer_config") or {}).get("backend")
    if model.get("logprobs_mode") != "processed_logprobs":
        mode = model.get("logprobs_mode")
        raise UserError(f"rollout.servers: {url} gives log-probs in the mode {mode!r}: {HOW_TO_SERVE}")
    kind = served_kind(shop.recipe, backend, shop.device, url)
    port = ServedPort(url, None, shop.recipe.rollout.timeout_s)
    width = int(parallel.get("world_size") or 1)
    return shop.engine(port, kind, f"vLLM at {url}", width=width, context=int(model["max_model_len"]))


def served_kind(recipe: Recipe, backend: str | None, device: str, url: str) -> Kind:
    """The way that a running server takes weights by. Raises UserError when it takes none that we can send.

    >>> served_kind(Recipe(), "assay_file", "cpu", "http://127.0.0.1:8000")
    'shared_memory'
    """
    if backend is None:
        raise UserError(f"rollout.servers: {url} takes no weights: {HOW_TO_SERVE}")
    if backend == "nccl" or backend == "ipc":
        return transfer_kind(backend, device, shares_device=backend == "ipc")
    if backend != backend_name("file"):
        raise UserError(f"rollout.servers: {url} takes weights by {backend!r}, unknown here: {HOW_TO_SERVE}")
    return "file" if recipe.sync.backend == "file" or not SHARED_MEMORY.is_dir() else "shared_memory"


def served_config(url: str) -> dict[str, Any]:
    """vLLM's configuration as the server tells it in development mode. Raises UserError where it does not."""
    try:
        response = httpx2.get(f"{url}/server_info?config_format=json", timeout=ASK_S, trust_env=False)
    except httpx2.HTTPError as error:
        raise UserError(f"rollout.servers: nothing answers at {url} ({reason(error)})") from error
    if response.status_code != 200:
        raise UserError(f"rollout.servers: {url} answers {response.status_code} to /server_info: {HOW_TO_SERVE}")
    return response.json()["vllm_config"]
