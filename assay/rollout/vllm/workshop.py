"""What the vLLM engines of one run share: model, tokenizer, the shelf of weights, and how an engine is put together."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from assay.recipe.derived import generation_dtype
from assay.recipe.schema import Recipe
from assay.rollout.engine import Limits
from assay.rollout.native import stop_tokens
from assay.rollout.vllm.arguments import context_of
from assay.rollout.vllm.delivery import Delivery
from assay.rollout.vllm.engine import VllmEngine
from assay.rollout.vllm.port import Control, Port, Sleeper
from assay.rollout.vllm.transfer import SHARED_MEMORY, DeviceTransfer, FileTransfer, Kind, Shelf, Transfer
from assay.rollout.weights import causal_lm_of


@dataclass
class Workshop:
    """Puts engines together."""

    recipe: Recipe
    model: Any
    """The trainer's module, adapters on it or not."""
    tokenizer: Any
    logs: Path | None = None
    """Where servers write their logs; absent: a folder of their own, which goes when they end well."""
    shelf: Shelf | None = None
    """Made when the first engine wants it."""

    @property
    def causal_lm(self) -> Any:
        """The Hugging Face model itself."""
        return causal_lm_of(self.model)

    @property
    def device(self) -> str:
        """The trainer's."""
        return str(next(self.model.parameters()).device)

    @property
    def width(self) -> int:
        """Workers that a vLLM of ours is spread over."""
        options = {name.replace("-", "_"): value for name, value in self.recipe.rollout.options.items()}
        return int(options.get("tensor_parallel_size", 1)) * int(options.get("pipeline_parallel_size", 1))

    def engine(
        self,
        port: Port,
        transfer: Transfer,
        path: str,
        *,
        sleeper: Sleeper | None = None,
        context: int | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> VllmEngine:
        """An engine over ``port`` that is given weights by ``transfer``."""
        rollout = self.recipe.rollout
        return VllmEngine(
            port,
            Delivery(port, transfer, sleeper=sleeper, keep_cache=self.recipe.regime.kv == "keep"),
            self.tokenizer,
            stop=stop_tokens(self.causal_lm, self.tokenizer),
            limits=Limits(context or context_of(self.recipe, self.causal_lm), rollout.max_running),
            path=path,
            timeout_s=rollout.timeout_s,
            on_close=on_close,
        )

    def transfer(self, kind: Kind, control: Control, width: int) -> Transfer:
        """The way ``kind`` to the ``width`` workers behind ``control``."""
        dtype = getattr(torch, generation_dtype(self.recipe))
        if kind == "nccl" or kind == "ipc":
            address = os.environ.get("MASTER_ADDR", "127.0.0.1")
            return DeviceTransfer(self.model, dtype, kind, control, width, address)
        if self.shelf is None:
            folder = SHARED_MEMORY if kind == "shared_memory" else Path(self.recipe.run.folder).resolve()
            self.shelf = Shelf(self.model, dtype, kind, folder)
        return FileTransfer(self.shelf, control)
