"""The way of the weights: the trainer's tensors, adapters merged, through vLLM's weight transfer.

``nccl`` and ``ipc`` are vLLM's own, between devices; ``shared_memory`` and ``file`` are ours, through files in
/dev/shm or in a folder on a disk that trainer and engine share. Whichever it is, vLLM loads a checkpoint's tensors
layer by layer and quantises anew where it runs quantised.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from assay.errors import MissingExtra
from assay.rollout.vllm.parcel import BACKEND, Parcel, parcels
from assay.rollout.vllm.port import Control
from assay.rollout.weights import merged_weights

Kind = Literal["nccl", "ipc", "shared_memory", "file"]
DeviceKind = Literal["nccl", "ipc"]
SHARED_MEMORY = Path("/dev/shm")
PREFIX = "assay-weights-"


class Transfer(Protocol):
    """Sends the weights as they are."""

    async def prepare(self, version: int) -> None:
        """What can be done while vLLM still samples."""
        ...

    async def send(self, version: int) -> None:
        """One whole update. Raises PortError when vLLM does not take it."""
        ...

    async def close(self) -> None:
        """Free what is held for it."""
        ...


def backend_name(kind: Kind) -> str:
    """What ``weight_transfer_config.backend`` of vLLM must be.

    >>> backend_name("ipc"), backend_name("shared_memory")
    ('ipc', 'assay_file')
    """
    return kind if kind in ("nccl", "ipc") else BACKEND


def sent_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """(Name, tensor) of the checkpoint, adapters merged; of tensors that are tied the first, as a checkpoint has it."""
    tied = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in merged_weights(model):
        place = (tensor.data_ptr(), tensor.shape)
        if tied and tensor.dim() == 2 and place in seen and name.endswith("lm_head.weight"):
            continue
        seen.add(place)
        yield name, tensor


class Shelf:
    """The weights last published, in files: written once for all engines, and kept for one that is started anew.

    Such a one must not be given the trainer's tensors as they are at that moment: an update may be writing them.
    """

    def __init__(self, model: Any, dtype: torch.dtype, kind: Literal["shared_memory", "file"], folder: Path) -> None:
        """``folder`` is where a folder of our own is made: /dev/shm, or one that trainer and engines both see."""
        self._model = model
        self._dtype = dtype
        self._checksums = kind == "file"
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=folder))
        self._gone = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._lock = asyncio.Lock()
        self._version: int | None = None
        self._writings = 0
        self._parcels: tuple[Parcel, ...] = ()

    async def parcels(self, version: int, after: int) -> tuple[int, tuple[Parcel, ...]]:
        """(Number of the writing, parcels) of a version; written now unless writing ``after`` + 1 or later has it.

        Beside the event loop, which goes on.
        """
        async with self._lock:
            if version != self._version or self._writings <= after:
                self._clear()
                self._writings += 1
                place = self._folder / f"version-{version}"
                self._parcels = await asyncio.to_thread(self._write, place)
                self._version = version
            return self._writings, self._parcels

    def _write(self, place: Path) -> tuple[Parcel, ...]:
        return parcels(sent_weights(self._model), place, self._dtype, checksums=self._checksums)

    def _clear(self) -> None:
        self._version = None
        for parcel in self._parcels:
            shutil.rmtree(Path(parcel.path).parent, ignore_errors=True)


class FileTransfer:
    """Weights from a shelf, which several engines may share."""

    def __init__(self, shelf: Shelf, control: Control) -> None:
        self._shelf = shelf
        self._control = control
        self._met = False
        self._taken = 0
        self._parcels: tuple[Parcel, ...] = ()

    async def prepare(self, version: int) -> None:
        """Have the parcels written; a version that was sent before is written anew."""
        self._taken, self._parcels = await self._shelf.parcels(version, self._taken)

    async def send(self, version: int) -> None:
        """Have vLLM load the parcels prepared last."""
        if not self._met:
            await self._control.init_transfer({})
            self._met = True
        await self._control.start_update()
        for parcel in self._parcels:
            await self._control.update({**asdict(parcel), "names": list(parcel.names)})
        await self._control.finish_update(str(version))

    async def close(self) -> None:
        """Nothing: the shelf goes when its last user does."""


class DeviceTransfer:
    """Weights from device to device by vLLM's own trainer side of ``nccl`` or ``ipc``: it must be installed here."""

    def __init__(
        self, model: Any, dtype: torch.dtype, kind: DeviceKind, control: Control, workers: int, address: str
    ) -> None:
        """``workers``: processes that vLLM's model is spread over; ``address``: this machine's, as they reach it."""
        self._model = model
        self._dtype = dtype
        self._kind: DeviceKind = kind
        self._control = control
        self._workers = workers
        self._address = address
        self._sender: Any = None

    async def prepare(self, version: int) -> None:
        """Nothing: the tensors go as they lie."""

    async def send(self, version: int) -> None:
        """Drive the whole round in a thread: vLLM's sender blocks, and calls back into this loop."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._send, _Caller(self._control, loop, version))

    async def close(self) -> None:
        """Leave the process group."""
        if self._sender is not None:
            await asyncio.to_thread(self._sender.shutdown)

    def _send(self, client: _Caller) -> None:
        if self._sender is None:
            self._sender = self._meet(client)
        self._sender.client = client
        self._sender.send_weights()

    def _meet(self, client: _Caller) -> Any:
        try:
            from vllm.distributed.weight_transfer.factory import (  # pyright: ignore[reportMissingImports]
                WeightTransferTrainerFactory,
            )
        except ImportError as error:
            raise MissingExtra(f"sync.backend {self._kind}", "vllm", "vllm") from error
        info = init_info(self._kind, self._workers, self._address)
        return WeightTransferTrainerFactory.trainer_init(
            info, client=client, source=weight_source(self._model, self._dtype)
        )


def init_info(kind: DeviceKind, workers: int, address: str) -> Any:
    """What vLLM's trainer side is told of a transfer: this process is the one sender, ``workers`` receive."""
    if kind == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import (  # pyright: ignore[reportMissingImports]
            IPCTrainerInitInfo,
        )

        return IPCTrainerInitInfo(packed=True, rank=0)
    from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
        NCCLTrainerInitInfo,
    )
    from vllm.utils.network_utils import get_open_port  # pyright: ignore[reportMissingImports]

    return NCCLTrainerInitInfo(
        master_address=address, master_port=get_open_port(), world_size=1 + workers, packed=True, rank=0
    )


