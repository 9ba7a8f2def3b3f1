"""Which torch operators the time went to: read off the events of a profiler's Chrome trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]
"""An event of a Chrome trace: complete ones (``ph: X``) have ``ts`` and ``dur`` in microseconds."""

_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


@dataclass(frozen=True)
class Operator:
    """What an operator cost, its callees left out."""

    name: str
    calls: int
    seconds: float
    shapes: str
    """The shapes of its tensors that cost most, such as ``8x576, 576x3072``."""


def costliest(calls: Iterable[tuple[str, str, float]], count: int) -> list[Operator]:
    """Sum (name, shapes, seconds) by name; the ``count`` costliest, first the worst.

    >>> costliest([("aten::mm", "2x3, 3x4", 0.5), ("aten::add", "2x4", 0.1), ("aten::mm", "9x3, 3x4", 1.0)], 1)
    [Operator(name='aten::mm', calls=2, seconds=1.5, shapes='9x3, 3x4')]
    """
    by_shape: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    numbers: dict[str, int] = defaultdict(int)
    for name, shapes, seconds in calls:
        by_shape[name][shapes] += seconds
        numbers[name] += 1
    found = [
        Operator(name, numbers[name], sum(costs.values()), max(costs, key=lambda shapes: costs[shapes]))
        for name, costs in by_shape.items()
    ]
    return sorted(found, key=lambda op: -op.seconds)[:count]


def operator_calls(events: Sequence[Event]) -> list[tuple[str, str, float]]:
    """Name, shapes and own seconds of every call: on the accelerator where it had work, else on the processor."""
    whole = [e for e in events if e.get("ph") == "X"]
    calls = [e for e in whole if e.get("cat") == "cpu_op"]
    kernels = [e for e in whole if e.get("cat") in _ON_DEVICE]
    own = _device_times(calls, kernels) if kernels else _own_times(calls)
    return [(e["name"], _shapes(e), microseconds / 1e6) for e, microseconds in own]


def _own_times(calls: Sequence[Event]) -> Iterator[tuple[Event, float]]:
    """Each call's time less that of the calls it made, thread by thread."""
    open_calls: list[list[Any]] = []  # each: the event, its end, its own time
    for event in sorted(calls, key=lambda e: (str(e["tid"]), e["ts"], -e["dur"])):
        while open_calls and not (open_calls[-1][0]["tid"] == event["tid"] and event["ts"] < open_calls[-1][1]):
            done = open_calls.pop()
            yield done[0], done[2]
        if open_calls:
            open_calls[-1][2] -= event["dur"]
        open_calls.append([event, event["ts"] + event["dur"], event["dur"]])
    yield from ((event, own) for event, _, own in open_calls)


def _device_times(calls: Sequence[Event], kernels: Sequence[Event]) -> Iterator[tuple[Event, float]]:
    """Each call's kernels, which name it by its external id; a kernel that nobody called stands for itself."""
    callers = {e["args"]["External id"]: e for e in calls if "External id" in e.get("args", {})}
    for kernel in kernels:
        yield callers.get(kernel.get("args", {}).get("External id"), kernel), kernel["dur"]


def _shapes(event: Event) -> str:
    """The sizes of the tensors among an event's inputs."""
    sizes = event.get("args", {}).get("Input Dims", [])
    return ", ".join("x".join(map(str, size)) for size in sizes if size and all(isinstance(n, int) for n in size))
