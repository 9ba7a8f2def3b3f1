"""Who does what on N GPUs: how many engines, how many trainers, or all of them both in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.errors import UserError
from assay.plan.costs import Costs


@dataclass(frozen=True)
class Layout:
    """A split of GPUs (of processes where there are none) between generation and training."""

    engines: int
    """Engines, each on ``Costs.engine_gpus`` GPUs."""
    trainers: int
    """GPUs of the trainer."""
    shared: bool
    """Engines and trainer take turns on the same GPUs: only at staleness 0."""
    unit: str = "GPU"
    """What is counted: GPU, or process."""
    engine_speed: float = 1.0
    """How fast the engines are here, of what the costs say."""
    trainer_speed: float = 1.0
    """The same of the trainer."""

    def describe(self, engine_gpus: int) -> str:
        """In words.

        >>> Layout(6, 2, shared=False).describe(1), Layout(4, 8, shared=True).describe(2)
        ('6 generate + 2 train', '8 shared, 4 engines of 2')
        """
        if self.unit == "process":
            return "one process" if self.shared else "two processes"
        each = f" of {engine_gpus}" if engine_gpus > 1 else ""
        if self.shared:
            return f"{self.trainers} shared, {self.engines} engine{'s' * (self.engines != 1)}{each}"
        many = f" ({self.engines} engine{'s' * (self.engines != 1)}{each})" if each else ""
        return f"{self.engines * engine_gpus} generate{many} + {self.trainers} train"


def layouts(gpus: int, costs: Costs, most: int = 12) -> list[Layout]:
    """The splits of so many GPUs worth a look: all shared, then from few to many generating.

    At most about ``most`` of them: of many GPUs an even choice. Raises UserError where the model fits none.
    """
    found = [*_shared(gpus, costs), *_split(gpus, costs, most)]
    if not found:
        raise UserError(
            f"--gpus {gpus}: the model needs {costs.least_trainer_gpus} GPUs to train and {costs.engine_gpus} to "
            "generate; give more, or train adapters (model.lora)"
        )
    return found


def _shared(gpus: int, costs: Costs) -> Iterator[Layout]:
    if gpus >= max(costs.engine_gpus, costs.least_trainer_gpus):
        yield Layout(gpus // costs.engine_gpus, gpus, shared=True)


def _split(gpus: int, costs: Costs, most: int) -> Iterator[Layout]:
    most_engines = (gpus - costs.least_trainer_gpus) // costs.engine_gpus
    count = max(0, min(most, most_engines))
    for engines in sorted({round(1 + i * (most_engines - 1) / max(1, count - 1)) for i in range(count)}):
        yield Layout(engines, gpus - engines * costs.engine_gpus, shared=False)
