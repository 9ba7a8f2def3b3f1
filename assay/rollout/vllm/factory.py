"""vLLM engines from a recipe: beside the trainer, as servers of our own, or at the addresses that it names."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from assay.errors import MissingExtra, UserError
from assay.http import check_urls
from assay.recipe.schema import Recipe
from assay.rollout.engine import Engine
from assay.rollout.fleet import Fleet, Replica
from assay.rollout.vllm.arguments import as_flags, logging_into, start_of, write_config
from assay.rollout.vllm.embedded import EmbeddedPort
from assay.rollout.vllm.engine import VllmEngine
from assay.rollout.vllm.launch import ServerProcess
from assay.rollout.vllm.lifeline import Lifeline
from assay.rollout.vllm.placement import devices_of, transfer_kind, visible
from assay.rollout.vllm.remote import PREFILL, pair_engine, remote_engine
from assay.rollout.vllm.served import ServedPort
from assay.rollout.vllm.workshop import Workshop

SERVES = {"enable_scale_out": True, "disable_uvicorn_access_log": True}
"""Flags of vLLM's server alone: its token-in, token-out route, and no line in the log for each request."""


def embedded_engine(recipe: Recipe, model: Any, tokenizer: Any, logs: Path | None = None) -> VllmEngine:
    """vLLM in the trainer's process tree, taking turns with it where both share a device.

    Raises UserError for options and ways of the weights that cannot work; vLLM starts with the first publish.
    """
    if find_spec("vllm") is None:
        raise MissingExtra("rollout.engine: vllm", "vllm", "vllm")
    shop = Workshop(recipe, model, tokenizer, logs)
    kind = transfer_kind(recipe.sync.backend, shop.device, shares_device=True, width=shop.width)
    stack = ExitStack()
    folder, lifeline = _home(shop, stack)
    start = start_of(recipe, shop.causal_lm, folder, shop.device, kind, shares_device=True)
    if start.python is not None:
        raise UserError("rollout.options.python: vllm runs in this environment; vllm_server takes another's")
    cuda = shop.device.startswith("cuda")
    log = (logs or folder) / "vllm.log"
    environment = {**start.environment, **lifeline.environment, **logging_into(log, folder)}
    port = EmbeddedPort(start.arguments, environment, log)
    sleeps = "asleep while it updates" if cuda else "no sleep on a CPU"
    path = f"vLLM beside the trainer, weights by {kind} ({sleeps})"
    transfer, sleeper = shop.transfer(kind, port, shop.width), port if cuda else None
    return shop.engine(port, transfer, path, sleeper=sleeper, on_close=stack.close)


def server_engines(recipe: Recipe, model: Any, tokenizer: Any, logs: Path | None = None) -> Engine:
    """The servers that the recipe names, or ``rollout.replicas`` of our own, as one engine.

    A server of our own that is lost is started anew, where the weights last published can still be had: not those that
    go from device to device while the trainer runs ahead.
    """
    shop, rollout = Workshop(recipe, model, tokenizer, logs), recipe.rollout
    if rollout.servers:
        urls = check_urls(rollout.servers, "rollout.servers")
        prefill = rollout.options.get(PREFILL)
        if prefill is not None and len(urls) != 1:
            raise UserError("rollout.options.prefill: goes with one address in rollout.servers, which decodes")
        engines = [pair_engine(shop, str(prefill), url) if prefill else remote_engine(shop, url) for url in urls]
        return Fleet([Replica(*it) for it in zip(urls, engines, strict=True)], retries=rollout.max_retries)
    replicas: list[Replica] = []
    for number in range(rollout.replicas):
        engine, can_restart = server_engine(shop, number), _restarts(shop, number)
        again = partial(_again, shop, number) if can_restart else None
        replicas.append(Replica(f"vLLM server {number + 1}", engine, again))
    return Fleet(replicas, retries=rollout.max_retries)


def server_engine(shop: Workshop, number: int = 0) -> VllmEngine:
    """The ``number``-th server of our own, from 0; it is starting when this returns."""
    devices, shares, kind = _place(shop, number)
    stack = ExitStack()
    folder, lifeline = _home(shop, stack)
    start = start_of(shop.recipe, shop.causal_lm, folder, shop.device, kind, shares_device=shares)
    environment = {**start.environment, **lifeline.environment}
    if devices:
        environment.setdefault("CUDA_VISIBLE_DEVICES", visible(devices))
    process = ServerProcess(
        as_flags({**start.arguments, **SERVES}),
        environment,
        (shop.logs or folder) / f"vllm-{number + 1}.log",
        start.python,
    )
    port = ServedPort(process.url, process, shop.recipe.rollout.timeout_s)
    transfer, sleeper = shop.transfer(kind, port, shop.width), port if devices == (0,) else None
    return shop.engine(port, transfer, f"a vLLM server, weights by {kind}", sleeper=sleeper, on_close=stack.close)


async def _again(shop: Workshop, number: int) -> Engine:
    return server_engine(shop, number)


def _place(shop: Workshop, number: int) -> tuple[tuple[int, ...], bool, Any]:
    """(Devices of a server of our own, whether it shares the trainer's, the way of its weights)."""
    devices: tuple[int, ...] = ()
    if shop.device.startswith("cuda"):
        devices = devices_of(number, shop.width, torch.cuda.device_count())
    shares = not devices or devices == (0,)
    kind = transfer_kind(shop.recipe.sync.backend, shop.device, shares_device=shares, width=shop.width)
    return devices, shares, kind


def _restarts(shop: Workshop, number: int) -> bool:
    _, _, kind = _place(shop, number)
    return kind in ("shared_memory", "file") or shop.recipe.regime.max_staleness == 0


def _home(shop: Workshop, stack: ExitStack) -> tuple[Path, Lifeline]:
    """A folder for one vLLM, with the model's configuration, and what ties its life to ours; ``stack`` ends both."""
    folder = Path(tempfile.mkdtemp(prefix="assay-vllm-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    lifeline = Lifeline(folder)
    stack.callback(lifeline.release)
    return write_config(shop.causal_lm, folder), lifeline
