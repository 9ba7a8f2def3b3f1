"""Which devices a vLLM runs on, and by which way the weights reach it there."""

from __future__ import annotations

import os
from collections.abc import Mapping

from assay.errors import UserError
from assay.rollout.vllm.transfer import SHARED_MEMORY, Kind


def devices_of(replica: int, width: int, count: int) -> tuple[int, ...]:
    """Device numbers of a server of ``width`` workers beside a trainer on device 0 of ``count``.

    Devices of its own where there are enough; a single worker shares the trainer's where there is only one. Raises
    UserError when there are too few.

    >>> devices_of(0, 2, 5), devices_of(1, 2, 5), devices_of(0, 1, 1)
    ((1, 2), (3, 4), (0,))
    """
    first = 1 + replica * width
    if first + width <= count:
        return tuple(range(first, first + width))
    if count == 1 and replica == 0 and width == 1:
        return (0,)
    raise UserError(
        f"rollout: server {replica + 1} of {width} device(s) needs {first + width} devices with the trainer's, and "
        f"there are {count}: lower rollout.replicas or tensor_parallel_size, or start servers elsewhere and name them"
    )


def visible(devices: tuple[int, ...], environment: Mapping[str, str] = os.environ) -> str:
    """Device numbers as ``CUDA_VISIBLE_DEVICES`` has them, counted within those that we see.

    >>> visible((1, 2), {}), visible((1,), {"CUDA_VISIBLE_DEVICES": "4,6"})
    ('1,2', '6')
    """
    seen = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return ",".join(seen[d] if d < len(seen) else str(d) for d in devices)


def transfer_kind(wanted: str, device: str, *, shares_device: bool, width: int = 1) -> Kind:
    """The way of the weights: ``sync.backend``, or what fits. Raises UserError for one that cannot work.

    CUDA: ``ipc`` within a device, ``nccl`` between devices. Elsewhere, and to several workers that share the
    trainer's devices, files in memory, or on a disk where there is no /dev/shm.

    >>> transfer_kind("auto", "cuda:0", shares_device=False), transfer_kind("auto", "cpu", shares_device=True)
    ('nccl', 'shared_memory')
    """
    cuda = device.startswith("cuda")
    if wanted in ("nccl", "ipc") and not cuda:
        raise UserError(f"sync.backend: {wanted} is for CUDA devices, and the model is on {device}: use auto")
    if wanted == "ipc" and not (shares_device and width == 1):
        raise UserError("sync.backend: ipc reaches one worker on the trainer's own device: use nccl, or auto")
    if wanted == "nccl" and shares_device:
        raise UserError("sync.backend: nccl joins distinct devices, and vLLM shares the trainer's: use ipc, or auto")
    if wanted == "nccl" or wanted == "ipc" or wanted == "shared_memory" or wanted == "file":
        return wanted
    if cuda and (not shares_device or width == 1):
        return "ipc" if shares_device else "nccl"
    return "shared_memory" if SHARED_MEMORY.is_dir() else "file"
