"""How much a program may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one program, with all the processes that it starts.

    Address space, files and descriptors are bounded for each process by rlimits, processes for the program's user;
    the resident memory and the number of processes of the whole tree are watched as well.
    """

    seconds: float = 5.0
    """Wall time; also the processor time of each process, rounded up."""
    memory_mb: int = 512
    """Address space of each process, and resident memory of the tree."""
    processes: int = 16
    """Processes and threads at one time."""
    output_bytes: int = 1_000_000
    """Standard output, standard error, and any one file that is written, each."""
    scratch_mb: int = 16
    """Size of /tmp, and of /dev/shm."""
    descriptors: int = 64
    """Open files of a process."""

    def __post_init__(self) -> None:
        if not all(value > 0 for value in vars(self).values()):
            raise ValueError(f"limits must be above 0: {self}")
