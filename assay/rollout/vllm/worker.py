"""What runs inside vLLM's workers: the backend that takes weights from a file, and the packing anew that a CPU needs.

Imported by vLLM alone, in its own processes, as the worker extension that `assay.rollout.vllm.arguments` names: the
import registers the backend before a worker asks for it, and ties the worker's life to ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from vllm.distributed.weight_transfer import WeightTransferEngineFactory  # pyright: ignore[reportMissingImports]
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from assay.rollout.vllm.lifeline import follow
from assay.rollout.vllm.parcel import BACKEND, Parcel, verified


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Nothing has to be agreed beforehand."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """One parcel: see `assay.rollout.vllm.parcel.Parcel`."""

    path: str
    size: int
    checksum: int | None
    names: list[str]


class FileWeightTransfer(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Weights out of safetensors files that the trainer has written, in /dev/shm or in a folder both can read.

    Loading goes through vLLM's layerwise reload, as its own backends do: quantised layers are quantised anew.
    """

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Nothing to connect to."""

    def start_weight_update(self) -> None:
        """Have every layer wait for its new weights."""
        from vllm.model_executor.model_loader.reload import (  # pyright: ignore[reportMissingImports]
            initialize_layerwise_reload,
        )

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Load one parcel. Raises ValueError when the file is not the one that was announced."""
        parcel = Parcel(update_info.path, update_info.size, update_info.checksum, tuple(update_info.names))
        verified(parcel)
        load: Any = self.model.load_weights  # what every model of vLLM has, and torch's type knows nothing of
        load(self._tensors(parcel))

    def finish_weight_update(self) -> None:
        """Put the layers back in service, and pack anew what a CPU build keeps a packed copy of."""
        from vllm.model_executor.model_loader.reload import (  # pyright: ignore[reportMissingImports]
            finalize_layerwise_reload,
        )

        finalize_layerwise_reload(self.model, self.model_config)
        repack(self.model)

    def shutdown(self) -> None:
        """Nothing is held."""

    def _tensors(self, parcel: Parcel) -> Iterator[tuple[str, Tensor]]:
        with safe_open(parcel.path, framework="pt", device=str(self.device)) as file:
            for name in parcel.names:
                yield name, file.get_tensor(name)


def repack(model: nn.Module) -> int:
    """Pack again every matrix whose packed copy a reload has left behind; returns how many.

    vLLM's CPU build multiplies with a packed copy of each matrix. A reload packs the layers that it loads, but not an
    output head that is tied to the embedding: its copy would stay at the old weights, and nobody would be told.
    """
    from vllm.model_executor.layers.utils import (  # pyright: ignore[reportMissingImports]
        dispatch_cpu_unquantized_gemm,
    )

    packed = 0
    for module in model.modules():
        weight: Any = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and isinstance(weight, Tensor) and weight.dim() == 2 and weight.numel():
            with torch.no_grad():
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)
            packed += 1
    return packed


class WorkerExtension:
    """Mixed into vLLM's worker class for the sake of this module's import; it adds no method."""


WeightTransferEngineFactory.register_engine(BACKEND, FileWeightTransfer)
follow()
