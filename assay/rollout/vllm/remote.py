"""Servers that somebody else runs: what they say of themselves, held to what training needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.errors import UserError
from assay.http import check_urls, reason
from assay.recipe.schema import Recipe
from assay.rollout.vllm.disaggregated import BothWays, DisaggregatedPort
from assay.rollout.vllm.engine import VllmEngine
from assay.rollout.vllm.placement import transfer_kind
from assay.rollout.vllm.served import ServedPort, httpx2
from assay.rollout.vllm.transfer import SHARED_MEMORY, Kind, Transfer, backend_name
from assay.rollout.vllm.workshop import Workshop

ASK_S = 60.0
HOW_TO_SERVE = (
    "start it as `VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs "
    '--weight-transfer-config \'{"backend": "nccl"}\'` (docs/engines.md)'
)


PREFILL = "prefill"
"""Key of ``rollout.options``: the server that prefills for the one of ``rollout.servers``."""


@dataclass(frozen=True)
class Remote:
    """A server that was asked what it is."""

    port: ServedPort
    transfer: Transfer
    kind: Kind
    context: int


def remote_engine(shop: Workshop, url: str) -> VllmEngine:
    """The server at ``url``. Raises UserError when it is not there or not set up for training."""
    it = _asked(shop, url)
    return shop.engine(it.port, it.transfer, f"vLLM at {url}, weights by {it.kind}", context=it.context)


def pair_engine(shop: Workshop, prefill: str, decode: str) -> VllmEngine:
    """A pair of servers, of which the first prefills and the second decodes; raises as `remote_engine` does."""
    (first,) = check_urls([prefill], f"rollout.options.{PREFILL}")
    one, other = _asked(shop, first), _asked(shop, decode)
    path = f"vLLM, prefill at {first} and decoding at {decode}, weights by {other.kind}"
    port, transfer = DisaggregatedPort(one.port, other.port), BothWays(one.transfer, other.transfer)
    return shop.engine(port, transfer, path, context=min(one.context, other.context))


def _asked(shop: Workshop, url: str) -> Remote:
    config = served_config(url)
    model, parallel = config.get("model_config") or {}, config.get("parallel_config") or {}
    backend = (config.get("weight_transfer_config") or {}).get("backend")
    if model.get("logprobs_mode") != "processed_logprobs":
        mode = model.get("logprobs_mode")
        raise UserError(f"rollout.servers: {url} gives log-probs in the mode {mode!r}: {HOW_TO_SERVE}")
    kind = served_kind(shop.recipe, backend, shop.device, url)
    port = ServedPort(url, None, shop.recipe.rollout.timeout_s)
    transfer = shop.transfer(kind, port, int(parallel.get("world_size") or 1))
    return Remote(port, transfer, kind, int(model["max_model_len"]))


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
