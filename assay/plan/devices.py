"""Devices by name: peak rates from their makers' data sheets. What share of them is reached is a guess (`presets`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.errors import UserError, nearest


@dataclass(frozen=True)
class Device:
    """What a device could do at most."""

    name: str
    flops: float
    """bfloat16 FLOP a second of dense products."""
    bandwidth: float
    """Bytes a second from its memory."""
    memory: float
    """Bytes."""
    measured: bool = False
    """Were the rates measured here, rather than read in a data sheet?"""


DEVICES: Mapping[str, Device] = {
    d.name: d
    for d in (
        Device("l4", 121e12, 0.30e12, 24e9),
        Device("rtx4090", 165e12, 1.01e12, 24e9),
        Device("l40s", 362e12, 0.864e12, 48e9),
        Device("a100", 312e12, 2.04e12, 80e9),
        Device("h100", 989e12, 3.35e12, 80e9),
        Device("h200", 989e12, 4.8e12, 141e9),
        Device("b200", 2250e12, 8.0e12, 180e9),
        Device("mi300x", 1307e12, 5.3e12, 192e9),
    )
}
"""Accelerators, the SXM variant where there are several."""


def device(name: str) -> Device:
    """The device of that name; ``cpu`` is this machine's processor, measured now. Raises UserError for a stranger."""
    if name == "cpu":
        return this_processor()
    if name not in DEVICES:
        raise UserError(f"--device: {name!r} is not known{nearest(name, DEVICES)}; choose of {', '.join(DEVICES)}, cpu")
    return DEVICES[name]


def this_processor() -> Device:
    """This machine's processor: a product of two square matrices and a copy of 256 MB, timed for a third of a second.

    Rates of as many threads as torch uses now.
    """
    import os
    import time

    import torch

    from assay.hardware import fast_precision, product_rate

    source = torch.ones(64 << 20)
    target = torch.empty_like(source)
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        target.copy_(source)
        taken.append(time.perf_counter() - start)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    moved = 2 * source.numel() * source.element_size()
    return Device("cpu", product_rate("cpu", fast_precision("cpu")), moved / min(taken), memory, measured=True)