def weight_source(model: Any, dtype: torch.dtype) -> Any:
    """vLLM's ``WeightSource`` over `sent_weights`, in ``dtype``: it is walked anew at each update."""
    from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
        ParamMeta,
        WeightSource,
    )

    def wanted(tensor: Tensor) -> torch.dtype:
        return dtype if tensor.is_floating_point() else tensor.dtype

    class MergedSource(WeightSource):
        """The checkpoint's tensors, adapters merged."""

        def metadata(self) -> list[Any]:
            return [ParamMeta(name, wanted(t), tuple(t.shape)) for name, t in sent_weights(model)]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            for name, tensor in sent_weights(model):
                yield name, tensor.detach().to(wanted(tensor)).contiguous()

    return MergedSource()


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed have left behind: it holds memory."""
    for left in folder.glob(f"{PREFIX}*-*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not _exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class _Caller:
    """vLLM's client of a weight update, called from the sender's thread: runs the calls in the event loop."""

    def __init__(self, control: Control, loop: asyncio.AbstractEventLoop, version: int) -> None:
        self._control = control
        self._loop = loop
        self._version = version

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._run(self._control.init_transfer(init_info))

    def start_weight_update(self) -> None:
        self._run(self._control.start_update())

    def update_weights(self, update_info: Any) -> None:
        self._run(self._control.update(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._run(self._control.finish_update(weight_version or str(self._version)))

    def _run(self, call: Any) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result()
